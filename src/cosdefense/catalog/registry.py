"""Every part by name: build a part from a table of options, and describe a part as such a table.

A name with a colon, "package.module:Class", imports a part from another package. Only a class or function that is made
for the purpose is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from .. import aggregators, attacks, filters, hooks
from ..attacks import Attack
from ..core import Aggregator, BufferRule, ClientHook, Defense, Filter
from ..core.experiment_folder import written_name
from . import presets
from .extras import install_hint
from .imports import import_part, refuse_reserved_options
from .options import ConfigError, call, check_options, coerce, unknown_name_error

FILTERS: dict[str, type[Filter]] = {
    "alignins": filters.AlignIns,
    "arc": filters.ARC,
    "bygars": filters.ByGARS,
    "bygars++": filters.ByGARSPlusPlus,
    "clip": filters.Clip,
    "cosdefense": filters.CosDefense,
    "deepsight": filters.DeepSight,
    "diversefl": filters.DiverseFL,
    "dnc": filters.DnC,
    "fedrola": filters.FedRoLA,
    "flame": filters.FLAME,
    "opposed-clusters": filters.OpposedClusters,
    "fldetector": filters.FLDetector,
    "fltrust": filters.FLTrust,
    "foolsgold": filters.FoolsGold,
    "freqfed": filters.FreqFed,
    "krum": filters.Krum,
    "lasa": filters.LASA,
    "median-clip": filters.MedianClip,
    "multi-krum": filters.MultiKrum,
    "multi-metrics": filters.MultiMetrics,
    "nnm": filters.NNM,
    "norm-limit": filters.NormLimit,
    "pca-clusters": filters.PCAClusters,
    "quantile-clip": filters.QuantileClip,
    "rffl": filters.RFFL,
    "sageflow": filters.Sageflow,
    "signguard": filters.SignGuard,
    "near-duplicates": filters.NearDuplicates,
    "supported-references": filters.SupportedReferences,
    "two-references": filters.TwoReferences,
}
AGGREGATORS: dict[str, type[Aggregator]] = {
    "bucketing": aggregators.Bucketing,
    "bulyan": aggregators.Bulyan,
    "centered-clipping": aggregators.CenteredClipping,
    "crfl": aggregators.CRFL,
    "geometric-median": aggregators.GeometricMedian,
    "mean": aggregators.Mean,
    "median": aggregators.Median,
    "noisy-mean": aggregators.NoisyMean,
    "norm-limited-mean": aggregators.NormLimitedMean,
    "rfa": aggregators.RFA,
    "rlr": aggregators.RLR,
    "tapered-mean": aggregators.TaperedMean,
    "typical-norm-mean": aggregators.TypicalNormMean,
    "trimmed-mean": aggregators.TrimmedMean,
}
HOOKS: dict[str, type[ClientHook]] = {
    "adversarial-training": hooks.AdversarialTraining,
    "fl-wbc": hooks.FLWBC,
    "worker-momentum": hooks.WorkerMomentum,
}
ATTACKS: dict[str, type[Attack]] = {
    "none": attacks.Attack,
    "adapsim": attacks.AdapSim,
    "adaptive": attacks.Adaptive,
    "alie": attacks.ALIE,
    "backdoor": attacks.Backdoor,
    "camouflage": attacks.Camouflage,
    "constrain-and-scale": attacks.ConstrainAndScale,
    "dba": attacks.DBA,
    "edge-case": attacks.EdgeCase,
    "explicit-boosting": attacks.ExplicitBoosting,
    "inner-product": attacks.InnerProduct,
    "krum-poisoning": attacks.KrumPoisoning,
    "label-flip": attacks.LabelFlip,
    "learned-policy": attacks.LearnedPolicy,
    "mimic": attacks.Mimic,
    "min-max": attacks.MinMax,
    "min-sum": attacks.MinSum,
    "mpaf": attacks.MPAF,
    "neurotoxin": attacks.Neurotoxin,
    "noise": attacks.Noise,
    "noise-camouflage": attacks.NoiseCamouflage,
    "optimized-trigger": attacks.OptimizedTrigger,
    "orthogonal-inner-product": attacks.OrthogonalInnerProduct,
    "persistent": attacks.Persistent,
    "planning": attacks.Planning,
    "poisoned-buffers": attacks.PoisonedBuffers,
    "poisonedfl": attacks.PoisonedFL,
    "rollback": attacks.Rollback,
    "rop": attacks.ROP,
    "sign-flip": attacks.SignFlip,
    "tailored": attacks.Tailored,
    "trimmed-mean-poisoning": attacks.TrimmedMeanPoisoning,
    "zero-sum-masks": attacks.ZeroSumMasks,
    "zero-updates": attacks.ZeroUpdates,
}
PRESETS_BY_KIND: dict[str, dict[str, Callable[..., Defense]]] = {
    "statistics": {
        "fedavg": presets.fedavg,
        "median": presets.median,
        "trimmed-mean": presets.trimmed_mean,
        "bucketing": presets.bucketing,
        "rlr": presets.rlr,
        "lasa": presets.lasa,
        "alignins": presets.alignins,
        "cosdefense": presets.cosdefense,
    },
    "distances": {
        "krum": presets.krum,
        "multi-krum": presets.multi_krum,
        "nnm": presets.nnm,
        "arc": presets.arc,
        "rfa": presets.rfa,
        "dnc": presets.dnc,
        "multi-metrics": presets.multi_metrics,
    },
    "clustering": {
        "signguard": presets.signguard,
        "flame": presets.flame,
        "freqfed": presets.freqfed,
        "deepsight": presets.deepsight,
        "pca-clustering": presets.pca_clustering,
        "opposed-clusters": presets.opposed_clusters,
        "two-references": presets.two_references,
        "factions": presets.factions,
    },
    "trust": {
        "fltrust": presets.fltrust,
        "bygars": presets.bygars,
        "bygars++": presets.bygars_plus_plus,
        "sageflow": presets.sageflow,
        "diversefl": presets.diversefl,
    },
    "clipping and noise": {
        "norm-clipping": presets.norm_clipping,
        "clipping-median": presets.clipping_median,
        "centered-clipping": presets.centered_clipping,
        "weak-dp": presets.weak_dp,
        "central-dp": presets.central_dp,
        "crfl": presets.crfl,
    },
    "memory": {
        "rffl": presets.rffl,
        "foolsgold": presets.foolsgold,
        "fedrola": presets.fedrola,
        "fldetector": presets.fldetector,
    },
    "client side": {
        "fl-wbc": presets.fl_wbc,
        "fat": presets.fat,
    },
}
PRESETS = {name: make for group in PRESETS_BY_KIND.values() for name, make in group.items()}

T = TypeVar("T")


def get(name: str, **options: Any) -> Defense:
    """A named defense: `get("krum", contamination=0.2)`."""
    return build_defense({"name": name, **options})


def build_defense(table: Mapping[str, Any]) -> Defense:
    """A defense by name, `{name = "krum"}`, or by its parts, `{filters = [{name = "clip"}], aggregator = {name = …}}`.

    A defense by its parts may also have `hooks`, which honest clients run. Every defense may say how `buffers` are
    combined. Some can be `secure`: true, or a table of the options of `cosdefense.secure.Secure`, or "plain" for the
    same decisions without cryptography.
    """
    options = dict(table)
    secure = options.pop("secure", False)
    defense = _build_open_defense(options)
    return defense if secure is False else _build_secure(defense, secure)


def _build_open_defense(table: Mapping[str, Any]) -> Defense:
    if "name" in table:
        options = dict(table)
        changes = {"buffers": coerce(options.pop("buffers"), BufferRule, "buffers")} if "buffers" in table else {}
        return replace(build(PRESETS, options, Defense), **changes)
    given = check_options(_composition, table, "defense")
    aggregator = given.get("aggregator", {"name": "mean"})
    return Defense(
        tuple(build(FILTERS, part, Filter) for part in given.get("filters", ())),  # type: ignore[type-abstract]
        build(AGGREGATORS, _build_inner_parts(aggregator, "aggregator"), Aggregator),  # type: ignore[type-abstract]
        tuple(build(HOOKS, part, ClientHook, "hook") for part in given.get("hooks", ())),
        given.get("buffers", "median"),
    )


def _build_secure(defense: Defense, given: object) -> Defense:
    try:
        from ..secure import Secure
    except ModuleNotFoundError as error:
        raise ConfigError(f"secure needs cryptography: {install_hint('secure')}") from error
    if given is True or given == "plain":
        given = {"encrypted": given is True}
    if not isinstance(given, Mapping):
        raise ConfigError(f'defense.secure must be true, false, "plain" or a table of options, got {given!r}')
    options = check_options(Secure, given, "defense.secure", reserved=("defense",))
    try:
        return Secure(defense, **options)
    except ValueError as error:
        raise ConfigError(f"defense.secure: {error}") from error


def build_attack(table: Mapping[str, Any]) -> Attack:
    """An attack from `{name = "inner-product", epsilon = 5.0}`.

    An option that is a defense or an attack is given by name or as a table: `{name = "adaptive", defense = "krum"}`.
    """
    return build(ATTACKS, _build_inner_parts(table, "attack"), Attack)


def _build_inner_parts(table: object, where: str) -> dict[str, Any]:
    """The table of a part whose options `defense` and `attack` are such parts. In a file they are names or tables."""
    given = dict(coerce(table, Mapping, where))
    defense = given.get("defense")
    if isinstance(defense, str) and defense != "none":
        defense = {"name": defense}
    if isinstance(defense, Mapping):
        given["defense"] = build_defense(defense)
    hidden = given.get("attack")
    if isinstance(hidden, str | Mapping):
        given["attack"] = build_attack({"name": hidden} if isinstance(hidden, str) else hidden)
    return given


def describe(part: Defense | Filter | Aggregator | ClientHook | Attack) -> dict[str, Any]:
    """The table that builds this part, with every option."""
    if isinstance(part, Defense):
        table = {"filters": [describe(filter_) for filter_ in part.filters], "aggregator": describe(part.aggregator)}
        hooks = {"hooks": [describe(hook) for hook in part.hooks]} if part.hooks else {}
        options = {"secure": {key: _to_plain(value) for key, value in part.options.items()}} if part.options else {}
        return {**table, **hooks, "buffers": part.buffers, **options}
    return describe_by({**FILTERS, **AGGREGATORS, **HOOKS, **ATTACKS}, part)


def describe_by(known: Mapping[str, Any], part: object) -> dict[str, Any]:
    """The table for a dataclass, by its name in `known` or else by its import path."""
    kind = type(part)
    import_path = f"{written_name(kind.__module__)}:{kind.__qualname__}"
    name = next((name for name, entry in known.items() if entry is kind), import_path)
    refuse_reserved_options(kind, import_path)
    options = {field.name: getattr(part, field.name) for field in fields(part)}  # type: ignore[arg-type]
    return {"name": name, **{key: _to_plain(value) for key, value in options.items()}}


def _to_plain(value: Any) -> Any:
    """An option as a file keeps it: TOML has no null, and a defense or an attack becomes a table."""
    if isinstance(value, Defense | Attack):
        return describe(value)
    return "none" if value is None else value


def lookup(known: Mapping[str, Callable[..., T]], name: object, needed: type[T], kind: str) -> Callable[..., T]:
    """The entry of that name, or what "package.module:Class" names. Nothing is called."""
    if not isinstance(name, str):
        raise ConfigError(f"{kind}.name must be a string, got {name!r}")
    if ":" in name:
        return import_part(name, needed, kind)
    if name not in known:
        raise unknown_name_error(kind, name, known)
    return known[name]


def _composition(
    filters: tuple[dict[str, Any], ...],
    aggregator: dict[str, Any],
    hooks: tuple[dict[str, Any], ...],
    buffers: BufferRule,
) -> None:
    """The keys of a defense by its parts; only the signature is used."""


def build(known: Mapping[str, Callable[..., T]], table: object, needed: type[T], where: str = "") -> T:
    """Build the part that the table names, with the table's options. `where` is the table's key, if not its kind."""
    kind = needed.__name__.lower()
    options: dict[str, Any] = dict(coerce(table, Mapping, where or kind))
    if "name" not in options:
        raise ConfigError(f"{where or kind} needs a name: one of {', '.join(sorted(known))}, or package.module:Class")
    name = options.pop("name")
    part = call(lookup(known, name, needed, kind), options, f"{kind} {name}")
    if not isinstance(part, needed):
        raise ConfigError(f"{kind} {name!r} must give a {needed.__name__}, got {type(part).__name__}")
    return part
