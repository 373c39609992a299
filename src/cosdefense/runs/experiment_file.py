"""Reads an experiment from a TOML file: every mistake is named by its key."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from ..catalog.options import ConfigError, call, check_options, coerce, unknown_name_error
from ..catalog.registry import build_attack, build_defense, lookup
from ..core.experiment_folder import reading_from
from ..simulation.schedule import Schedule
from ..training.models import MODELS
from .data_section import Data, read_data
from .experiment import Entry, Experiment, Training


def load(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read a TOML file, change some of its keys ("training.rounds=100"), check everything."""
    return from_table(read_table(path, overrides), path.parent)


def read_table(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The same before it is checked."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for override in overrides:
        _override(table, override)
    table.setdefault("name", path.stem)
    return table


def from_table(table: Mapping[str, Any], source: Path | None = None) -> Experiment:
    """An experiment from nested tables, every mistake named by its key.

    Parts may be defined beside its file, in the folder `source`: `name = "mine:Part"` is the class `Part` of `mine.py`.
    """
    with reading_from(source):
        return _from_table(table, source)


def _from_table(table: Mapping[str, Any], source: Path | None) -> Experiment:
    known = {field.name for field in fields(Experiment)} - {"source"}
    for key in table:
        if key not in known:
            raise unknown_name_error("key", key, known)
    built: dict[str, Any] = {}
    if "name" in table:
        built["name"] = coerce(table["name"], str, "name")
    if "data" in table:
        built["data"] = read_data(coerce(table["data"], Mapping, "data"))
    if "model" in table:
        built["model"] = _model(coerce(table["model"], Mapping, "model"))
    built["training"] = _training(coerce(table.get("training", {}), Mapping, "training"), built.get("data", Data()))
    if "schedule" in table:
        built["schedule"] = call(Schedule, coerce(table["schedule"], Mapping, "schedule"), "schedule")
    for kind, build_part in (("attacks", build_attack), ("defenses", build_defense)):
        if kind in table:
            entries = coerce(table[kind], tuple[Mapping[str, Any], ...], kind)
            parts = [build_part(_without(entry, "label")) for entry in entries]  # first: labels rely on their checks
            built[kind] = tuple(Entry(_label(entry), part) for entry, part in zip(entries, parts, strict=True))
    if "seeds" in table:
        built["seeds"] = coerce(table["seeds"], tuple[int, ...], "seeds")
    if "track" in table:
        built["track"] = coerce(table["track"], tuple[str, ...], "track")
    if "name" not in built:
        raise ConfigError("an experiment needs a name")
    return Experiment(**built, source=source)


def _training(table: Mapping[str, Any], data: Data) -> Training:
    given = {"sampled": data.default_sampled(), **table}
    training: Training = call(Training, given, "training")
    return training


def _model(table: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The model's name and all its options, defaults included."""
    if "name" not in table:
        raise ConfigError(f"model needs a name: one of {', '.join(sorted(MODELS))}, or package.module:function")
    make = lookup(MODELS, table["name"], nn.Module, "model")
    reserved = ("shape", "n_outputs")
    given = check_options(make, _without(table, "name"), f"model {table['name']}", reserved)
    parameters = inspect.signature(make).parameters
    for name in reserved:
        if name not in parameters:
            raise ConfigError(f"model {table['name']} must take {' and '.join(reserved)}, got {', '.join(parameters)}")
    options = {name: parameter.default for name, parameter in parameters.items() if name not in reserved} | given
    missing = [name for name, value in options.items() if value is inspect.Parameter.empty]
    if missing:
        raise ConfigError(f"model {table['name']} needs {', '.join(missing)}")
    return (("name", table["name"]), *options.items())


def entry_names(table: Mapping[str, Any]) -> tuple[str, str]:
    """How an entry of a grid may be called: by its label, and by what it is, whatever its options."""
    return _label(table), str(table["name"]) if "name" in table else _part_names(table)


def _label(table: Mapping[str, Any]) -> str:
    """As the user said, or the name with the options that were given."""
    if "label" in table:
        return str(coerce(table["label"], str, "label"))
    if "name" in table:
        options = ", ".join(f"{key}={value}" for key, value in table.items() if key != "name")
        return f"{table['name']}({options})" if options else str(table["name"])
    return _part_names(table)


def _part_names(table: Mapping[str, Any]) -> str:
    """The names of the parts of a defense that is spelled out."""
    parts = [*table.get("filters", ()), table.get("aggregator", {"name": "mean"}), *table.get("hooks", ())]
    return " + ".join(str(part.get("name")) if isinstance(part, Mapping) else str(part) for part in parts)


def _without(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != key}


def _override(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set needs key=value, got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a text
    *path, last = key.strip().split(".")
    for step in path:
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key}: {step!r} is not a table")
    table[last] = value
