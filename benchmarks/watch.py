"""What it costs to watch a run of 10,000 rounds of 20 nodes: python benchmarks/watch.py"""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path

from cosdefense.monitor.watched_run import WatchedRun
from cosdefense.runs.chain import seal_all
from cosdefense.runs.records import RoundRecord

ROUNDS, NODES = 10_000, 20


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        path.write_bytes(seal_all(make_lines()))
        print(f"records: {path.stat().st_size / 1e6:.1f} MB")
        run, start = WatchedRun(Path(folder)), time.process_time()
        change = run.look()
        print(f"read once: {time.process_time() - start:.1f} s of CPU time")
        start = time.process_time()
        run.look()
        print(f"each later look, nothing new: {1000 * (time.process_time() - start):.2f} ms of CPU time")
        assert change is not None
        assert run.view is not None
        last = run.view.monitor.history.last
        assert last is not None
        print(f"a page gets at first: {len(json.dumps(change.content)) / 1000:.0f} KB")
        print(f"and for each new round: {len(json.dumps(run.view.update([last]))) / 1000:.0f} KB")


def make_lines() -> list[dict[str, object]]:
    """Three of ten replies are rejected, at random."""
    rng, lines = random.Random(0), list[dict[str, object]]()
    lines.append({"experiment": {"name": "flower"}, "defense": "multi-krum", "device": "Flower"})
    for number in range(ROUNDS):
        reasons = tuple("defense" if rng.random() < 0.3 else None for _ in range(NODES))
        record = RoundRecord(
            number, tuple(range(2**63, 2**63 + NODES)), tuple(0.0 if reason else 1.0 for reason in reasons),
            reasons=reasons, scores={"MultiKrum": tuple(rng.random() for _ in range(NODES))}, accuracy=rng.random(),
            seconds={"train": 1.0}, n_bytes={"train-sent": 1000, "train-received": 1000},
        )  # fmt: skip
        lines.append(record.to_json())
    return lines


if __name__ == "__main__":
    main()
