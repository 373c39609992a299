"""Rounds by three parties of MPyC, which knows nothing of this package: python mpyc_rounds.py -M3 FILE.

FILE holds the modulus, θ and the encoded updates of each round. Party 0 has all of them and shares them as secrets.
What is opened: ⟨θ, x⟩ and ‖x‖² of every head, and the sum over the heads that CosDefense's rule accepts.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from mpyc.runtime import mpc  # type: ignore[import-untyped, unused-ignore]


async def main(path: Path) -> None:
    task: dict[str, Any] = json.loads(path.read_text())
    modulus = int(task["modulus"])
    field, results = mpc.SecFld(modulus=modulus), []

    def signed(element: Any) -> int:
        value: int = int(element)
        return value if value <= modulus // 2 else value - modulus

    await mpc.start()
    for one in task["rounds"]:
        theta = [int(value) for value in one["theta"]]
        heads = [mpc.input([field(int(v) % modulus) for v in head], senders=0) for head in one["heads"]]
        products = [mpc.sum([t * x for t, x in zip(theta, head, strict=True)]) for head in heads]
        squares = [mpc.in_prod(head, head) for head in heads]
        opened = [signed(value) for value in await mpc.output(products + squares)]
        n, square = len(heads), sum(t * t for t in theta)
        claims = [math.isqrt((opened[i] ** 2 << 48) // (opened[n + i] * square)) for i in range(n)]
        accepted = [n * q < sum(claims) for q in claims]
        total = [
            mpc.sum([head[j] for head, kept in zip(heads, accepted, strict=True) if kept]) for j in range(len(theta))
        ]
        sums = [signed(value) for value in await mpc.output(total)]
        results.append({"claims": claims, "accepted": accepted, "sums": [str(value) for value in sums]})
    if mpc.pid == 0:
        path.with_suffix(".out").write_text(json.dumps(results))
    await mpc.shutdown()


mpc.run(main(Path(sys.argv[-1])))
