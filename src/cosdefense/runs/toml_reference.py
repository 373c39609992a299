"""Writes docs/toml.md from the code: every key of an experiment's file, its type, default and meaning."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..catalog.signatures import explanations_of, first_line, options_of
from ..data.huggingface import read_saved_dataset
from ..data.image_folder import read_images
from ..data.partition import PARTITIONS
from ..data.sources import READERS
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
TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): '"none"'}
NOT_IN_FILES = ("source", "options", "digest", "loaded")  # fields that are worked out when a file is read
READERS_BY_SOURCE: dict[str, Callable[..., Any]] = {
    "`table.csv`": READERS[".csv"],
    "`arrays.npz`": READERS[".npz"],
    "a folder of images": read_images,
    "a folder saved by Hugging Face `datasets`": read_saved_dataset,
}
OWN_DATA = """## Datasets of your own

`dataset` may be a path, or a function that returns a `cosdefense.data.Dataset`:
`dataset = "package.module:function"`. Options of its reader go into a table with its `name`:
`dataset = {name = "patients.csv", label = "diagnosis", client = "hospital"}`. The content is part of
the experiment: a changed file gives other runs.
"""


def build_reference() -> str:
    """The whole page."""
    tables = [field for field in fields(Experiment) if is_dataclass(field.default)]
    lines = [HEAD, *_describe_top([field for field in fields(Experiment) if field not in tables])]
    for field in tables:
        kind = type(field.default)
        lines += [f"## [{field.name}]\n", f"{first_line(kind)}\n", *_describe_fields(kind)]
    lines += [OWN_DATA, *_describe_named(READERS_BY_SOURCE, "source", taken=("path",))]
    lines += ["## Partitions\n", "The table `data.partition` has the `name` of one of these, and its options.\n"]
    lines += _describe_named(PARTITIONS)
    lines += ["## Models\n", "The table `[model]` has the `name` of one of these, and its options.\n"]
    lines += _describe_named(MODELS)
    return "\n".join(lines).rstrip() + "\n"


def _describe_top(members: list[Field[Any]]) -> Iterator[str]:
    yield "## Top level\n"
    yield from _head()
    comments, hints = comments_of(Experiment), get_type_hints(Experiment)
    for field in members:
        if field.name in LISTS:
            yield _row(f"`{field.name}`", "table" if field.name == "model" else "tables", "", LISTS[field.name])
        elif field.name not in NOT_IN_FILES:
            yield _row(f"`{field.name}`", _type(hints[field.name]), _default(field.default), comments[field.name])
    yield ""


def _describe_fields(kind: type) -> Iterator[str]:
    explained, hints = comments_of(kind) | explanations_of(kind), get_type_hints(kind)
    yield from _head()
    for field in fields(kind):
        if field.name == "partition":
            name = next(name for name, known in PARTITIONS.items() if isinstance(field.default, known))
            yield _row("`partition`", "table", f"`{name}`", "See [partitions](#partitions).")
        elif field.name == "dataset":
            about = "See [datasets of your own](#datasets-of-your-own); `cosdefense list datasets` has the names."
            yield _row("`dataset`", "text or table", _default(field.default), about)
        elif field.name not in NOT_IN_FILES:
            meaning = explained.get(field.name, "")
            yield _row(f"`{field.name}`", _type(hints[field.name]), _default(field.default), meaning)
    yield ""


def _describe_named(
    known: Mapping[str, Callable[..., Any]], what: str = "name", taken: tuple[str, ...] = ("shape", "n_outputs")
) -> Iterator[str]:
    """One row for each. Users do not give what is `taken`."""
    yield f"| {what} | options | what it is |\n| --- | --- | --- |"
    for name, make in known.items():
        parameters = inspect.signature(make).parameters
        required = [key for key, p in parameters.items() if p.default is p.empty and key not in taken]
        options = [f"`{key}` (required)" for key in required]
        options += [f"`{key} = {_toml(default)}`" for key, default in options_of(make).items()]
        yield _row(name if "`" in name or " " in name else f"`{name}`", ", ".join(options) or "–", first_line(make))
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


def _type(hint: Any) -> str:
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return " or ".join(f'"{argument}"' for argument in arguments)
    if get_origin(hint) is tuple:
        return f"list of {_type(arguments[0])}"
    if arguments:
        return " or ".join(_type(argument) for argument in arguments)
    return TYPES[hint]


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
