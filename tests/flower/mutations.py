"""Random changes to the bytes, numbers and names of honest replies: `python tests/flower/mutations.py [count] [seed]`.

Prints how many replies were rejected for which reason, and how much memory the check of one reply took.
"""

from __future__ import annotations

import logging
import random
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from federations import model, reply, send_round, to_arrays, trained
from flwr.app import Array, Message, MetricRecord, RecordDict
from malformed import TARGET, honest_body, with_header
from strategies import STRATEGIES

from cosdefense.filters import Clip
from cosdefense.flower import Defended
from cosdefense.flower.arrays import NDArray, get_specs
from cosdefense.flower.reply_checks import Request, check_replies
from cosdefense.flower.sent_model import SentModel
from cosdefense.flower.strategy_inputs import StrategyMetrics

NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    250,
    -250,
    1e9,
    1e300,
    -1e300,
    float("nan"),
    float("inf"),
    10**18,
    True,
    [],
    [1.0],
    [1, 2],
    5e-324,
)
TEXTS = ("", "float32", "float64", "int64", ">f4", "O", "numpy.ndarray", "pickle", "\n", "é" * 50)


def flip(data: bytes, generator: random.Random, within: int) -> bytes:
    """Change one to eight bits, or remove or insert bytes, within the first bytes: that is where headers are."""
    changed = bytearray(data)
    for _ in range(generator.randint(1, 8)):
        place = generator.randrange(max(1, min(within, len(changed))))
        match generator.randrange(6):
            case 0 if changed:
                del changed[place : place + generator.randint(1, 9)]
            case 1:
                changed[place:place] = generator.randbytes(generator.randint(1, 9))
            case _ if place < len(changed):
                changed[place] ^= 1 << generator.randrange(8)
    return bytes(changed)


PARTS = ("3", "6", "(3, 6)", "(3, 6), ", "'<f4'", "False", "'shape'", "{", "}", ", ", ": ", " ")
REPLACEMENTS = (
    "3.0", "3+0j", "0x3", "0b11", "3_0", "True", "False", "None", "-3", "+3", "3L", "(3,6)", "[3, 6]", "(3, 6,)",
    "(6, 3)", "'f4'", "'<f4'", "b'<f4'", "'<f4' ", "'>f4'", "'=f4'", "'float32'", "(('<f4'))", "[('a', '<f4')]",
    '"<f4"', "r'<f4'", "'shape'", "'Shape'", "u'shape'", "\t", "\n", "\x0b", "\x0c", "\x1f", "\x00", "\xa0", "\\",
    "#", ";", "", " ", "  ", ",",
)  # fmt: skip


def mutate_header(generator: random.Random) -> str:
    """An npy header of 3 × 6 numbers with up to three changes: characters, or parts that Python may take as equal."""
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 6), }" + " " * generator.randrange(60) + "\n"
    if generator.random() < 0.3:
        text = text.replace("False", "True")
    for _ in range(generator.randrange(4)):
        place, new = generator.randrange(len(text) + 1), generator.choice(REPLACEMENTS)
        match generator.randrange(6):
            case 0:
                text = text[:place] + new + text[place:]
            case 1:
                text = text[:place] + chr(generator.randrange(256)) + text[place + 1 :]
            case 2:
                text = new + text
            case 3:
                text = text + new
            case _:
                text = text.replace(generator.choice(PARTS), new, 1)
    return text


def mutate_array(body: RecordDict, generator: random.Random) -> None:
    arrays = body.array_records["arrays"]
    name = generator.choice(list(arrays))
    old = arrays[name]
    arrays[name] = Array(old.dtype, old.shape, old.stype, flip(old.data, generator, generator.choice((128, 10**9))))


def mutate_array_header(body: RecordDict, generator: random.Random) -> None:
    arrays = body.array_records["arrays"]
    arrays[TARGET] = with_header(mutate_header(generator), arrays[TARGET].numpy())


def mutate_array_metadata(body: RecordDict, generator: random.Random) -> None:
    arrays = body.array_records["arrays"]
    name = generator.choice(list(arrays))
    old, field = arrays[name], generator.randrange(3)
    shape = tuple(generator.choice((0, 1, 3, -1, 2**40)) for _ in range(generator.randrange(4)))
    arrays[name] = Array(
        generator.choice(TEXTS) if field == 0 else old.dtype,
        shape if field == 1 else old.shape,
        generator.choice(TEXTS) if field == 2 else old.stype,
        old.data,
    )


def mutate_metrics(body: RecordDict, generator: random.Random) -> None:
    values = body.metric_records["metrics"].__dict__["_data"]
    values[generator.choice([*values, *TEXTS])] = generator.choice(NUMBERS)


def mutate_records(body: RecordDict, generator: random.Random) -> None:
    name = generator.choice(["arrays", "metrics"])
    match generator.randrange(3):
        case 0:
            del body[name]
        case 1:
            body[generator.choice(TEXTS)] = MetricRecord({"a": 1.0})
        case _:
            record: Any = body[name]
            record[generator.choice(TEXTS)] = record.pop(next(iter(record)))


MUTATIONS: tuple[Callable[[RecordDict, random.Random], None], ...] = (
    mutate_array, mutate_array, mutate_array, mutate_array_header,
    mutate_array_metadata, mutate_metrics, mutate_records,
)  # fmt: skip


def mutate(message: Message, arrays: dict[str, NDArray], generator: random.Random) -> Message:
    body = honest_body(arrays)
    generator.choice(MUTATIONS)(body, generator)
    if generator.random() < 0.1:
        field = generator.choice(["src_node_id", "reply_to_message_id"])
        changes: dict[str, Any] = {field: generator.choice([0, 1, 2**64 - 1]) if "node" in field else "x"}
        return reply(message, body, **changes)
    return reply(message, body)


def run_rounds(count: int, seed: int) -> Counter[str]:
    """Count the outcomes of mutated replies, eight per round, with three strategies in turn.

    Fails if a model is not finite or changes its shape, or if a round is skipped although a reply was accepted.
    """
    generator, start, outcomes = random.Random(seed), model(), Counter[str]()
    honest = [trained(start, node) for node in range(8)]
    specs = get_specs(start)
    names = ("FedAvg", "QFedAvg", "FedTrimmedAvg")
    for number in range(-(-count // 8)):
        defended = Defended(STRATEGIES[names[number % 3]](), Clip(1e9), quorum=1, seed=seed)
        messages = send_round(defended, start)
        replies = [mutate(m, arrays, generator) for m, arrays in zip(messages, honest, strict=True)]
        result, metrics = defended.aggregate_train(1, replies)
        assert metrics is not None
        assert defended.record is not None
        outcomes.update(reason or "accepted" for reason in defended.record.reasons)
        if result is None:
            assert None not in defended.record.reasons, defended.record.skipped
        else:
            assert get_specs(to_arrays(result)) == specs
            assert all(np.isfinite(values).all() for values in to_arrays(result).values())
    return outcomes


def measure_memory(count: int, seed: int, n_numbers: int = 2**20) -> float:
    """The peak memory of the check of one mutated reply, as a multiple of the size of the model."""
    generator, worst = random.Random(seed), 0.0
    big = {"body.weight": np.ones((1024, n_numbers // 1024), np.float32), TARGET: np.ones((3, 6), np.float32)}
    sent = SentModel.of(big)
    message = send_round(Defended(STRATEGIES["FedAvg"](), Clip(1e9), seed=seed), big)[0]
    request = Request.of([message], sent, StrategyMetrics("num-examples"))
    for _ in range(count):
        bad = mutate(message, big, generator)
        tracemalloc.start()
        check_replies([bad], request)
        worst = max(worst, tracemalloc.get_traced_memory()[1] / sum(spec.n_bytes for spec in sent.specs.values()))
        tracemalloc.stop()
    return worst


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    count, seed = (int(text) for text in (*sys.argv[1:], "10000", "1")[:2])
    counts = run_rounds(count, seed)
    lines = [f"seed {seed}: {counts.total()} mutated replies, 0 crashes, 0 models that are not finite"]
    lines += [f"  {reason}: {times}" for reason, times in counts.most_common()]
    lines.append(f"most memory for one reply: {measure_memory(200, seed):.2f} of a model of 4 MiB")
    sys.stdout.write("\n".join(lines) + "\n")
