"""Random changes to honest replies: some hundreds here, ten thousand with `python tests/flower/mutations.py`."""

from __future__ import annotations

import hypothesis.strategies as draw
import numpy as np
from federations import model, reply, send_round, trained
from flwr.app import Array
from hypothesis import given, settings
from malformed import TARGET, honest_body
from mutations import measure_memory, run_rounds
from strategies import STRATEGIES

from cosdefense.filters import Clip
from cosdefense.flower import Defended
from cosdefense.flower.arrays import ArraySpec, read_array
from cosdefense.flower.reasons import BadReply

SEED = 20


def test_mutated_replies_neither_crash_a_round_nor_damage_the_model() -> None:
    outcomes = run_rounds(800, SEED)  # any failure repeats with this seed
    assert outcomes.total() == 800
    assert len(outcomes) >= 8  # mutations that reach many checks, and some that are harmless
    assert outcomes["accepted"] > 0


def test_checking_a_reply_takes_less_than_two_models_of_memory() -> None:
    assert measure_memory(20, SEED) < 2


@settings(max_examples=300)
@given(header=draw.binary(max_size=200), rest=draw.binary(max_size=80))
def test_any_bytes_are_a_valid_array_or_rejected(header: bytes, rest: bytes) -> None:
    spec = ArraySpec((3, 6), np.dtype(np.float32))
    for data in (header + rest, b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + rest):
        try:
            values = read_array(Array("float32", (3, 6), "numpy.ndarray", data), spec, "x")
        except BadReply:
            continue
        assert values.shape == (3, 6)
        assert np.isfinite(values).all()


@settings(max_examples=50)
@given(number=draw.one_of(draw.floats(width=32), draw.integers(-(2**62), 2**62)), place=draw.integers(0, 7))
def test_any_number_of_examples_leaves_the_model_finite(number: float, place: int) -> None:
    start = model()
    defended = Defended(STRATEGIES["FedAvg"](), Clip(1e9), seed=SEED, weigh_by_examples=True)
    messages = send_round(defended, start)
    replies = [reply(m, honest_body(trained(start, k))) for k, m in enumerate(messages)]
    replies[place].content.metric_records["metrics"]["num-examples"] = number
    arrays, _ = defended.aggregate_train(1, replies)
    assert arrays is not None
    assert np.isfinite(arrays[TARGET].numpy()).all()
