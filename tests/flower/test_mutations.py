"""Random changes to honest replies: 800 of them, 24,000 if COSDEFENSE_THOROUGH is set."""

from __future__ import annotations

import io
import os
import random
import tokenize
import warnings
from collections import Counter

import hypothesis.strategies as draw
import numpy as np
import pytest
from federations import model, reply, send_round, trained
from flwr.app import Array
from hypothesis import given, settings
from malformed import TARGET, honest_body, npy, with_header
from mutations import measure_memory, mutate_header, run_rounds
from strategies import STRATEGIES

from cosdefense.filters import Clip
from cosdefense.flower import Defended
from cosdefense.flower.arrays import ArraySpec, NDArray, read_array
from cosdefense.flower.reasons import BadReply

SEED = 20
THOROUGH = bool(os.environ.get("COSDEFENSE_THOROUGH"))
N_REPLIES, N_HEADERS = (24_000, 50_000) if THOROUGH else (800, 5_000)
VERSIONS = (b"\x01\x00", b"\x02\x00")  # of npy


@pytest.mark.slow
def test_mutated_replies_neither_crash_a_round_nor_damage_the_model() -> None:
    outcomes = run_rounds(N_REPLIES, SEED)  # any failure repeats with this seed
    assert outcomes.total() == N_REPLIES
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
            array = read_array(Array("float32", (3, 6), "numpy.ndarray", data), spec, "x")
        except BadReply:
            continue
        assert array.numpy().shape == spec.view(array).shape == (3, 6)


def load(data: bytes) -> NDArray | None:
    """What numpy reads; None where it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a header of Python 2
        try:
            return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
        except (ValueError, EOFError, OSError, tokenize.TokenError, MemoryError, SyntaxError, TypeError):
            return None


def test_what_is_accepted_numpy_reads_to_the_same_numbers() -> None:
    """Random changes to headers: numpy reads the same from what was received and from what is passed on."""
    generator, counts = random.Random(SEED), Counter[str]()
    numbers = np.arange(18, dtype=np.float32).reshape(3, 6)
    spec = ArraySpec(numbers.shape, numbers.dtype)
    for number in range(N_HEADERS):
        text = mutate_header(generator)
        received = with_header(text, numbers, VERSIONS[number % 2])
        try:
            array = read_array(received, spec, "x")
        except BadReply as bad:
            counts[bad.reason] += 1
            continue
        expected = load(received.data)
        assert expected is not None, text
        assert array.data == npy(np.ascontiguousarray(expected)), text
        assert np.array_equal(spec.view(array), expected), text
        counts["accepted"] += 1
    assert counts["accepted"] > N_HEADERS / 20  # neither all nor nothing
    assert len(counts) >= 4


def test_received_bytes_with_the_standard_header_are_not_copied() -> None:
    numbers = np.arange(18, dtype=np.float32).reshape(3, 6)
    sent, spec = Array(numbers), ArraySpec((3, 6), np.dtype(np.float32))
    assert read_array(sent, spec, "x").data is sent.data
    assert np.shares_memory(spec.view(sent), np.frombuffer(sent.data, np.uint8))


def test_a_strategy_may_compute_in_place_unless_arrays_are_shared() -> None:
    numbers = np.arange(18, dtype=np.float32).reshape(3, 6)
    array = read_array(Array(numbers), ArraySpec((3, 6), np.dtype(np.float32)), "x")
    own = array.numpy()
    own *= 2
    assert np.array_equal(array.numpy(), numbers)
    assert np.array_equal(np.load(io.BytesIO(array.data)), numbers)
    array.share()
    assert np.shares_memory(array.numpy(), np.frombuffer(array.data, np.uint8))
    assert not array.numpy().flags.writeable


@pytest.mark.slow
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
