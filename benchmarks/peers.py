"""Other people's aggregation, each as a function of the rows [n, d]: byzfl's classes and Flower's functions.

Both get what they like best, outside the measured time: byzfl a tensor, Flower a list of arrays per client.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

Rule = Callable[[], Any]
LARGEST_MIX = 1 << 30  # numbers: byzfl's NNM copies all neighbors of every row, n · (n − f) · d numbers


def byzfl_module(name: str) -> Any:
    """A module of byzfl without the package itself, which imports torchvision. None where it is not installed."""
    found = importlib.util.find_spec("byzfl")
    if found is None or found.submodule_search_locations is None:
        return None
    if "byzfl" not in sys.modules:
        package = types.ModuleType("byzfl")
        package.__path__, package.__spec__ = list(found.submodule_search_locations), found
        sys.modules["byzfl"] = package
    return importlib.import_module(f"byzfl.{name}")


def byzfl_rules(rows: Tensor, f: int, radius: float) -> dict[str, Rule]:
    """byzfl's rules by our names."""
    theirs = byzfl_module("aggregators.aggregators")
    if theirs is None:
        return {}
    before, trimmed = byzfl_module("aggregators.preaggregators"), theirs.TrMean(f)
    catalog: dict[str, Rule] = {  # by their names in the catalog
        "fedavg": lambda: theirs.Average()(rows),
        "krum": lambda: theirs.Krum(f)(rows),
        "multi-krum": lambda: theirs.MultiKrum(f)(rows),
        "median": lambda: theirs.Median()(rows),
        "trimmed-mean": lambda: trimmed(rows),
        "centered-clipping": lambda: theirs.CenteredClipping(tau=radius)(rows),
        "bucketing": lambda: theirs.Median()(before.Bucketing(2)(rows)),
    }
    if len(rows) * rows.numel() <= LARGEST_MIX:
        catalog["nnm"] = lambda: trimmed(before.NNM(f)(rows))
        catalog["arc"] = lambda: trimmed(before.NNM(f)(before.ARC(f)(rows.clone())))  # ARC writes into its input
    return catalog | {
        "Mean": lambda: theirs.Average()(rows),
        "Krum": lambda: theirs.Krum(f)(rows),
        "Multi-Krum": lambda: theirs.MultiKrum(f)(rows),
        "Median": lambda: theirs.Median()(rows),
        "Trimmed mean": lambda: theirs.TrMean(f)(rows),
        "Geometric median": lambda: theirs.GeometricMedian()(rows),
        "Centered clipping": lambda: theirs.CenteredClipping(tau=radius)(rows),
    }


def flower_rules(rows: Tensor, f: int, bulyan_f: int) -> dict[str, Rule]:
    """Flower's functions by our names; "(new)" is what the strategies of its Message API use, before they average."""
    old = importlib.import_module("flwr.server.strategy.aggregate")
    new = importlib.import_module("flwr.serverapp.strategy.multikrum")
    results = [([row], 1) for row in rows.numpy()]
    replies = cache(lambda: _messages(rows))  # made at the first call, which is not measured
    n = len(rows)
    return {
        "Mean": lambda: old.aggregate(results)[0],
        "Krum": lambda: old.aggregate_krum(results, f, 0)[0],
        "Krum (new)": lambda: new.select_multikrum(replies(), f, 1),
        "Multi-Krum": lambda: old.aggregate_krum(results, f, n - f)[0],
        "Median": lambda: old.aggregate_median(results)[0],
        "Trimmed mean": lambda: old.aggregate_trimmed_avg(results, f / n + 1e-9)[0],
        "Bulyan": lambda: old.aggregate_bulyan(list(results), bulyan_f, old.aggregate_krum, to_keep=0)[0],
    }


def picked_by_new_krum(rows: Tensor, f: int) -> int:
    """Which row Flower's new Krum takes."""
    new = importlib.import_module("flwr.serverapp.strategy.multikrum")
    contents = _messages(rows)
    chosen = new.select_multikrum(contents, f, 1)
    return next(i for i, content in enumerate(contents) if content is chosen[0])


def _messages(rows: Tensor) -> list[Any]:
    """The rows as the contents of replies."""
    app = importlib.import_module("flwr.app")
    return [app.RecordDict({"arrays": app.ArrayRecord({"w": app.Array(row)})}) for row in rows.numpy()]
