"""The settings that rules may be tuned to, and the file with those that were chosen, which the arena reads."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from ...catalog.options import ConfigError
from ..study import experiments_folder

Table = Mapping[str, Any]
MAX_SETTINGS = 6  # of one rule: the same small budget for everyone
GRID, TUNED = "tuning.toml", "tuned.toml"  # files under experiments/arena


@dataclass(frozen=True)
class TunedRule:
    """A rule of the arena, and the settings that are tried for it: tables like an entry's, without its label."""

    label: str
    settings: tuple[Table, ...]
    times_lr: tuple[str, ...] = ()  # options that are multiplied by the learning rate of the field


@dataclass(frozen=True)
class Tried:
    """One setting and how it ended."""

    options: str  # in words
    worst_attack: str
    worst_accuracy: float
    mean_accuracy: float


@dataclass(frozen=True)
class Chosen:
    """The setting that was chosen for a rule, and all that were tried."""

    label: str
    setting: Table
    times_lr: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()  # the chosen one first


@dataclass(frozen=True)
class Tuned:
    """What was chosen for all rules, and from which runs."""

    source: Table = field(default_factory=dict)  # field, share of attackers, seeds, attacks, rounds, code
    chosen: tuple[Chosen, ...] = ()

    def apply(self, entry: Table, lr: float) -> dict[str, Any]:
        """The entry of an experiment's file with what was chosen for its label, if something was."""
        own = next((one for one in self.chosen if one.label == entry.get("label", entry.get("name"))), None)
        if own is None:
            return dict(entry)
        return {"label": own.label, **scale_options(own.setting, own.times_lr, lr)}

    def to_toml(self) -> str:
        return tomli_w.dumps({"source": dict(self.source), "chosen": [asdict(one) for one in self.chosen]})


def read_grid(path: Path | None = None) -> tuple[tuple[str, ...], tuple[TunedRule, ...]]:
    """The attacks that settings are compared under, and the rules with their settings."""
    table = _read(path or experiments_folder("arena") / GRID)
    rules = tuple(
        TunedRule(rule["label"], tuple(rule["settings"]), tuple(rule.get("times_lr", ()))) for rule in table["rules"]
    )
    for rule in rules:
        if len(rule.settings) > MAX_SETTINGS:
            raise ConfigError(f"{rule.label}: at most {MAX_SETTINGS} settings may be tried, got {len(rule.settings)}")
    return tuple(table["attacks"]), rules


def read_tuned(path: Path | None = None) -> Tuned | None:
    """What was chosen: in the named file, or in the one that belongs to the arena, if it is there."""
    known = path or experiments_folder("arena") / TUNED
    if path is None and not known.exists():
        return None
    table = _read(known)
    try:
        chosen = tuple(
            Chosen(
                one["label"],
                one["setting"],
                tuple(one["times_lr"]),
                tuple(Tried(**tried) for tried in one["tried"]),
            )
            for one in table["chosen"]
        )
        return Tuned(table["source"], chosen)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{known} is not what cosdefense arena --tune writes: {error!r}") from error


def scale_options(setting: Table, keys: Sequence[str], lr: float) -> dict[str, Any]:
    """The setting with these options multiplied by the learning rate: `aggregator.radius` is a path of keys."""
    scaled = deepcopy(dict(setting))
    for key in keys:
        *path, last = key.split(".")
        table = scaled
        for step in path:
            table = table[step]
        table[last] = round(table[last] * lr, 12)
    return scaled


def show_options(setting: Table, times_lr: Sequence[str] = ()) -> str:
    """The options of a setting in words: `ratio = 0.5`."""
    rates = {key.split(".")[-1] for key in times_lr}
    pairs = [(key, f"{value:.3g}" if isinstance(value, float) else value) for key, value in _list_options(setting)]
    return ", ".join(f"{key} = {value}{' × lr' if key in rates else ''}" for key, value in pairs) or "defaults"


def _list_options(value: Any) -> Iterator[tuple[str, Any]]:
    """Whatever is not the name of a part or a part itself."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _list_options(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, Mapping | list | tuple):
                yield from _list_options(item)
            elif key != "name":
                yield key, item


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
