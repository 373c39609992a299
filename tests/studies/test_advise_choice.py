"""Which defense is recommended for given numbers, how large a tournament fits, and what is printed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cosdefense
from cosdefense.catalog.options import ConfigError
from cosdefense.catalog.registry import build_defense
from cosdefense.data import split_dataset
from cosdefense.runs.data_section import Data
from cosdefense.runs.experiment import Experiment, Training
from cosdefense.runs.records import RunRecord
from cosdefense.studies.advise.advice import explain, write_flower_lines
from cosdefense.studies.advise.budget import Costs, Size, minutes_for_all, plan_size
from cosdefense.studies.advise.choice import choose, list_broken, list_survived, list_weakened
from cosdefense.studies.advise.measured import Client, Outcome, collect_outcomes, measure_constant
from cosdefense.training.metrics import METRICS, make_metric


def outcome(label: str, clean: float, *attacked: float, **others: Any) -> Outcome:
    """Kept without an attack, and under each attack."""
    kept = {"none": clean} | {f"attack {number}": share for number, share in enumerate(attacked)}
    return Outcome(label, kept, kept, **others)


REFERENCE = outcome("fedavg", 1.0, 0.2, 0.9, worst_served=Client("north", 0.9))


def test_the_best_worst_case_wins() -> None:
    choice = choose(
        [REFERENCE, outcome("a", 0.99, 0.7, 0.99), outcome("b", 0.95, 0.8, 0.8), outcome("c", 1.0, 0.6, 1.0)]
    )
    assert choice.recommended is not None
    assert choice.recommended.label == "b"
    assert choice.gain == pytest.approx(0.6)
    assert len(explain(choice)) == 3
    assert "b keeps 80%" in explain(choice)[0]
    assert "plain averaging keeps 20% (attack 0)" in explain(choice)[0]


def test_five_points_are_a_tie_which_the_mean_decides_then_rejections_then_the_order() -> None:
    better_mean = [REFERENCE, outcome("a", 1.0, 0.80, 0.80), outcome("b", 1.0, 0.76, 0.99)]
    assert choose(better_mean).best is better_mean[2]
    fewer_rejected = [
        REFERENCE,
        outcome("a", 1.0, 0.8, 0.8, honest_rejected=0.2),
        outcome("b", 1.0, 0.8, 0.8, honest_rejected=0.1),
    ]
    assert choose(fewer_rejected).best is fewer_rejected[2]
    same = [REFERENCE, outcome("a", 1.0, 0.8, 0.8), outcome("b", 1.0, 0.8, 0.8)]
    assert choose(same).best is same[1]


@pytest.mark.parametrize(
    ("costly", "reason"),
    [
        (outcome("a", 0.89, 1.0, 1.0), "keeps 89% of what training gains"),
        (
            outcome("a", 1.0, 1.0, 1.0, most_rejected=Client("south", 0.51, "rejected")),
            "rejects south in 51% of its rounds",
        ),
        (outcome("a", 1.0, 1.0, 1.0, worst_served=Client("west", 0.69)), "west has an accuracy of 69.0%"),
    ],
)
def test_what_costs_too_much_without_an_attack_is_not_recommended(costly: Outcome, reason: str) -> None:
    cheap = outcome(
        "b", 0.9, 0.4, 0.9, most_rejected=Client("south", 0.5, "rejected"), worst_served=Client("west", 0.71)
    )
    choice = choose([REFERENCE, costly, cheap])
    assert choice.recommended is cheap
    ((refused, why),) = choice.refused
    assert refused is costly
    assert reason in why
    alone = choose([REFERENCE, costly])
    assert alone.recommended is None
    assert alone.best is None
    assert len(explain(alone)) == 3
    assert "All 1 defenses that were tried cost too much" in explain(alone)[1]


def test_eleven_points_more_are_worth_it_and_nine_are_not() -> None:
    assert choose([REFERENCE, outcome("a", 1.0, 0.31, 0.9)]).recommended is not None
    choice = choose([REFERENCE, outcome("a", 1.0, 0.29, 0.9)])
    assert choice.recommended is None
    assert choice.best is not None
    assert "no defense is worth its cost here" in explain(choice)[1]
    assert len(explain(choice)) == 3


def test_every_attack_is_survived_weakening_or_breaking() -> None:
    one = outcome("a", 1.0, 0.8, 0.79, 0.5, 0.49)
    assert list_survived(one) == ["attack 0"]
    assert list_weakened(one) == ["attack 1", "attack 2"]
    assert list_broken(one) == ["attack 3"]


seconds = st.floats(1e-4, 0.5)


@given(
    costs=st.builds(Costs, seconds, seconds, seconds, st.lists(seconds, min_size=2, max_size=10).map(tuple)),
    minutes=st.floats(0.01, 60),
    n_attacks=st.integers(2, 8),
    rounds=st.integers(1, 500),
    n_seeds=st.integers(1, 3),
)
def test_a_plan_fits_into_the_time_or_the_error_says_which_time_is_long_enough(
    costs: Costs, minutes: float, n_attacks: int, rounds: int, n_seeds: int
) -> None:
    try:
        size = plan_size(60 * minutes, costs, n_attacks, rounds, n_seeds)
    except ConfigError as error:
        needed = float(str(error).removeprefix("--minutes must be at least ").split()[0])
        assert needed > minutes
        size, minutes = plan_size(60 * needed, costs, n_attacks, rounds, n_seeds), needed
    assert estimate_slowly(size, costs) <= 0.9 * 60 * minutes * (1 + 1e-9)
    assert 2 <= size.n_defenses <= len(costs.defenses)
    assert 2 <= size.n_attacks <= n_attacks
    assert min(5, rounds) <= size.rounds <= rounds
    assert 1 <= size.n_seeds <= n_seeds
    everything = plan_size(60 * minutes_for_all(costs, n_attacks, rounds), costs, n_attacks, rounds, 1)
    assert everything == Size(len(costs.defenses), n_attacks, rounds)


def estimate_slowly(size: Size, costs: Costs) -> float:
    total = 0.0
    for defense in costs.defenses[: size.n_defenses]:
        for _ in range(size.n_attacks * size.n_seeds):
            evaluations = size.rounds / max(1, size.rounds // 20)
            total += costs.start + size.rounds * (costs.round + defense) + evaluations * costs.evaluation
    return total


def run_of(defense: str, attack: str, seed: int = 0, **summary: Any) -> RunRecord:
    header = {"defense": defense, "attack": attack, "seed": seed, "clients": ["north", "south"]}
    return RunRecord(header, (), summary)


def test_the_scale_is_the_same_for_metrics_of_which_less_is_better() -> None:
    """By hand: a constant answer has 2, plain averaging 1 without an attack; 1.25 keeps three quarters of the gain."""
    mse = make_metric("mse", METRICS["mse"])
    values = {("fedavg", "none"): 1.0, ("fedavg", "x"): 1e9, ("median", "none"): 1.25, ("median", "x"): math.nan}
    runs = [run_of(*key, tail_metrics={"mse": value}) for key, value in values.items()]
    fedavg, median = collect_outcomes(runs, mse, 2.0)
    assert fedavg.kept == {"none": 1.0, "x": 0.0}
    assert median.kept == {"none": 0.75, "x": 0.0}  # a model that is not a number is as good as a constant answer
    assert median.values["x"] == 2.0


def test_seeds_are_averaged_and_unfinished_defenses_left_out() -> None:
    accuracy = make_metric("accuracy", METRICS["accuracy"])
    runs = [
        run_of("fedavg", "none", 0, tail_accuracy=0.9),
        run_of("fedavg", "none", 1, tail_accuracy=0.7),
        run_of("fedavg", "x", 0, tail_accuracy=0.5),
        run_of("fedavg", "x", 1, tail_accuracy=0.3, attack_success=0.5, clean_target_rate=0.1),
        run_of("median", "none", 0, tail_accuracy=0.9),  # its other runs were not finished
    ]
    (fedavg,) = collect_outcomes(runs, accuracy, 0.2)
    assert fedavg.values == pytest.approx({"none": 0.8, "x": 0.4})
    assert fedavg.kept == pytest.approx({"none": 1.0, "x": 0.2 / 0.6})
    assert fedavg.backdoors == pytest.approx({"x": 0.2})


def test_a_backdoor_that_works_is_harm_although_the_accuracy_is_good() -> None:
    accuracy = make_metric("accuracy", METRICS["accuracy"])
    runs = [
        run_of("fedavg", "none", tail_accuracy=0.9),
        run_of("fedavg", "backdoor", tail_accuracy=0.9, attack_success=0.95, clean_target_rate=0.05),
    ]
    (fedavg,) = collect_outcomes(runs, accuracy, 0.1)
    assert fedavg.kept["backdoor"] == pytest.approx(0.1)


def test_clients_of_an_outcome_are_the_most_rejected_and_the_worst_served() -> None:
    accuracy, mse = make_metric("accuracy", METRICS["accuracy"]), make_metric("mse", METRICS["mse"])
    summary: dict[str, Any] = {
        "tail_accuracy": 0.9, "honest_rejected": 0.3, "most_rejected_client": {"client": 1, "rejected": 0.6},
        "worst_client": {"client": 0, "accuracy": 0.7, "loss": 3.0},
    }  # fmt: skip
    (one,) = collect_outcomes([run_of("a", "none", **summary)], accuracy, 0.1)
    assert (one.honest_rejected, one.most_rejected) == (0.3, Client("south", 0.6, "rejected"))
    assert one.worst_served == Client("north", 0.7)
    values = [
        run_of("a", "none", seed, tail_metrics={"mse": 1.0}, worst_client={"client": seed, "loss": loss})
        for seed, loss in enumerate((2.0, 4.0))
    ]
    (one,) = collect_outcomes(values, mse, 2.0)
    assert one.worst_served == Client("south", 4.0, "loss")


@pytest.mark.parametrize("loss", ["cross-entropy", "binary-cross-entropy"])
def test_the_constant_answer_of_two_classes_is_the_more_frequent_one(loss: str) -> None:
    labels = (torch.arange(100) % 4 == 0).long()  # a quarter
    dataset = split_dataset("mine", torch.randn(100, 3), labels, classes=("no", "yes"))
    experiment = Experiment(
        "mine", Data.of(dataset, clients=4), (("name", "mlp"), ("hidden", 4)), Training(sampled=4, loss=loss)
    )
    frequent = float((dataset.test_targets == 0).float().mean())
    assert measure_constant(experiment, dataset, make_metric("accuracy", METRICS["accuracy"])) == pytest.approx(
        frequent
    )
    assert measure_constant(experiment, dataset, make_metric("auroc", METRICS["auroc"])) == pytest.approx(0.5)


def test_the_constant_answer_of_values_is_their_mean() -> None:
    dataset = split_dataset("mine", torch.randn(80, 3), torch.randn(80) + 5)
    experiment = Experiment("mine", Data.of(dataset, clients=4), (("name", "mlp"), ("hidden", 4)), Training(sampled=4))
    expected = ((dataset.test_targets - dataset.train_targets.mean()) ** 2).mean()
    assert measure_constant(experiment, dataset, make_metric("mse", METRICS["mse"])) == pytest.approx(float(expected))


@pytest.mark.parametrize(
    "table",
    [
        {"name": "median"},
        {"name": "multi-krum", "contamination": 0.2},
        {"label": "clipped", "name": "norm-clipping", "max_norm": "median"},
        {"filters": [{"name": "clip", "max_norm": 2.0}], "aggregator": {"name": "median"}},
        {"name": "fltrust"},
        {"name": "centered-clipping"},
    ],
    ids=lambda table: table.get("name", "parts"),
)
def test_the_lines_for_a_flower_server_run_and_build_the_same_defense(table: dict[str, Any]) -> None:
    pytest.importorskip("flwr")
    experiment = Experiment("mine", Data(clients=40), training=Training(sampled=10, weighting="samples"))
    names = {"my_data": cosdefense.TrustedData()}
    exec("\n".join(write_flower_lines(table, experiment)), names)
    strategy: Any = names["strategy"]
    defense = build_defense({key: value for key, value in table.items() if key != "label"})
    assert strategy.defense == replace(defense, hooks=())
    assert strategy.weigh_by_examples
    assert strategy.strategy.fraction_train == 0.25
    assert (strategy.trusted_data is not None) == (table.get("name") == "fltrust")


def test_a_part_beside_the_file_is_named_as_the_file_does(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from cosdefense.filters import Clip as Mine\n")
    experiment = Experiment("mine", Data(clients=5), training=Training(sampled=5), source=tmp_path)
    lines = write_flower_lines({"filters": [{"name": "mine:Mine", "max_norm": 2.0}]}, experiment)
    rule = "cosdefense.catalog.registry.build_defense({'filters': [{'name': 'mine:Mine', 'max_norm': 2.0}]})"
    assert lines[-1] == f"strategy = Defended(FedAvg(), {rule})"


def test_everybody_takes_part_and_counts_the_same_unless_the_file_says_otherwise() -> None:
    experiment = Experiment("mine", Data(clients=5), training=Training(sampled=5))
    lines = write_flower_lines({"name": "median"}, experiment)
    assert lines[-1] == 'strategy = Defended(FedAvg(), cosdefense.get("median"))'
