"""Metrics against hand-counted rounds, and against scikit-learn's ROC."""

from __future__ import annotations

import random

import pytest

from cosdefense.runs.metrics import Detection, area_under_roc, final_accuracy, summarize, summary_of, tail_mean
from cosdefense.runs.records import RoundRecord, RunRecord


def record(number: int, weights: list[float], malicious: list[int], **more: object) -> RoundRecord:
    clients = tuple(range(len(weights)))
    more = {"scores": {"Krum": (0.5,) * len(weights)}, **more}
    return RoundRecord(number, clients, tuple(map(float, weights)), tuple(map(bool, malicious)), **more)  # type: ignore[arg-type]


ROUNDS = [
    record(0, [0, 0, 1, 1], [1, 1, 1, 0], defended=False),  # before the defense was on: not counted
    record(1, [0, 0, 1, 1], [1, 0, 0, 0]),
    record(2, [0, 1, 0.5, 1], [1, 1, 0, 0]),
    record(3, [0, 1, 1, 1], [0, 0, 0, 0]),
]


def test_detection() -> None:
    found = Detection.of(ROUNDS)
    assert found == Detection(
        malicious_rejected=2, malicious_accepted=1, honest_rejected=2, honest_accepted=7,
        clean_honest_rejected=1, clean_honest_accepted=3,
    )  # fmt: skip
    assert found.recall == 2 / 3
    assert found.precision == 2 / 4
    assert found.false_positive_rate == 2 / 9
    assert found.clean_false_positive_rate == 1 / 4


def test_only_what_a_filter_judged_counts() -> None:
    """Without a filter, or not finite: rejected at the door, which tells nothing about a filter."""
    assert Detection.of([record(0, [0, 0, 1], [1, 0, 0], scores={})]) == Detection(0, 0, 0, 0, 0, 0)
    half = record(0, [0, 0, 1], [1, 0, 0], scores={"Krum": (None, 0.3, 0.1), "Clip": (None, None, 0.1)})
    assert Detection.of([half]) == Detection(0, 0, 1, 1, 0, 0)


def test_nothing_known_is_none_not_zero() -> None:
    found = Detection.of([RoundRecord(0, (1, 2), (0.0, 1.0))])
    assert found.recall is found.precision is found.false_positive_rate is None
    assert area_under_roc(ROUNDS, "Clip") is None
    assert tail_mean([]) is None


def test_area_under_roc_in_one_round_is_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    draw = random.Random(0)
    for _ in range(20):
        malicious = [1, 0, *(draw.randrange(2) for _ in range(8))]
        scores = [draw.randrange(5) / 4 for _ in malicious]  # with ties
        only = record(0, [1.0] * 10, malicious, scores={"Krum": tuple(scores)})
        assert area_under_roc([only], "Krum") == pytest.approx(metrics.roc_auc_score(malicious, scores))


def test_area_under_roc_compares_within_rounds_only() -> None:
    rounds = [
        record(0, [1, 1], [1, 0], scores={"Krum": (100.0, 50.0)}),
        record(1, [1, 1, 1], [1, 0, 0], scores={"Krum": (2.0, 1.0, None)}),  # on another scale
    ]
    assert area_under_roc(rounds, "Krum") == 1.0


def test_tail() -> None:
    rounds = [RoundRecord(i, (), (), accuracy=float(i) if i % 5 == 4 else None) for i in range(100)]
    assert tail_mean(rounds) == (94 + 99) / 2
    assert final_accuracy(rounds) == 99
    assert tail_mean(rounds[:8]) == 4  # no evaluation in the last tenth: the last there is


def test_accuracy_with_batch_statistics_is_summed_up_like_the_other() -> None:
    rounds = [RoundRecord(i, (), (), accuracy=0.5, batch_statistics_accuracy=i / 100) for i in range(100)]
    found = summarize(rounds)
    assert found["batch_statistics_accuracy"] == 0.99
    assert found["batch_statistics_tail"] == pytest.approx(0.945)
    unmeasured = summarize([RoundRecord(0, (), (), accuracy=0.5)])
    assert unmeasured["batch_statistics_accuracy"] is unmeasured["batch_statistics_tail"] is None


def test_a_finished_run_is_believed_and_an_unfinished_one_counted() -> None:
    run = RunRecord({}, tuple(ROUNDS), {"malicious_rejected": 0.9})
    assert summary_of(run) == {"malicious_rejected": 0.9}
    assert summary_of(RunRecord({}, tuple(ROUNDS))) == summarize(ROUNDS)


def test_summary() -> None:
    rounds = [
        record(
            0, [1, 0], [0, 1], scores={"Krum": (0.1, 0.9)}, accuracy=0.5, attack_success=0.2, seconds={"train": 1.5}
        ),
        record(
            1,
            [1, 1],
            [0, 1],
            scores={"Krum": (0.1, 0.9)},
            accuracy=0.7,
            seconds={"train": 2.0},
            peak_memory={"train": 9},
        ),
        record(2, [0, 0], [0, 1], skipped="every client was rejected"),
    ]
    found = summarize(rounds)
    assert found["final_accuracy"] == 0.7
    assert found["malicious_rejected"] == 2 / 3
    assert found["honest_rejected"] == 1 / 3
    assert found["attack_success"] == 0.2
    assert found["area_under_roc"] == {"Krum": 5 / 6}
    assert found["skipped_rounds"] == 1
    assert found["seconds"] == {"train": 3.5}
    assert found["peak_memory"] == {"train": 9}


def test_the_worst_class_is_that_of_the_last_evaluation() -> None:
    recalls = [(0.1, 0.9), (0.8, None, 0.7), ()]
    rounds = [record(number, [1.0], [0], class_recalls=found) for number, found in enumerate(recalls)]
    assert summarize(rounds)["worst_class"] == 0.7
    assert summarize(rounds[2:])["worst_class"] is None


def test_how_long_success_lasts_after_the_attack() -> None:
    """The attack stops before round 10. Success is measured every fifth round."""
    measured = {4: 0.6, 9: 0.9, 14: 0.8, 19: 0.5, 24: 0.4, 29: 0.7}
    rounds = [record(n, [1.0], [0], attack_success=measured.get(n)) for n in range(30)]
    found = summarize(rounds, attack_stop=10)
    assert found["success_at_stop"] == 0.9
    assert found["success_lifespan"] == 10  # rounds 10 to 19; that it rises again later does not count
    assert summarize(rounds[:20], attack_stop=10)["success_lifespan"] == 10  # all that were watched
    assert summarize(rounds, attack_stop=20)["success_lifespan"] == 0
    assert summarize(rounds[:10], attack_stop=10)["success_lifespan"] is None
    assert summarize(rounds)["success_lifespan"] is summarize(rounds)["success_at_stop"] is None
    untargeted = [record(n, [1.0], [0], accuracy=0.5) for n in range(4)]
    assert summarize(untargeted, attack_stop=2)["success_lifespan"] is None


def test_the_stop_is_read_from_the_header() -> None:
    rounds = tuple(record(n, [1.0], [0], attack_success=0.9) for n in range(6))
    header = {"experiment": {"schedule": {"attack_stop": 2}}}
    assert summary_of(RunRecord(header, rounds))["success_lifespan"] == 4
    never = {"experiment": {"schedule": {"attack_stop": "none"}}}
    assert summary_of(RunRecord(never, rounds))["success_lifespan"] is None
