"""Writes docs/toml.md from the code: every key of an experiment's file, its type, default and meaning."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from ..catalog.signatures import explanations_of, first_line, options_of
from ..data.partition import PARTITIONS
from ..training.models import MODELS
from .experiment import Experiment

HEAD = """# Experiment files

Written by `cosdefense list --toml` from the code; a test keeps it current.

An experiment is a TOML file: a grid of attacks × defenses × seeds on one federation. Every key has a
default except `name`, which is the name of the file if it is missing. A mistake is named by its key.
`cosdefense run FILE --set training.rounds=200` changes a key for one command.

```toml
name = "first"
seeds = [0, 1]

[data]
dataset = "digits"
clients = 30
malicious = 0.2
partition = {name = "dirichlet", alpha = 0.5}

[model]
name = "small-cnn"

[training]
rounds = 100
sampled = 10
batch = 32
lr = 0.1

[schedule]
attack_start = 20

[[attacks]]
name = "none"

[[attacks]]
name = "sign-flip"

[[defenses]]
name = "fedavg"

[[defenses]]
label = "clipped median"
filters = [{name = "clip", max_norm = 2.0}]
aggregator = {name = "median"}
```
"""
LISTS = {
    "attacks": "A list of tables, `[[attacks]]`: the `name` of an attack of the [catalog](catalog.md), or "
    '`"module:Class"`; its options; a `label` for tables and figures.',
    "defenses": "A list of tables, `[[defenses]]`: the `name` of a defense of the [catalog](catalog.md) and its "
    "options, or its parts as `filters`, `aggregator`, `hooks` and `buffers`; a `label`.",
    "model": 'The table `[model]`: the `name` of a model below, or `"module:function"`, and its options.',
}
TYPES = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false", "None": '"none"'}


def build_reference() -> str:
    """The whole page."""
    tables = [field for field in fields(Experiment) if is_dataclass(field.default)]
    lines = [HEAD, *_describe_top([field for field in fields(Experiment) if field not in tables])]
    for field in tables:
        kind = type(field.default)
        lines += [f"## [{field.name}]\n", f"{first_line(kind)}\n", *_describe_fields(kind)]
    lines += ["## Partitions\n", "The table `data.partition` has the `name` of one of these, and its options.\n"]
    lines += _describe_named(PARTITIONS)
    lines += ["## Models\n", "The table `[model]` has the `name` of one of these, and its options.\n"]
    lines += _describe_named(MODELS)
    return "\n".join(lines).rstrip() + "\n"


def _describe_top(members: list[Field[Any]]) -> Iterator[str]:
    yield "## Top level\n"
    yield from _head()
    comments = comments_of(Experiment)
    for field in members:
        if field.name == "source":
            continue
        if field.name in LISTS:
            yield _row(f"`{field.name}`", "tables" if field.name != "model" else "table", "", LISTS[field.name])
        else:
            yield _row(f"`{field.name}`", _type(field.type), _default(field.default), comments.get(field.name, ""))
    yield ""


def _describe_fields(kind: type) -> Iterator[str]:
    explained = comments_of(kind) | explanations_of(kind)
    yield from _head()
    for field in fields(kind):
        if field.name == "partition":
            name = next(name for name, known in PARTITIONS.items() if isinstance(field.default, known))
            yield _row("`partition`", "table", f"`{name}`", "See [partitions](#partitions).")
        else:
            yield _row(f"`{field.name}`", _type(field.type), _default(field.default), explained.get(field.name, ""))
    yield ""


def _describe_named(known: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    yield "| name | options | what it is |\n| --- | --- | --- |"
    for name, make in known.items():
        options = ", ".join(f"`{option} = {_toml(default)}`" for option, default in options_of(make).items())
        yield _row(f"`{name}`", options or "–", first_line(make))
    yield ""


def comments_of(kind: type) -> dict[str, str]:
    """What the comments at the ends of lines say about the fields of a dataclass."""
    source = textwrap.dedent(inspect.getsource(kind))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    explained: dict[str, str] = {}
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            explained[node.target.id] = " ".join(comments[line] for line in lines if line in comments)
    return explained


def _type(annotation: Any) -> str:
    words = str(annotation).replace("tuple[", "list of ").replace(", ...]", "").split(" | ")
    return " or ".join(" ".join(TYPES.get(word, word) for word in part.split(" ")) for part in words)


def _default(value: Any) -> str:
    return "required" if value is MISSING else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def _head() -> Iterator[str]:
    yield "| key | type | default | meaning |\n| --- | --- | --- | --- |"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
