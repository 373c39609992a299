"""One seed, split by purpose: changing the defense does not change who is sampled.

Every stream is derived from the seed and a purpose (and mostly the round's number), so nothing about
a generator has to be saved for a run to be resumed.

Who is sampled, which batches a client draws, and what filters draw, comes from the CPU whatever the device: verdicts
are the same everywhere. Noise as long as an update, of attacks and aggregators, is drawn where the updates are: a CPU
needs 10 ms for the 700,000 numbers that a GPU draws in a few microseconds. From the same seed a CPU and a GPU draw
different noise, and so may GPUs of different models: each repeats its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

CPU = torch.device("cpu")


def derive(seed: int, *purpose: str | int) -> int:
    """An independent seed for one purpose."""
    text = repr((seed, *purpose)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1  # torch takes 63 bits everywhere


def generator(seed: int, *purpose: str | int, device: torch.device = CPU) -> torch.Generator:
    """A fresh random stream for one purpose, for numbers that are drawn on this device."""
    return torch.Generator(device).manual_seed(derive(seed, *purpose))


@contextmanager
def use_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator, which dropout draws from, and restore it at the end."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
