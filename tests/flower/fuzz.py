"""A fuzzer of replies: `python tests/flower/fuzz.py [cases] [seed]`, 20,000 cases by default.

A case is a round of eight nodes, one of which is hostile, with a strategy and a defense drawn at random. The hostile
reply has a fault of the catalog, random changes of bytes, names and numbers, wild values, or several of these. Prints
how often it was rejected for which reason, and every case that breaks a promise.
"""

from __future__ import annotations

import copy
import functools
import logging
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from federations import model, reply, send_round, to_arrays, trained
from flwr.app import Array, Message, RecordDict
from malformed import CONTENTS, KINDS, honest_body, make_malformed
from mutations import MUTATIONS, NUMBERS
from strategies import STRATEGIES

from cosdefense import Defense, Filter
from cosdefense.aggregators import Bulyan, CenteredClipping, GeometricMedian, Mean, Median
from cosdefense.catalog.registry import PRESETS
from cosdefense.filters import RFFL, Clip, CosDefense, FoolsGold, Krum, MultiKrum, NormLimit, PCAClusters
from cosdefense.flower import Defended
from cosdefense.flower.arrays import get_specs

SEED = 11  # of the strategies
BATCH = 500  # cases, after which a line is printed
SLOW = ("a list of a million numbers",)  # it takes as long as a hundred other cases
FAULTS = [kind for kind in KINDS if kind not in SLOW]
MIXED = [kind for kind in CONTENTS if kind not in SLOW]
FACTORS = (0.0, -1.0, 1e-30, -5.0, 100.0, 1e6, 1e18, 1e30, -1e30)
SHIFTS = (1000.0, -1000.0, 1e30, 3e38, -3e38)
STRATEGY_NAMES = (
    "FedAvg", "FedAvgM", "FedAdam", "FedYogi", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan", "QFedAvg",
    "DP, fixed", "DP, adaptive",
)  # fmt: skip
DEFENSES: dict[str, Callable[[], Defense | Filter]] = {
    "Clip": lambda: Clip(1e9),
    "CosDefense": CosDefense,
    "Krum": Krum,
    "MultiKrum": MultiKrum,
    "FoolsGold": FoolsGold,
    "RFFL": lambda: RFFL(warm_up=1),
    "NormLimit": NormLimit,
    "PCAClusters": PCAClusters,
    "mean": lambda: Defense((), Mean()),
    "CosDefense + median": lambda: Defense((CosDefense(),), Median()),
    "geometric median": lambda: Defense((), GeometricMedian()),
    "centered clipping": lambda: Defense((), CenteredClipping()),
    "bulyan": lambda: Defense((), Bulyan()),
    "opposed-clusters": PRESETS["opposed-clusters"],
    "factions": PRESETS["factions"],
    "clipping-median": PRESETS["clipping-median"],
    "weak-dp": PRESETS["weak-dp"],
}


@dataclass(frozen=True)
class Case:
    """One round, made from its number alone."""

    seed: int

    @functools.cached_property
    def generator(self) -> random.Random:
        return random.Random(self.seed)

    @functools.cached_property
    def setting(self) -> tuple[str, str, int]:
        """Strategy, defense, and the place of the hostile node among the replies."""
        first = random.Random(f"setting {self.seed}")
        return first.choice(STRATEGY_NAMES), first.choice(list(DEFENSES)), first.randrange(8)

    def make_hostile_reply(self, message: Message) -> Message:
        draw = self.generator
        arrays = trained(model(), 5)
        kind = draw.random()
        if kind < 0.25:
            return make_malformed(draw.choice(FAULTS), message, arrays)
        body = honest_body(arrays)
        changes = (scale, shift, change_metric) if kind < 0.6 else (mutate_bytes, mutate_bytes, add_fault, scale, shift)
        for _ in range(draw.randint(1, 3)):
            try:
                draw.choice(changes)(body, draw)
            except Exception:
                continue  # an earlier change has removed or broken what this one changes
        if kind > 0.95:
            field = draw.choice(["src_node_id", "reply_to_message_id"])
            forged: dict[str, Any] = {field: draw.choice([0, 1, 2**64 - 1]) if "node" in field else "x"}
            return reply(message, body, **forged)
        return reply(message, body)


def mutate_bytes(body: RecordDict, draw: random.Random) -> None:
    draw.choice(MUTATIONS)(body, draw)


def add_fault(body: RecordDict, draw: random.Random) -> None:
    CONTENTS[draw.choice(MIXED)][1](body)


def scale(body: RecordDict, draw: random.Random) -> None:
    """The update of all arrays, or of one, times a factor."""
    arrays, start, factor = body.array_records["arrays"], model(), np.float64(draw.choice(FACTORS))
    for name in list(arrays) if draw.random() < 0.5 else [draw.choice(list(arrays))]:
        moved = start[name] + factor * (arrays[name].numpy().astype(np.float64) - start[name])
        arrays[name] = Array(np.asarray(moved, start[name].dtype))


def shift(body: RecordDict, draw: random.Random) -> None:
    """A constant added to one array, also to the statistics that no filter looks at."""
    arrays = body.array_records["arrays"]
    name = draw.choice(list(arrays))
    values = arrays[name].numpy()
    arrays[name] = Array(np.asarray(values + np.float64(draw.choice(SHIFTS)), values.dtype))


def change_metric(body: RecordDict, draw: random.Random) -> None:
    values = body.metric_records["metrics"].__dict__["_data"]
    values[draw.choice(["loss", "num-examples"])] = draw.choice(NUMBERS)


def make_defended(strategy: str, defense: str) -> Defended:
    return Defended(STRATEGIES[strategy](), DEFENSES[defense](), seed=SEED)


def start_round(defended: Defended, number: int = 1) -> tuple[list[Message], list[Message]]:
    """The messages of a round, and honest replies to them."""
    messages = send_round(defended, model(), server_round=number)
    return messages, [reply(m, make_honest_body(m.metadata.dst_node_id, number)) for m in messages]


@functools.cache
def make_honest_body(node: int, number: int) -> RecordDict:
    """The same object in all cases: replies are not modified."""
    return honest_body(trained(model(), node, number))


def pack_result(defended: Defended, arrays: Any) -> Any:
    """The model as bytes; None if the round was skipped. Fails if it is not finite or has changed its shape."""
    if arrays is None:
        return None
    values = to_arrays(arrays)
    assert get_specs(values) == get_specs(model()), "another shape or dtype"
    assert all(np.isfinite(array).all() for array in values.values()), "not finite"
    return {name: array.tobytes() for name, array in values.items()}


@functools.cache
def aggregate_honest(strategy: str, defense: str, place: int) -> Any:
    """What the other seven give."""
    defended = make_defended(strategy, defense)
    _, replies = start_round(defended)
    del replies[place]
    return pack_result(defended, defended.aggregate_train(1, replies)[0])


def run_next_round(defended: Defended) -> bool:
    """A round without a hostile reply. Was there a new model?"""
    _, replies = start_round(defended, 2)
    return pack_result(defended, defended.aggregate_train(2, replies)[0]) is not None


@functools.cache
def is_next_round_usual(strategy: str, defense: str, place: int) -> bool:
    """Whether the next round has a new model after one of the other seven. FoolsGold may leave too few for Bulyan."""
    defended = make_defended(strategy, defense)
    _, replies = start_round(defended)
    del replies[place]
    defended.aggregate_train(1, replies)
    return run_next_round(defended)


def run_case(case: Case) -> str:
    """Returns the reason of the rejection, or "accepted". Raises AssertionError if a promise is broken."""
    strategy, defense, place = case.setting
    defended = make_defended(strategy, defense)
    messages, replies = start_round(defended)
    hostile = messages[place].metadata.dst_node_id
    replies[place] = case.make_hostile_reply(messages[place])
    arrays, metrics = defended.aggregate_train(1, replies)
    result = pack_result(defended, arrays)
    assert metrics is not None
    assert defended.record is not None
    reasons = dict(zip(defended.record.clients, defended.record.reasons, strict=True))
    unjust = {node: reason for node, reason in reasons.items() if node not in (hostile, 0) and reason not in OPINIONS}
    assert not unjust, f"honest nodes were rejected: {unjust}"
    reason = reasons.get(hostile) or reasons.get(0)
    honest = aggregate_honest(strategy, defense, place)
    if reason not in OPINIONS:  # it did not reach the defense
        assert reasons.get(0) in (None, "unsolicited"), "the hostile node is not named"
        assert result == honest, f"a reply that was rejected ({reason}) changed the result"
    elif result is None and honest is not None and defended.record.skipped != TOO_FEW:
        raise AssertionError(f"an accepted or judged reply ended the round: {defended.record.skipped}")
    if case.generator.random() < 0.1:  # the next round is not affected
        assert run_next_round(defended) or not is_next_round_usual(strategy, defense, place), (
            "the next round was skipped"
        )
    return reason or "accepted"


TOO_FEW = "Bulyan returned no model"  # Flower's Bulyan needs seven clients, and a filter may leave fewer
OPINIONS = (None, "defense")  # the guard has no objection


def run_cases(n: int, seed: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """Outcomes by reason, and a description of every failure."""
    outcomes, failures = Counter[str](), []
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.CRITICAL)
    for number in range(first, first + n):
        case = Case(1_000_003 * seed + number)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # overflow, in results that are refused
                outcomes[run_case(copy.copy(case))] += 1
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            failures.append(f"{case} {case.setting}: {type(error).__name__}: {error} ({where.name}:{where.lineno})")
            sys.stderr.write(failures[-1] + "\n")
    log.setLevel(level)
    return outcomes, failures


if __name__ == "__main__":
    count, first_seed = (int(text) for text in (*sys.argv[1:], "20000", "1")[:2])
    begin = time.monotonic()
    found, broken = Counter[str](), list[str]()
    for done in range(0, count, BATCH):
        outcomes_of_batch, failures_of_batch = run_cases(min(BATCH, count - done), first_seed, done)
        found += outcomes_of_batch
        broken += failures_of_batch
        sys.stderr.write(f"{found.total() + len(broken)} cases, {len(broken)} failures\n")
    lines = [f"seed {first_seed}: {count} cases, {len(broken)} failures, {time.monotonic() - begin:.0f} s"]
    lines += [f"  {reason}: {times}" for reason, times in found.most_common()]
    sys.stdout.write("\n".join([*lines, *broken]) + "\n")
