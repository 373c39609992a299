"""Downloads a file from the first mirror that delivers it: verified, and never half a file.

pooch does the transfer. Its own verification is not used: it compares the bytes that were sent, and mirrors compress
the same content differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ..catalog.extras import install_hint
from .parsers import DataError, Progress

CHUNK = 1 << 18  # bytes between two reports of progress
# Some servers would otherwise send .gz files uncompressed, or refuse unknown clients.
HEADERS = {"User-Agent": "cosdefense", "Accept-Encoding": "identity"}


def download(
    urls: Sequence[str],
    target: Path,
    verify: Callable[[Path], None],
    limit: int,
    progress: Progress | None = None,
    timeout: float = 30.0,
) -> Path:
    """Download `target` from the first of `urls` that delivers at most `limit` bytes which pass `verify`.

    `verify` gets a temporary file and raises DataError. If no mirror delivers, this raises DataError too, with one
    line for each mirror.
    """
    try:
        from pooch import HTTPDownloader
    except ImportError as error:
        raise DataError(f"needed pooch, which is not installed: {install_hint('data')}") from error
    existing = next(folder for folder in target.absolute().parents if folder.exists())  # on the disk of the target
    reasons = []
    for url in urls:
        try:
            with TemporaryDirectory(prefix=".part-", dir=existing) as folder:
                file = Path(folder) / target.name  # with its suffix, which says whether it is compressed
                bar = _ProgressBar(file, limit, progress)
                HTTPDownloader(bar, CHUNK, timeout=timeout, headers=HEADERS)(url, str(file), None)
                verify(file)
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)
                return target
        except (OSError, ValueError, DataError) as error:
            reasons.append(f"{url}: {error}")
    raise DataError("\n".join(reasons))


@dataclass
class _ProgressBar:
    """What pooch calls after each chunk. It also ends downloads that are too large."""

    file: Path
    limit: int
    progress: Progress | None
    total: int = 0  # set by pooch; 0: the server did not say

    def update(self, _: int) -> None:
        done = self.file.stat().st_size
        if max(done, self.total) > self.limit:
            raise DataError(f"needed at most {self.limit} bytes, found {max(done, self.total)}")
        if self.progress:
            self.progress(f"downloading {self.file.name}", done, self.total)

    def reset(self) -> None: ...

    def close(self) -> None: ...
