"""Measures the CPU load of a SuperLink while a round waits for silent nodes, as a share of one core.

python benchmarks/superlink_idle.py [nodes] [seconds]    default: 10 nodes, 40 seconds; starts the example's federation
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

APP = Path(__file__).resolve().parents[1] / "examples" / "flower"
sys.path.insert(0, str(APP))

from loopback import Loopback  # noqa: E402

SETTLE = 15.0  # seconds, until new processes are idle


def main() -> None:
    n, seconds = (int(word) for word in (sys.argv[1:] + ["10", "40"][len(sys.argv) - 1 :]))
    names = [f"node-{number}" for number in range(n)]
    with tempfile.TemporaryDirectory() as folder, Loopback(Path(folder) / "federation") as federation:
        federation.start_superlink()
        for number, name in enumerate(names):
            federation.start_supernode(name, {"partition-id": number, "num-partitions": n, "silent": True})
        federation.wait_for(lambda: all(map(federation.get_node_id, names)), "starting the SuperNodes", 300.0)
        superlink = federation.processes["superlink"].pid
        print(f"{n} nodes, no run: {measure_cpu_share(superlink, seconds):.1%} of one core")
        federation.submit(
            APP, num_server_rounds=1, min_nodes=n, defense="none", deadline=10.0 * (seconds + SETTLE),
            checkpoint_dir=str(Path(folder) / "run"),
        )  # fmt: skip
        federation.wait_for(
            lambda: all("Receiving: train message" in federation.read_log(name) for name in names),
            "the messages",
            300.0,
        )
        print(f"{n} nodes, a round waits for them: {measure_cpu_share(superlink, seconds):.1%} of one core")


def measure_cpu_share(process: int, seconds: float) -> float:
    time.sleep(SETTLE)
    start, before = time.monotonic(), read_cpu_seconds(process)
    time.sleep(seconds)
    return (read_cpu_seconds(process) - before) / (time.monotonic() - start)


def read_cpu_seconds(process: int) -> float:
    """CPU time of a process without its children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
