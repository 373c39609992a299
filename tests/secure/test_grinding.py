"""A client may write its report again until its sketch happens to be short. What it gains by that is limited."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from forgeries import write_forged
from secure_examples import CLIPPED, Example, draw_head, encode_update, start_round

from cosdefense.secure.encoding import Encoded
from cosdefense.secure.exchange import Outcome
from cosdefense.secure.halves import ReportKeys, Shape, expand_half
from cosdefense.secure.sketch import SKETCH, sketch
from cosdefense.secure.streams import digest

TERMS = replace(CLIPPED, weights=64, threshold="mad", deviations=100.0)
SEED = b"\x01" * 32
assert TERMS.clip is not None
CLIP = TERMS.clip


def too_long(example: Example, length: float) -> Encoded:
    """An update of so many clips, in one coordinate."""
    row = np.zeros(TERMS.head + TERMS.weights)
    row[0], row[TERMS.head] = 1e-6, length * CLIP
    return encode_update(row, example.theta, TERMS, clipped=False)


def grind(example: Example, encoded: Encoded, tries: int) -> tuple[float, Encoded]:
    """The shortest sketch among so many, in clips. Each try changes the last words by a few units, out of 2**25."""
    node = example.keys[0].public_key().public_bytes_raw()
    header = digest("header", example.ticket.to_bytes(), node)
    mask = expand_half(SEED, Shape.of(TERMS, with_cosine=True), TERMS).words
    best, found = np.inf, encoded
    for number in range(tries):
        words = encoded.words.copy()
        words[-2:] = divmod(number, 100)
        sent = TERMS.ring.to_bytes(TERMS.ring.subtract(words, mask))
        keys = ReportKeys(header, digest("words", sent), digest("seed", SEED))
        values = TERMS.ring.to_signed(sketch(words, keys.sketch_key("weights"), TERMS.ring)).astype(float)
        estimate = float(np.sqrt(4 / SKETCH * np.square(values).sum())) / (CLIP * 2.0**TERMS.fraction)
        if estimate < best:
            best, found = estimate, replace(encoded, words=words)
    return best, found


def test_thousands_of_tries_let_a_single_coordinate_of_one_and_a_half_clips_pass() -> None:
    """One of 80 reports with it passes, so that all of 1,500 fail once in 10⁷ runs of this test."""
    example = start_round(TERMS, draw_head(np.random.default_rng(0), TERMS))
    best, encoded = grind(example, too_long(example, 1.5), 1500)
    assert best < 1.25
    rng = np.random.default_rng(1)
    honest = [encode_update(0.01 * rng.normal(size=72), example.theta, TERMS) for _ in range(4)]
    forged = write_forged(example, 0, encoded, seed=SEED)
    opened = example.open([forged, *(example.write(update, i) for i, update in enumerate(honest, start=1))])
    assert opened.outcomes == (Outcome.VALID,) * 5


def test_they_do_not_let_three_clips_pass() -> None:
    """One of 2**37 reports with it would pass."""
    example = start_round(TERMS, draw_head(np.random.default_rng(0), TERMS))
    best, _ = grind(example, too_long(example, 3.0), 1500)
    assert best > 1.5
