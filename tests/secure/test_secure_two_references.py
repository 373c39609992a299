"""Two references on secret updates: against the twin and the open rule, over many rounds and all kinds of trouble."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from secure_examples import THOROUGH
from test_secure_defense import check_same, draw_cohort
from torch import Tensor

from cosdefense import Cohort, Defense, Layout, get
from cosdefense.aggregators import Mean, TaperedMean
from cosdefense.catalog.registry import build_defense, describe
from cosdefense.core import State, pack, unpack
from cosdefense.data import load as load_data
from cosdefense.filters import Clip, CosDefense, NormLimit, TwoReferences
from cosdefense.runs.experiment_file import from_table
from cosdefense.runs.records import read_run
from cosdefense.runs.single_run import run
from cosdefense.secure import Secure
from cosdefense.secure.defense import MemoryWithMean
from cosdefense.secure.secret_mean import MOST
from cosdefense.testing import LAYOUT, check_defense

SMALL = Layout((("body.weight", (10, 20)), ("head.weight", (4, 10))), "head.weight", 240)
WIDE = Layout((("body.weight", (20, 250)), ("head.weight", (4, 20))), "head.weight", 5_080)


@dataclass
class Training:
    """Honest updates that have little in common but a direction that turns slowly, and three malicious clients."""

    layout: Layout
    n: int = 10
    n_rounds: int = 100

    def __iter__(self) -> Iterator[tuple[int, Cohort]]:
        rng, size = torch.Generator().manual_seed(0), self.layout.size
        self.params = torch.zeros(size)
        common = torch.randn(size, generator=rng)
        for number in range(self.n_rounds):
            common = 0.99 * common + 0.14 * torch.randn(size, generator=rng)
            rows = 0.01 * (torch.randn(self.n, size, generator=rng) + 0.4 * common)
            yield number, Cohort.of(self._attack(rows, number, rng), self.params, self.layout, seed=number)

    def _attack(self, rows: Tensor, number: int, rng: torch.Generator) -> Tensor:
        mean = rows[3:].mean(dim=0)
        kind = number % 10
        if kind in (1, 2, 3):
            rows[:3] = -mean * (1 + number % 3)
        elif kind == 4:
            rows[:3] = -rows[:3] * 20
        elif kind == 5:
            rows[:3] = 1e6 * torch.randn(3, rows.shape[1], generator=rng)
        elif kind == 6:
            rows[:3] = 0
        elif kind == 7:
            rows[0, 0] = torch.nan
        elif kind == 8 and number % 20 == 8:
            rows[:8] = torch.nan  # below the quorum: the round is skipped
        elif kind == 9 and number % 30 == 9:
            rows[:] = 0
        return rows


def check_memory(state: State, twin: State) -> None:
    """Both halves of the running mean add up to the twin's, and all else is equal."""
    (ours, *rest), (theirs, *others) = state, twin
    assert rest == others
    assert isinstance(ours, MemoryWithMean)
    assert ours.part == theirs.part
    assert (ours.mean.version, ours.mean.total) == (theirs.mean.version, theirs.mean.total)
    if theirs.mean.halves is None:
        assert ours.mean.halves is None
    else:
        assert ours.mean.halves is not None
        assert torch.equal(ours.mean.halves.sum(dim=0), theirs.mean.halves[0])
        assert ours.mean.halves.shape == (2, *theirs.mean.halves.shape[1:])


@pytest.mark.parametrize(("layout", "n_rounds"), [(SMALL, 300), (WIDE, 300 if THOROUGH else 60)])
def test_the_twin_decides_the_same_bits_for_many_rounds(layout: Layout, n_rounds: int) -> None:
    """0 differences: in scores, weights, updates, and in what is remembered."""
    secure = Secure(get("two-references"), clip=1.0, smallest=3)
    twin, training, skipped, rejected = secure.plain, Training(layout, n_rounds=n_rounds), 0, 0
    state, twin_state = secure.init(), twin.init()
    for number, cohort in training:
        verdict, after = secure(cohort, state)
        expected, twin_after = twin(cohort, twin_state)
        check_same(verdict, expected)
        check_memory(after, twin_after)
        if verdict.skipped is not None:
            skipped += 1
            assert after[0] is state[0] or after[0] == state[0]
        if number % 10 in (1, 2, 3) and number > 20:
            rejected += int((verdict.weights[:3] < 0.5).sum())
        state, twin_state = after, twin_after
        training.params = training.params + expected.update
        assert bool(training.params.isfinite().all())
    assert 0 < skipped < n_rounds / 4
    assert rejected > 0.7 * 9 * (n_rounds - 20) / 10  # nine malicious updates of these kinds in ten rounds
    assert state[0].mean.total <= MOST


def test_it_decides_as_the_open_rule() -> None:
    """Up to 4,096 trainable coordinates nothing is projected: scores differ by the rounding of shares."""
    secure, defense = Secure(get("two-references"), clip=1.0, smallest=3).plain, get("two-references")
    state, open_state, different = secure.init(), defense.init(), 0
    training = Training(SMALL, n_rounds=200)
    for number, cohort in training:
        if number % 10 in (4, 5, 7, 8):  # not clipped in the open, or skipped
            continue
        verdict, state = secure(cohort, state)
        expected, open_state = defense(cohort, open_state)
        training.params = training.params + expected.update
        mean = state[0].mean.halves[0, 0].double()
        cosine = torch.nn.functional.cosine_similarity(mean, open_state[0].mean.double(), dim=0)
        assert float(cosine) > 0.9999
        if verdict.skipped is not None:  # one client would have had too much of the weight
            different += 1
            continue
        ours, theirs = verdict.evidence["TwoReferences"], expected.evidence["TwoReferences"]
        assert torch.allclose(ours, theirs, rtol=0.01, atol=0.03)
        assert torch.allclose(verdict.weights, expected.weights, atol=0.1)
        assert torch.allclose(verdict.update, expected.update, atol=0.1 * float(expected.update.abs().max()))
    assert different < 20


def test_large_models_are_judged_by_their_projections() -> None:
    secure, defense = Secure(get("two-references"), clip=1.0, smallest=3).plain, get("two-references")
    state, open_state, wrong, counted = secure.init(), defense.init(), 0, 0
    training = Training(WIDE, n_rounds=150)
    for number, cohort in training:
        verdict, state = secure(cohort, state)
        expected, open_state = defense(cohort, open_state)
        training.params = training.params + expected.update
        if number > 40 and number % 10 in (1, 2, 3):
            counted += 10
            wrong += int(((verdict.weights > 0.5) != (expected.weights > 0.5)).sum())
    assert wrong < 0.03 * counted


def test_the_tapered_mean_is_that_of_the_open_rule() -> None:
    """Long updates count less, and the norm of the mean is limited, as in the open."""
    layout = Layout(LAYOUT.shapes[:3], LAYOUT.head, 27)
    secure, defense = Secure(get("two-references"), clip=4.0, smallest=3), get("two-references")
    cohort = draw_cohort(1, layout=layout)
    updates = cohort.updates.clone()
    updates[1] *= 1e4
    updates[2] *= 5
    updates[3] = 0
    cohort = replace(cohort, updates=updates)
    state, open_state = secure.init(), defense.init()
    for _ in range(3):
        verdict, state = secure(cohort, state)
        expected, open_state = defense(cohort, open_state)
        assert verdict.skipped is None
        assert torch.allclose(verdict.weights, expected.weights, atol=1e-3)
        assert torch.allclose(verdict.update, expected.update, atol=1e-3 * float(expected.update.abs().max()))
        assert state[-1].update == pytest.approx(open_state[-1].update, rel=1e-4)
        assert state[-1].mean == pytest.approx(open_state[-1].mean, rel=1e-3)
    assert secure.get_memory(state) == state[-1].update


def test_buffers_are_not_lengthened_with_short_updates() -> None:
    """The mean by length counts short updates more, and so it would change buffers by several times their mean."""
    cohort = draw_cohort(5, n=9, scale=0.01)
    updates = cohort.updates.clone()
    updates[:4, :27] *= 1e-3
    updates[:, 27:] = 0.01
    secure = Secure(get("two-references"), smallest=3)
    verdict, _ = secure(replace(cohort, updates=updates), secure.init())
    assert verdict.skipped is None
    assert float(verdict.update[27:].max()) < 0.0101
    assert float(verdict.update[27:].min()) > 0.005


def test_memory_can_be_saved() -> None:
    secure = Secure(get("two-references"))
    state = secure.init()
    packed, tensors = pack(state)
    assert unpack(packed, tensors, secure.init()) == state
    _, state = secure(draw_cohort(0), state)
    packed, tensors = pack(state)
    found = unpack(packed, tensors, secure.init())
    assert torch.equal(found[0].mean.halves, state[0].mean.halves)
    assert replace(found[0].mean, halves=None) == replace(state[0].mean, halves=None)
    assert (found[0].part, found[1]) == (state[0].part, state[1])
    verdict, _ = secure(draw_cohort(1), found)
    check_same(verdict, secure(draw_cohort(1), state)[0])


def test_a_lost_half_starts_the_mean_again() -> None:
    """As a round of a federation whose helper lost its half: the next rounds are those of a new mean."""
    secure = Secure(get("two-references"))
    _, state = secure(draw_cohort(0), secure.init())
    _, state = secure(draw_cohort(1), state)
    assert state[0].part.n_rounds == 2
    lost = (replace(state[0], mean=secure.init()[0].mean), state[1])
    _, after = secure(draw_cohort(2), lost)
    assert after[0].part.n_rounds == 1
    assert after[0].part.baseline != pytest.approx(secure(draw_cohort(2), secure.init())[1][0].part.baseline)


@pytest.mark.parametrize(
    "defense",
    [
        Defense((TwoReferences(),), Mean()),
        Defense((Clip(1.0), TwoReferences(decay=0.5)), TaperedMean()),
        Defense((NormLimit(), TwoReferences(decay=0.0)), TaperedMean()),
    ],
)
def test_other_combinations_are_those_of_the_twin(defense: Defense) -> None:
    secure = Secure(defense, smallest=3)
    state, twin_state = secure.init(), secure.plain.init()
    for seed in range(12):
        verdict, state = secure(draw_cohort(seed), state)
        twin, twin_state = secure.plain(draw_cohort(seed), twin_state)
        check_same(verdict, twin)
    place = len(defense.filters) - 1
    assert torch.equal(state[place].mean.halves.sum(dim=0), twin_state[place].mean.halves[0])


@pytest.mark.parametrize(
    ("defense", "options", "needed"),
    [
        (Defense((TwoReferences(), TwoReferences()), Mean()), {}, "at most one filter that keeps a running mean"),
        (Defense((CosDefense(),), TaperedMean()), {}, "others compare updates"),
        (get("two-references"), {"clip": None}, "must not be None"),
    ],
)
def test_what_secure_refuses(defense: Defense, options: dict[str, Any], needed: str) -> None:
    with pytest.raises(ValueError, match=needed):
        Secure(defense, **options)


def test_files_name_it_and_describe_gives_it_back() -> None:
    for secure in (True, "plain", {"clip": 2.0, "colluders": 0.3}):
        defense = build_defense({"name": "two-references", "tolerance": 0.5, "secure": secure})
        assert isinstance(defense, Secure)
        assert build_defense(describe(defense)) == defense


@pytest.mark.slow
def test_the_contract_of_defenses_holds() -> None:
    check_defense(Secure(get("two-references"), smallest=3).plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two-references", "opposed-clusters"])
@pytest.mark.parametrize("attack", ["none", "inner-product"])
def test_recorded_runs_are_those_of_the_twin(attack: str, name: str, tmp_path: Path) -> None:
    """With a model of 5,000 coordinates, so that updates are projected. Attackers rehearse on the twin."""
    rounds, kept = 100 if THOROUGH else 5, []
    for secure in (True, "plain"):
        cell = from_table(
            {
                "name": "secure",
                "data": {"dataset": "digits", "clients": 20},
                "model": {"name": "mlp", "hidden": 67},
                "training": {"rounds": rounds, "sampled": 8, "batch": 4, "lr": 0.1, "evaluate_every": 100},
                "attacks": [{"name": attack}],
                "defenses": [{"name": name, "secure": secure}],
            }
        )
        folder = cell.folder(tmp_path)
        run(cell, folder, load_data("digits"), torch.device("cpu"))
        kept.append([replace(record, seconds={}, peak_memory={}) for record in read_run(folder).rounds])
    assert len(kept[0]) == rounds
    assert repr(kept[0]) == repr(kept[1])
