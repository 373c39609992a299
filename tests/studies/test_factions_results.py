"""docs/factions.md and docs/factions-history.md: the tables are those of the published records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import pytest

from cosdefense.runs.experiment_file import load
from cosdefense.runs.packed_records import read_pack
from cosdefense.runs.records import RunRecord

pytestmark = pytest.mark.slow  # reads published records

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "factions.md").read_text(encoding="utf-8")
HISTORY = (DOCS / "factions-history.md").read_text(encoding="utf-8")
SEEDS_OF_THREE, SEEDS_OF_TWO = (0, 10), (0, 10, 12)  # references, on Fashion-MNIST
OLDER = {  # the pack of a former version, the runs of its table in the history, and the first line of the table
    "three-references/cpu.jsonl.gz": (
        [("mnist", 0), ("mnist", 10), *(("fashion-mnist", seed) for seed in SEEDS_OF_THREE)],
        "| attack | MNIST, seed 0 | MNIST, seed 10 | Fashion-MNIST, seed 0 | Fashion-MNIST, seed 10 |",
    ),
    "former-factions/records.jsonl.gz": (
        [("mnist", 0), ("mnist", 10), *(("fashion-mnist", seed) for seed in SEEDS_OF_TWO)],
        "| attack | MNIST, seed 0 | MNIST, seed 10 | Fashion-MNIST, seed 0 | Fashion-MNIST, seed 10 | "
        "Fashion-MNIST, seed 12 |",
    ),
}
SEEDS = (range(5), range(10, 15))  # for design, and test seeds
COLUMNS = [(field, seeds) for field in ("mnist", "fashion-mnist") for seeds in ((0, 1), (10, 11, 12, 13, 14))]
INFORMED = {"adaptive", "persistent"}
Ends = dict[tuple[str, ...], dict[int, float]]  # experiment, defense and attack → seed → accuracy at the end


def read_table(page: str, heading: str) -> list[list[str]]:
    """The cells of the table whose first line is that."""
    lines = page.split(f"{heading}\n")[1].split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def read_accuracies(pack: Path) -> Ends:
    """Experiment, defense and attack → seed → accuracy at the end."""
    ends = defaultdict[tuple[str, ...], dict[int, float]](dict)
    for run in read_pack(pack):
        key = (run.header["experiment"]["name"], run.header["defense"], run.header["attack"])
        ends[key][run.header["seed"]] = end_of(run)
    return ends


def end_of(run: RunRecord) -> float:
    assert run.summary is not None
    return 100 * float(run.summary["tail_accuracy"])


def find_losses(ends: Ends, name: str, defense: str, attack: str, seeds: Iterable[int]) -> list[float]:
    own, plain = ends[name, defense, attack], ends[name, "none", "none"]
    return [plain[seed] - own[seed] for seed in seeds if seed in own]


ARENA = read_accuracies(DOCS / "arena" / "two-references" / "records.jsonl.gz")


def test_what_factions_loses() -> None:
    """The mean over five seeds and, in brackets, the worst; of attacks that know the defense a single seed."""
    ends = read_accuracies(DOCS / "arena" / "factions" / "records.jsonl.gz")
    heading = (
        "| attack | MNIST, seeds 0–4 | MNIST, seeds 10–14 | Fashion-MNIST, seeds 0–4 | Fashion-MNIST, seeds 10–14 |"
    )
    rows = read_table(PAGE, heading)
    names = [row[0].removesuffix(", one seed") for row in rows]
    assert set(names) == {attack for _, defense, attack in ends if defense == "Factions"}
    for attack, (_, *figures) in zip(names, rows, strict=True):
        cells = [(f"arena-{field}-30", seeds) for field in ("mnist", "fashion-mnist") for seeds in SEEDS]
        for figure, (name, seeds) in zip(figures, cells, strict=True):
            lost = find_losses(ends, name, "Factions", attack, seeds)
            if attack in INFORMED:
                assert [figure] == ([f"{lost[0]:.1f}"] if lost else ["–"])
            else:
                assert len(lost) == 5
                assert figure == f"{fmean(lost):.1f} ({max(lost):.1f})"


def test_what_is_said_of_collapses() -> None:
    ends = read_accuracies(DOCS / "arena" / "factions" / "records.jsonl.gz")
    counts = defaultdict[tuple[bool, bool], int](int)
    for (name, defense, attack), by_seed in ends.items():
        if defense == "Factions" and attack != "none":
            for seed, end in by_seed.items():
                assert end > ends[name, "none", "none"][seed] / 2
                counts[attack in INFORMED, seed >= 10] += 1
    assert counts == {(False, False): 270, (False, True): 270, (True, False): 4, (True, True): 3}


def test_factions_under_other_conditions() -> None:
    ends = read_accuracies(DOCS / "arena" / "factions" / "conditions.jsonl.gz")
    heading = "| condition | none | inner product ε = 1 | label flip | noise camouflage | rollback | sign flip | "
    heading += "zero-sum masks |"
    attacks = [cell.strip() for cell in heading.strip("|").split("|")][1:]
    rows = read_table(PAGE, heading)
    assert len(rows) == 6
    for condition, *figures in rows:
        field = "fashion-mnist" if "Fashion" in condition else "mnist"
        share = "30" if condition.startswith("q") else condition[:2]
        for attack, figure in zip(attacks, figures, strict=True):
            lost = find_losses(ends, f"arena-{field}-{share}", "Factions", attack, range(5))
            assert figure == (f"{fmean(lost):.1f} ({max(lost):.1f})" if lost else "–")


@pytest.mark.parametrize("pack", OLDER)
def test_what_the_rules_before_lose(pack: str) -> None:
    columns, heading = OLDER[pack]
    ends = read_accuracies(DOCS / "arena" / pack)
    rows = read_table(HISTORY, heading)
    assert {row[0] for row in rows} == {attack for _, defense, attack in ends if defense == "Factions"}
    for attack, *figures in rows:
        for figure, (field, seed) in zip(figures, columns, strict=True):
            lost = find_losses(ends, f"arena-{field}-30", "Factions", attack, [seed])
            assert figure == (f"{lost[0]:.1f}" if lost else "–")


def test_what_two_references_loses() -> None:
    heading = "| attack | MNIST, design | MNIST, test | Fashion-MNIST, design | Fashion-MNIST, test |"
    attacks = {attack for _, defense, attack in ARENA if defense == "two references"}
    rows = read_table(HISTORY, heading)
    assert {row[0] for row in rows} == attacks
    for attack, *figures in rows:
        assert figures == [
            f"{fmean(find_losses(ARENA, f'arena-{field}-30', 'two references', attack, seeds)):.1f}"
            for field, seeds in COLUMNS
        ]


def test_what_is_said_of_collapses_of_two_references() -> None:
    """Of all seeds, and of attacks that do not know the defense and others."""
    collapsed = defaultdict[tuple[bool, bool], list[bool]](list)
    for (name, defense, attack), ends in ARENA.items():
        if defense == "two references" and attack != "none":
            for seed, end in ends.items():
                is_lost = end < ARENA[name, "none", "none"][seed] / 2
                collapsed[attack in INFORMED, seed >= 10].append(is_lost)
                assert not is_lost or (attack, seed) in {("noise", 12), ("MPAF", 12), ("persistent", 10)}
    counts = {key: (sum(values), len(values)) for key, values in collapsed.items()}
    assert counts == {
        (False, False): (0, 104), (False, True): (4, 260), (True, False): (0, 4), (True, True): (1, 4),
    }  # fmt: skip


def test_the_other_conditions() -> None:
    ends = read_accuracies(DOCS / "arena" / "two-references" / "conditions.jsonl.gz")
    head = "| MNIST, seed 0, % | none | zero updates | Min-Max | inner product ε = 5 | label flip | noise camouflage | "
    head += "sign flip | sign flip × 5 | zero-sum masks |"
    attacks = [cell.strip() for cell in head.strip("|").split("|")][1:]
    for share, *figures in read_table(HISTORY, head):
        name = f"arena-mnist-{share.split()[0]}"
        assert figures == [f"{ends[name, 'two references', attack][0]:.1f}" for attack in attacks]


def test_the_table_of_the_perceptron() -> None:
    measured = {}
    for run in read_pack(DOCS / "factions-attacks" / "records.jsonl.gz"):
        measured[run.header["attack"], run.header["defense"]] = f"{end_of(run):.1f}"
    cells = load(DOCS.parent / "experiments" / "factions-attacks.toml").cells()
    assert set(measured) == {(cell.attacks[0].label, cell.defenses[0].label) for cell in cells}
    shown = {}
    heading = "| attack | no defense | opposed clusters | two references | Factions |"
    for attack, *figures in read_table(PAGE, heading):
        for defense, figure in zip(("none", "opposed clusters", "two references", "Factions"), figures, strict=True):
            shown[attack, defense] = figure
    assert shown == measured
