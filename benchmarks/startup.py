"""How long until the first word: the help of the command line, and importing the package beside importing torch.

    python benchmarks/startup.py

Goals: help in less than half a second, everything imported within 1.2 times of torch alone.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from measuring import Table, machine, options, report, timed

CASES = {
    "import torch": ("-c", "import torch"),
    "import cosdefense": ("-c", "import cosdefense"),
    "from cosdefense import Defense, get": ("-c", "from cosdefense import Defense, get"),  # all of its core
    "cosdefense --help": ("-m", "cosdefense", "--help"),
    "cosdefense run --help": ("-m", "cosdefense", "run", "--help"),
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    found = timed({name: partial(start, *words) for name, words in CASES.items()}, given.repeats, patience=120)
    torch = found["import torch"].median
    rows = [(name, str(timing), f"{timing.median / torch:.2f}×") for name, timing in found.items()]
    header = ("", f"seconds, median of {given.repeats} [lowest, highest]", "against torch")
    report(given, machine("typer", "rich"), [Table("Start-up", header, rows)], found)


def start(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
