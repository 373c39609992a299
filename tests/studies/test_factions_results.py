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
RUN = {  # page → its pack, the runs of its table, and the first line of the table
    "PAGE": (
        "factions",
        [("mnist", 0), ("mnist", 10), ("fashion-mnist", 0), ("fashion-mnist", 10)],
        "| attack | MNIST, seed 0 | MNIST, seed 10 | Fashion-MNIST, seed 0 | Fashion-MNIST, seed 10 |",
    ),
    "HISTORY": (
        "former-factions",
        [("mnist", 0), ("mnist", 10), ("fashion-mnist", 0), ("fashion-mnist", 10), ("fashion-mnist", 12)],
        "| attack | MNIST, seed 0 | MNIST, seed 10 | Fashion-MNIST, seed 0 | Fashion-MNIST, seed 10 | "
        "Fashion-MNIST, seed 12 |",
    ),
}
COLUMNS = [(field, seeds) for field in ("mnist", "fashion-mnist") for seeds in ((0, 1), (10, 11, 12, 13, 14))]
INFORMED = {"adaptive", "persistent"}


def read_table(page: str, heading: str) -> list[list[str]]:
    """The cells of the table whose first line is that."""
    lines = page.split(f"{heading}\n")[1].split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def read_accuracies(pack: Path) -> dict[tuple[str, ...], dict[int, float]]:
    """Experiment, defense and attack → seed → accuracy at the end."""
    ends = defaultdict[tuple[str, ...], dict[int, float]](dict)
    for run in read_pack(pack):
        key = (run.header["experiment"]["name"], run.header["defense"], run.header["attack"])
        ends[key][run.header["seed"]] = end_of(run)
    return ends


def end_of(run: RunRecord) -> float:
    assert run.summary is not None
    return 100 * float(run.summary["tail_accuracy"])


def find_losses(attack: str, field: str, seeds: Iterable[int]) -> list[float]:
    own, plain = ARENA[f"arena-{field}-30", "two references", attack], ARENA[f"arena-{field}-30", "none", "none"]
    return [plain[seed] - own[seed] for seed in seeds if seed in own]


ARENA = read_accuracies(DOCS / "arena" / "two-references" / "records.jsonl.gz")


@pytest.mark.parametrize(("name", "page"), [("PAGE", PAGE), ("HISTORY", HISTORY)])
def test_what_factions_and_the_rule_before_lose(name: str, page: str) -> None:
    folder, columns, heading = RUN[name]
    ends = read_accuracies(DOCS / "arena" / folder / "records.jsonl.gz")
    rows = read_table(page, heading)
    assert {row[0] for row in rows} == {attack for _, defense, attack in ends if defense == "Factions"}
    for attack, *figures in rows:
        for figure, (field, seed) in zip(figures, columns, strict=True):
            end = ends[f"arena-{field}-30", "Factions", attack].get(seed)
            plain = ends[f"arena-{field}-30", "none", "none"].get(seed)
            assert figure == ("–" if end is None or plain is None else f"{plain - end:.1f}")


def test_what_two_references_loses() -> None:
    heading = "| attack | MNIST, design | MNIST, test | Fashion-MNIST, design | Fashion-MNIST, test |"
    attacks = {attack for _, defense, attack in ARENA if defense == "two references"}
    rows = read_table(HISTORY, heading)
    assert {row[0] for row in rows} == attacks
    for attack, *figures in rows:
        assert figures == [f"{fmean(find_losses(attack, field, seeds)):.1f}" for field, seeds in COLUMNS]


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
    ends = read_accuracies(DOCS / "arena" / "conditions" / "records.jsonl.gz")
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
