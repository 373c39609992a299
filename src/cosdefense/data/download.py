"""Downloads a file from the first mirror that delivers it: verified, and never half a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from io import BufferedWriter
from pathlib import Path
from secrets import token_hex
from urllib.request import Request, urlopen

from .formats import DataError, Progress

CHUNK = 1 << 18  # bytes between two reports of progress


def download(
    urls: Sequence[str],
    target: Path,
    verify: Callable[[Path], None],
    limit: int,
    progress: Progress | None = None,
    timeout: float = 30.0,
) -> Path:
    """`target`, from the first of `urls` that delivers at most `limit` bytes which pass `verify`.

    `verify` is given a temporary file and raises DataError. So does this if no mirror delivers: one line for each.
    """
    reasons = []
    for url in urls:
        # In the folder of the target, so that replacing is atomic; it ends like the target, so that .gz means gzip.
        temporary = target.with_name(f".part-{token_hex(4)}-{target.name}")
        try:
            with urlopen(Request(url, headers={"User-Agent": "cosdefense"}), timeout=timeout) as reply:
                target.parent.mkdir(parents=True, exist_ok=True)
                with temporary.open("xb") as file:
                    _copy(reply, file, limit, progress, f"downloading {target.name}")
                    file.flush()
                    os.fsync(file.fileno())
            verify(temporary)
            temporary.replace(target)
            return target
        except (OSError, HTTPException, ValueError, DataError) as error:
            reasons.append(f"{url}: {error}")
        finally:  # also after Ctrl-C
            with suppress(OSError):
                temporary.unlink()
    raise DataError("\n".join(reasons))


def _copy(reply: HTTPResponse, file: BufferedWriter, limit: int, progress: Progress | None, what: str) -> None:
    promised, done = reply.length, 0
    if (promised or 0) > limit:
        raise DataError(f"needed at most {limit} bytes, found {promised}")
    while chunk := reply.read(CHUNK):
        done += len(chunk)
        if done > limit:
            raise DataError(f"needed at most {limit} bytes, found more")
        file.write(chunk)
        if progress:
            progress(what, done, promised or 0)
    if promised is not None and done != promised:
        raise DataError(f"needed {promised} bytes, found {done} before the connection ended")
