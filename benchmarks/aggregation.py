"""Every aggregation rule beside byzfl's, Flower's and the limit of the machine: time, memory, accuracy.

python benchmarks/aggregation.py [--markdown] [--json FILE] [--quick] [--simplest] [--growth]

Float32 on the CPU with two threads, competitors in turns. "limit" is what the machine could do at best: all rows
read once at the speed of a sum, plus, where a rule compares all rows, their products at the speed of a matrix product
in float64. Memory is the growth of the process at the worst moment (see measuring.peak_memory). The error is against
the same rule in float64, relative to its length.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from measuring import Table, Timing, machine, options, peak_memory, report, timed
from peers import byzfl_rules, flower_rules, picked_by_new_krum
from simplest_forms import DIFFER, FORMS, difference, simplest
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from cosdefense import Aggregator, Cohort, Defense, Layout, Need, get
from cosdefense.aggregators import Bulyan, CenteredClipping, GeometricMedian, Mean, Median, TrimmedMean
from cosdefense.filters import CosDefense, Krum, MultiKrum
from cosdefense.ops import squared_distances

SIZES = ((100, 710_218), (10, 11_173_962))  # the paper's CNN, and ResNet-18
QUICK = ((100, 71_022), (10, 1_117_396))
HEAD = 5120  # coordinates that CosDefense looks at: the last layer of either model has 5 to 10 thousand
SHARE = 0.2  # of attackers that rules are told to expect; for Bulyan 0.1, it stands fewer
BULYAN_SHARE = 0.1
BULYAN_PART = {100: 20, 10: 4}  # Flower's Bulyan takes minutes: both are measured on this part of the coordinates
GOALS = {
    "Mean": ("torch.mean", 1.0), "CosDefense + Mean": ("our mean", 1 / 2.5), "Krum": ("byzfl", 5.0),
    "Multi-Krum": ("byzfl", 6.0), "Median": ("both", 6.0), "Trimmed mean": ("both", 6.0),
    "Geometric median": ("byzfl", 8.0), "Centered clipping": ("byzfl", 5.0), "Bulyan": ("flwr", 20.0),
}  # fmt: skip
PATIENCE = 1.0  # seconds after which no case beside the simplest forms is tried again
MOST = 3.0  # times the time of its simplest form in torch: the most that any rule may take
COMPARES_ALL = {"Krum", "Multi-Krum", "Geometric median", "Bulyan"}


def drawn(n: int, d: int, seed: int = 0) -> Tensor:
    """Updates as clients send them: something in common, and noise."""
    rng = torch.Generator().manual_seed(seed)
    common = 1e-3 * torch.randn(d, generator=rng)
    rows = torch.empty(n, d)
    for row in rows:
        torch.randn(d, generator=rng, out=row).mul_(1e-3).add_(common)
    return rows


def cohort_of(rows: Tensor) -> Cohort:
    d = rows.shape[1]
    head = min(HEAD, d // 2)
    layout = Layout((("body", (d - head,)), ("head", (head, 1))), "head", d)
    params = torch.randn(d, generator=torch.Generator().manual_seed(1))
    return Cohort.of(rows, params.to(rows.dtype), layout)


def defenses(rows: Tensor) -> dict[str, Defense]:
    def alone(aggregator: Aggregator) -> Defense:
        return Defense((), aggregator)

    return {
        "Mean": alone(Mean()),
        "CosDefense + Mean": Defense((CosDefense(),), Mean()),
        "Krum": Defense((Krum(SHARE),), Mean()),
        "Multi-Krum": Defense((MultiKrum(SHARE),), Mean()),
        "Median": alone(Median()),
        "Trimmed mean": alone(TrimmedMean(SHARE)),
        "Geometric median": alone(GeometricMedian()),
        "Centered clipping": alone(CenteredClipping(radius=radius(rows))),
        "Bulyan": alone(Bulyan(BULYAN_SHARE)),
        "Opposed clusters": get("opposed-clusters"),  # nobody's but ours, as the next: only as n and d grow
        "Two references": get("two-references"),
        "Factions": get("factions"),
    }


def radius(rows: Tensor) -> float:
    """Half the rows' length, so that all are clipped."""
    return float(0.5 * rows[0].double().norm())


def ours(defense: Defense, cohort: Cohort, first: bool = True) -> Callable[[], Tensor]:
    """The first round, or the second: rules with memory do more in it."""
    memory = defense.init() if first else defense(cohort, defense.init())[1]

    def run() -> Tensor:
        verdict, _ = defense(cohort, memory)
        assert verdict.skipped is None, verdict.skipped
        return verdict.update

    return run


def layered(rows: Tensor) -> Cohort:
    """The rows as a model of several tensors: a classifier of ten classes with a bias, for rules that look at it."""
    d = rows.shape[1]
    head = 10 * min(512, d // 40)
    sizes = (("first.weight", ((d - head - 10) // 2, 1)), ("second.weight", ((d - head - 10 + 1) // 2, 1)))
    layout = Layout((*sizes, ("head.weight", (10, head // 10)), ("head.bias", (10,))), "head.weight", d)
    return Cohort.of(rows, torch.randn(d, generator=torch.Generator().manual_seed(1)).to(rows.dtype), layout)


def presets(name: str) -> Defense:
    """A defense as its simplest form assumes it."""
    options: dict[str, Any] = {"deepsight": {"samples": 0}}.get(name, {})
    if Need.ATTACKER_COUNT in get(name).needs and name != "rlr":
        options = {"contamination": SHARE}
    return get(name, **options)


def against_simplest(sizes: tuple[tuple[int, int], ...], repeats: int) -> list[Table]:
    """Every rule of the catalog that needs nothing but updates beside its simplest form in torch, and beside byzfl.

    Seconds of CPU on one thread, the least of the tries: other processes on the machine do not count much.
    """
    threads, tables = torch.get_num_threads(), list[Table]()
    torch.set_num_threads(1)
    for n, d in sizes:
        rows, lines = drawn(n, d), list[list[str]]()
        cohort, theirs = layered(rows), byzfl_rules(rows, int(SHARE * n), 10.0)
        for name in FORMS:
            own, update = cpu_seconds(ours(presets(name), cohort), repeats)
            least, expected = cpu_seconds(partial(simplest, name, cohort), repeats)
            byzfl = f"{cpu_seconds(theirs[name], repeats)[0] / own:.3g}×" if name in theirs else "–"
            print(f"{n} × {d:,}  {name}: {own / least:.2f} × the simplest form", file=sys.stderr, flush=True)
            off = "–" if name in DIFFER else f"{difference(update, expected):.0e}"
            fits = "yes" if own <= MOST * least else "no"
            lines.append([name, f"{own:.3g} s", f"{least:.3g} s", f"{own / least:.2f}×", fits, byzfl, off])
        header = ("rule", "ours", "simplest form", "ratio", f"at most {MOST:g}×", "byzfl takes", "difference")
        tables.append(Table(f"Beside the simplest form in torch, n = {n}, d = {d:,}, one thread.", header, lines))
    torch.set_num_threads(threads)
    return tables


def cpu_seconds(case: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The least of a few tries after one that is not counted, and the result; slow cases are tried once or twice."""
    seconds = list[float]()
    while len(seconds) <= repeats and sum(seconds) < PATIENCE:
        began = time.process_time()
        result = case()
        seconds.append(time.process_time() - began)
    return min(seconds[1:] or seconds), result


def limits(rows: Tensor) -> tuple[float, float]:
    """Seconds to read all rows once, and to multiply all with all in float64; the fastest of a few tries."""
    n, d = rows.shape
    reading = min(timed({"sum": lambda: rows.sum(dim=1)}, 5)["sum"].seconds)
    square = torch.randn(1024, 1024, dtype=torch.float64)
    product = min(timed({"product": lambda: square @ square}, 5)["product"].seconds)
    return reading, reading + product * (n * n * d) / 1024**3


def error(name: str, rows: Tensor, columns: int) -> float:
    """How far the rule in float32 is from the rule in float64 on some of the coordinates."""
    some = rows[:, :columns].contiguous()
    defense = defenses(some)[name]
    narrow, wide = ours(defense, cohort_of(some))(), ours(defense, cohort_of(some.double()))()
    return float((narrow.double() - wide).norm() / wide.norm())


def measured(n: int, d: int, repeats: int) -> tuple[list[list[str]], dict[str, Any]]:
    rows = drawn(n, d)
    reading, multiplying = limits(rows)
    lines, results = [], {}
    for name in GOALS:
        part = rows[:, : d // BULYAN_PART[n]].contiguous() if name == "Bulyan" else rows
        cases = cases_of(name, part)
        times = timed(cases, repeats, patience=3.0)
        print(f"{n} × {d:,}  {name}: {times['ours']}", file=sys.stderr, flush=True)
        share, whole = part.shape[1] / d, ours(defenses(rows)[name], cohort_of(rows))
        memory = peak_memory(whole) / (rows.numel() * rows.element_size())
        limit = share * (multiplying if name in COMPARES_ALL else reading)
        wrong = error(name, part, min(part.shape[1], 100_000))
        lines.append(line(name, times, limit, memory, wrong, share))
        results[name] = {"times": times, "limit": limit, "memory": memory, "error": wrong, "columns": part.shape[1]}
    return lines, results


def cases_of(name: str, rows: Tensor) -> dict[str, Callable[[], Any]]:
    """Our rule and what it is measured against."""
    cohort, rules, f = cohort_of(rows), defenses(rows), int(SHARE * len(rows))
    flower = flower_rules(rows, f, int(BULYAN_SHARE * len(rows)))
    mean = partial(Mean(), cohort, None)  # as torch.mean does it, without the checks that a defense makes
    cases: dict[str, Callable[[], Any] | None] = {
        "ours": mean if name == "Mean" else ours(rules[name], cohort),
        "byzfl": byzfl_rules(rows, f, radius(rows)).get(name),
        "flwr": flower.get(name),
        "flwr new": flower.get(f"{name} (new)"),
    }
    if name in ("Mean", "CosDefense + Mean"):
        cases["torch.mean"] = partial(torch.mean, rows, dim=0)
    if name == "CosDefense + Mean":
        cases["our mean"] = mean
    return {who: case for who, case in cases.items() if case is not None}


def line(name: str, times: dict[str, Timing], limit: float, memory: float, wrong: float, share: float) -> list[str]:
    own = times["ours"].median
    rivals = {peer: found.median / own for peer, found in times.items() if peer != "ours"}
    against, goal = GOALS[name]
    reached = min((rivals[peer] for peer in (("byzfl", "flwr") if against == "both" else (against,)) if peer in rivals),
                  default=float("nan"))  # fmt: skip
    compared = ", ".join(f"{peer} {ratio:.3g}×" for peer, ratio in rivals.items())
    wanted = f"{goal:g}× {against}" if goal >= 1 else f"at most {1 / goal:g}× {against}"
    return [
        name if share == 1 else f"{name} (d / {1 / share:.0f})", str(times["ours"]), compared,
        f"{wanted}: {'yes' if reached >= goal else 'no'}", f"{own / limit:.2g}×", f"{memory:.0%}", f"{wrong:.0e}",
    ]  # fmt: skip


def shares(sizes: tuple[tuple[int, int], ...]) -> Table:
    """Where the time of a rule goes on one thread, where nothing waits: torch's calls; the rest is numpy and Python."""
    threads, lines = torch.get_num_threads(), []
    torch.set_num_threads(1)
    for n, d in sizes:
        rows = drawn(n, d)
        cohort, rules = cohort_of(rows), defenses(rows)
        for name in GOALS:
            case = ours(rules[name], cohort)
            alone = min(timed({name: case}, 3)[name].seconds)
            with profile(activities=[ProfilerActivity.CPU]) as found:
                case()
            events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)[:4]
            spent = ", ".join(f"{e.key.removeprefix('aten::')} {1e-6 * e.self_cpu_time_total:.3f}" for e in events)
            lines.append([f"{n:,}", f"{d:,}", name, f"{alone:.3f}", spent])
    torch.set_num_threads(threads)
    return Table("Seconds on one thread, and those of the four longest calls.", ("n", "d", "rule", "s", "of it"), lines)


def growth(sizes: tuple[tuple[int, int], ...]) -> tuple[Table, Table]:
    """Milliseconds and memory of every rule as n or d grows."""
    milliseconds, memory = list[list[str]](), list[list[str]]()
    for n, d in sizes:
        rows = drawn(n, d)
        cohort, size = cohort_of(rows), rows.numel() * rows.element_size()
        cases = {name: ours(rule, cohort, first=False) for name, rule in defenses(rows).items() if name != "Bulyan"}
        times = timed(cases, 3, patience=5.0)
        milliseconds.append([f"{n:,}", f"{d:,}", *(f"{1e3 * times[name].median:.3g}" for name in cases)])
        memory.append([f"{n:,}", f"{d:,}", *(f"{peak_memory(case) / size:.0%}" for case in cases.values())])
    header = ("n", "d", *cases)
    return Table("Milliseconds as n and d grow.", header, milliseconds), Table(
        "Memory as a share of the input.", header, memory
    )


def picks(tries: int) -> Table:
    """Krum on nearly identical rows: how often the float32 pick is the float64 one."""
    n, d, f = 20, 100_000, 4
    same = {"cosdefense": 0, "Flower's new Krum": 0}
    for seed in range(tries):
        rng = torch.Generator().manual_seed(seed)
        rows = torch.randn(d, generator=rng) + 1e-4 * torch.randn(n, d, generator=rng)
        wide = rows.double()
        exact = torch.stack([(wide - row).square().sum(dim=1) for row in wide])
        best = int(exact.fill_diagonal_(torch.inf).sort(dim=1).values[:, : n - f - 2].sum(dim=1).argmin())
        verdict, _ = (krum := Defense((Krum(f / n),), Mean()))(cohort_of(rows), krum.init())
        same["cosdefense"] += verdict.weights.nonzero().flatten().tolist() == [best]
        same["Flower's new Krum"] += picked_by_new_krum(rows, f) == best
    title = f"Picks of Krum among {n} nearly identical rows (they differ by 1e-4 of their size) equal to float64's."
    return Table(title, ("who", "right"), [[who, f"{right} of {tries}"] for who, right in same.items()])


def narrow_products() -> Table:
    """Why distances are not made of float32 products: how far off they are, at most, for rows of several kinds."""
    n, d, block = 20, 100_000, 4096
    rng = torch.Generator().manual_seed(0)
    kinds = {
        "normal": torch.randn(n, d, generator=rng),
        "uniform": torch.rand(n, d, generator=rng),
        "log-normal": torch.randn(n, d, generator=rng).mul_(3).exp_(),
        "constant": torch.rand(n, 1, generator=rng).expand(n, d).clone(),
    }
    lines = []
    for kind, rows in kinds.items():
        wide = rows.double()
        exact = torch.stack([(wide - row).square().sum(dim=1) for row in wide])
        moved = torch.split(rows - rows[0], block, dim=1)
        products = torch.stack([(part @ part.T).double() for part in moved]).sum(dim=0)
        found = products.diagonal()[:, None] + products.diagonal() - 2 * products
        lengths = exact[0][:, None] + exact[0]
        fair = exact > 0.1 * lengths  # pairs that do not cancel
        off = [((one - exact).abs() / exact)[fair].max().item() for one in (found, squared_distances(rows))]
        lines.append([kind, *(f"{value:.0e}" for value in off)])
    title = f"Largest relative error of a squared distance, n = {n}, d = {d:,}, among pairs that do not cancel."
    return Table(title, ("rows", f"float32 products, blocks of {block}", "ours"), lines)


def main(given: argparse.Namespace) -> None:
    torch.set_num_threads(2)
    began = time.perf_counter()
    smaller = 10 if given.quick else 1
    sizes = ((10, 200_000), (30, 200_000), (100, 200_000), (300, 50_000), (1000, 20_000), (1000, 100_000),
             (100, 50_000), (100, 100_000), (100, 400_000), (100, 710_000))  # fmt: skip
    if given.growth:
        return report(given, machine("numpy"), [*growth(tuple((n, d // smaller) for n, d in sizes))], {})
    beside_simplest = against_simplest(QUICK if given.quick else SIZES, 3 if given.quick else given.repeats)
    if given.simplest:
        return report(given, machine("numpy", "byzfl", "scikit-learn"), beside_simplest, {})
    header = ("rule", "ours: median [lowest, highest]", "times as fast as", "goal", "of the limit", "memory", "error")
    tables, results = [], dict[str, Any]()
    for n, d in QUICK if given.quick else SIZES:
        lines, found = measured(n, d, 3 if given.quick else given.repeats)
        tables.append(Table(f"n = {n}, d = {d:,}; memory as a share of the input.", header, lines))
        results[f"{n}x{d}"] = found
    tables += [
        *beside_simplest, shares(QUICK if given.quick else SIZES), *growth(tuple((n, d // smaller) for n, d in sizes)),
        picks(5 if given.quick else 20), narrow_products(),
    ]  # fmt: skip
    about = machine("numpy", "byzfl", "flwr") | {"seconds in all": f"{time.perf_counter() - began:.0f}"}
    results |= {table.title: [dict(zip(table.header, row, strict=True)) for row in table.rows] for table in tables[2:]}
    return report(given, about, tables, results)


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the coordinates, to see that it works")
    parser.add_argument(
        "--simplest",
        action="store_true",
        help=f"only beside the simplest forms; cases of {PATIENCE:g} s or more run once, others up to --repeats times",
    )
    parser.add_argument("--growth", action="store_true", help="only time and memory as n and d grow")
    parser.add_argument("--repeats", type=int, default=5, help="tries of every case that is not slow (default: 5)")
    main(parser.parse_args())
