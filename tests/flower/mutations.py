"""Honest replies with bytes, numbers or names changed at random: `python tests/flower/mutations.py [count] [seed]`.

Prints how many were tried, how many of them were refused and why, and how much memory it took to look at one.
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
from federations import arrays_of, asked, model, reply, trained
from flwr.app import Array, Message, MetricRecord, RecordDict
from malformed import honest_body
from strategies import STRATEGIES

from cosdefense.filters import Clip
from cosdefense.flower import Defended
from cosdefense.flower.arrays import Form, NDArray, forms_of
from cosdefense.flower.guard import inspect, question_of

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


def flipped(data: bytes, generator: random.Random, within: int) -> bytes:
    """One to eight bits changed, or bytes cut out or put in, near the beginning: that is where headers are."""
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


def array(body: RecordDict, generator: random.Random) -> None:
    arrays = body.array_records["arrays"]
    name = generator.choice(list(arrays))
    old = arrays[name]
    arrays[name] = Array(old.dtype, old.shape, old.stype, flipped(old.data, generator, generator.choice((128, 10**9))))


def claims(body: RecordDict, generator: random.Random) -> None:
    arrays = body.array_records["arrays"]
    name = generator.choice(list(arrays))
    old, claim = arrays[name], generator.randrange(3)
    shape = tuple(generator.choice((0, 1, 3, -1, 2**40)) for _ in range(generator.randrange(4)))
    arrays[name] = Array(
        generator.choice(TEXTS) if claim == 0 else old.dtype,
        shape if claim == 1 else old.shape,
        generator.choice(TEXTS) if claim == 2 else old.stype,
        old.data,
    )


def metrics(body: RecordDict, generator: random.Random) -> None:
    known = body.metric_records["metrics"].__dict__["_data"]
    known[generator.choice([*known, *TEXTS])] = generator.choice(NUMBERS)


def records(body: RecordDict, generator: random.Random) -> None:
    name = generator.choice(["arrays", "metrics"])
    match generator.randrange(3):
        case 0:
            del body[name]
        case 1:
            body[generator.choice(TEXTS)] = MetricRecord({"a": 1.0})
        case _:
            found: Any = body[name]
            found[generator.choice(TEXTS)] = found.pop(next(iter(found)))


MUTATIONS: tuple[Callable[[RecordDict, random.Random], None], ...] = (array, array, array, claims, metrics, records)


def mutated(message: Message, arrays: dict[str, NDArray], generator: random.Random) -> Message:
    body = honest_body(arrays)
    generator.choice(MUTATIONS)(body, generator)
    if generator.random() < 0.1:
        field = generator.choice(["src_node_id", "reply_to_message_id"])
        changes: dict[str, Any] = {field: generator.choice([0, 1, 2**64 - 1]) if "node" in field else "x"}
        return reply(message, body, **changes)
    return reply(message, body)


def rounds(count: int, seed: int) -> Counter[str]:
    """Eight mutated replies a round; what became of them. Raises if a model is not finite, or changes its form."""
    generator, start, found = random.Random(seed), model(), Counter[str]()
    honest = [trained(start, node) for node in range(8)]
    forms = forms_of(start)
    defended = Defended(STRATEGIES["FedAvg"](), Clip(1e9), quorum=1, seed=seed)
    messages = asked(defended, start)
    for _ in range(-(-count // 8)):
        replies = [mutated(m, arrays, generator) for m, arrays in zip(messages, honest, strict=True)]
        result, told = defended.aggregate_train(1, replies)
        assert told is not None
        assert defended.record is not None
        found.update(reason or "accepted" for reason in defended.record.reasons)
        if result is not None:
            assert forms_of(arrays_of(result)) == forms
            assert all(np.isfinite(values).all() for values in arrays_of(result).values())
    return found


def memory(count: int, seed: int, n_numbers: int = 2**20) -> float:
    """The most memory that looking at one mutated reply took, in sizes of the model."""
    generator, worst = random.Random(seed), 0.0
    big = {"body": np.ones((1024, n_numbers // 1024), np.float32), "head": np.ones((10, 10), np.float32)}
    forms: dict[str, Form] = forms_of(big)
    message = asked(Defended(STRATEGIES["FedAvg"](), Clip(1e9), seed=seed), big)[0]
    question = question_of([message], forms, "num-examples")
    for _ in range(count):
        bad = mutated(message, big, generator)
        tracemalloc.start()
        inspect([bad], question)
        worst = max(worst, tracemalloc.get_traced_memory()[1] / sum(form.n_bytes for form in forms.values()))
        tracemalloc.stop()
    return worst


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    wanted, chosen = (int(text) for text in (*sys.argv[1:], "10000", "1")[:2])
    became = rounds(wanted, chosen)
    lines = [f"seed {chosen}: {became.total()} mutated replies, 0 crashes, 0 models that are not finite"]
    lines += [f"  {reason}: {times}" for reason, times in became.most_common()]
    lines.append(f"most memory for one reply: {memory(200, chosen):.2f} of a model of 4 MiB")
    sys.stdout.write("\n".join(lines) + "\n")
