"""The datasets by name: found on disk or downloaded, verified, read."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import indent

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from ..options import unknown
from .download import download as download_file
from .formats import DataError, Progress, Split, parse_cifar_binary, parse_cifar_python
from .releases import CifarBatches, IdxFiles, JpegFolders, Release

DEBIAN = Path("/usr/share/datasets")  # where Debian's dataset-fashion-mnist puts its files
NO_SKLEARN = "digits: needed scikit-learn, which is not installed: pip install 'cosdefense[data]'"


@dataclass(frozen=True)
class Dataset:
    """Labeled images, for training and for testing."""

    name: str
    train_images: UInt8[Tensor, "m c h w"]
    train_labels: Int64[Tensor, " m"]
    test_images: UInt8[Tensor, "k c h w"]
    test_labels: Int64[Tensor, " k"]
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    note: str = ""  # what must stand next to any number measured on it

    @property
    def n_classes(self) -> int:
        return len(self.classes)


@dataclass(frozen=True)
class Specification:
    """What a dataset must be, and where it comes from."""

    name: str
    description: str  # one line
    shape: tuple[int, int, int]  # channels, height, width
    n_train: int
    n_test: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    releases: tuple[Release, ...]  # the forms it may lie on disk in, best first; the first is what the mirrors carry
    mirrors: tuple[str, ...] = ()  # the addresses of their folders
    max_download: int = 1 << 25  # bytes a downloaded file may have


class BundledDigits(Release):
    """The handwritten digits that scikit-learn installs with itself."""

    def find(self, folder: Path) -> Path | None:
        package = importlib.util.find_spec("sklearn")
        if package is None or package.origin is None:
            return None
        return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"

    def missing(self, folder: Path) -> list[str]:
        raise DataError(NO_SKLEARN)  # nothing that a download could mend

    def verify_file(self, path: Path, name: str) -> None:
        """The installer of scikit-learn did."""

    def verify(self, path: Path) -> None:
        """The installer of scikit-learn did."""

    def read(self, path: Path, progress: Progress | None = None) -> tuple[Split, Split]:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DataError(NO_SKLEARN) from error
        bunch = load_digits()
        images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
        labels = bunch.target.astype(np.int64)
        test = np.zeros(len(labels), dtype=bool)
        test[np.argsort(labels, kind="stable")[::5]] = True  # every fifth of each class, the same for everybody
        return (images[~test], labels[~test]), (images[test], labels[test])


DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_ALL = (
    Specification(
        name="digits",
        description="handwritten digits, 8 × 8 gray pixels; comes with scikit-learn",
        shape=(1, 8, 8),
        n_train=1437,
        n_test=360,
        classes=DIGITS,
        mean=(0.3058,),
        std=(0.3761,),
        releases=(BundledDigits(),),
    ),
    Specification(
        name="mnist",
        description="handwritten digits, 28 × 28 gray pixels; 11 MB to download",
        shape=(1, 28, 28),
        n_train=60_000,
        n_test=10_000,
        classes=DIGITS,
        mean=(0.1307,),
        std=(0.3081,),
        releases=(
            IdxFiles(
                train_images="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                train_labels="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                test_images="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                test_labels="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    Specification(
        name="fashion-mnist",
        description="pictures of clothes, 28 × 28 gray pixels; 31 MB to download",
        shape=(1, 28, 28),
        n_train=60_000,
        n_test=10_000,
        classes=CLOTHES,
        mean=(0.2859,),
        std=(0.3530,),
        releases=(
            IdxFiles(
                train_images="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                train_labels="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                test_images="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                test_labels="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
        mirrors=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
    ),
    Specification(
        name="cifar-10",
        description="photographs of animals and vehicles, 32 × 32 color pixels; 170 MB to download",
        shape=(3, 32, 32),
        n_train=50_000,
        n_test=10_000,
        classes=THINGS,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        releases=(
            CifarBatches(
                archive="cifar-10-binary.tar.gz",
                sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                folder="cifar-10-batches-bin",
                suffix=".bin",
                parse=parse_cifar_binary,
            ),
            CifarBatches(
                archive="cifar-10-python.tar.gz",
                sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                folder="cifar-10-batches-py",
                suffix="",
                parse=parse_cifar_python,
            ),
            JpegFolders(
                archive="cifar10-images.tar.xz",
                sha256="080868207345cd38a9fd5f3502ea96e305a6fdb7a7f2d0dfafbdcb7353df24ab",
                folder="cifar10-images",
                classes=THINGS,
                size=(32, 32),
                title="CIFAR-10",
            ),
        ),
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        max_download=180_000_000,
    ),
)
DATASETS: dict[str, Specification] = {specification.name: specification for specification in _ALL}


def load(name: str, data_dir: Path | None = None, progress: Progress | None = None, download: bool = True) -> Dataset:
    """The dataset from disk, or from the network where it is on no disk and `download` allows it."""
    specification = _specified(name)
    release, path = _obtained(specification, data_dir, progress, download)
    train, test = release.read(path, progress)
    return Dataset(
        name,
        *_checked(train, specification, specification.n_train, f"{path} (training)"),
        *_checked(test, specification, specification.n_test, f"{path} (test)"),
        specification.classes,
        specification.mean,
        specification.std,
        release.note,
    )


def where(name: str, data_dir: Path | None = None) -> Path | None:
    """The file or folder that would be read. None: it would have to be downloaded."""
    found = _found(_specified(name), data_dir)
    return found[1] if found else None


def fetch(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The file or folder that would be read, downloaded if it is on no disk, its digests compared in any case."""
    release, path = _obtained(_specified(name), data_dir, progress, download=True)
    release.verify(path)
    return path


def _specified(name: str) -> Specification:
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    return DATASETS[name]


def _obtained(
    specification: Specification, data_dir: Path | None, progress: Progress | None, download: bool
) -> tuple[Release, Path]:
    found = _found(specification, data_dir)
    if found:
        return found
    release, folder = specification.releases[0], _target(specification.name, data_dir)
    missing = release.missing(folder)
    if not download:
        raise _absent(specification, data_dir, "it may be downloaded from", "\n".join(specification.mirrors))
    for file in missing:
        urls = [mirror + file for mirror in specification.mirrors]
        verify = partial(release.verify_file, name=file)
        try:
            download_file(urls, folder / file, verify, specification.max_download, progress)
        except DataError as error:
            raise _absent(specification, data_dir, "downloading failed", str(error)) from error
    return release, release.find(folder) or folder


def _found(specification: Specification, data_dir: Path | None) -> tuple[Release, Path] | None:
    for folder, is_named in _folders(specification.name, data_dir):
        for release in specification.releases:
            path = release.find(folder)
            # MNIST and Fashion-MNIST use the same file names: without a folder of that name the digest decides.
            if path and (is_named or release.recognizes(path)):
                return release, path
    return None


def _folders(name: str, data_dir: Path | None) -> Iterator[tuple[Path, bool]]:
    """Where to look, in order, and whether the folder bears the dataset's name."""
    roots = (_expanded(data_dir), _shared(), _cache(), DEBIAN)
    for root in dict.fromkeys(root for root in roots if root):
        yield root / name, True
        yield root, False


def _target(name: str, data_dir: Path | None) -> Path:
    """The folder to download into."""
    shared = _shared()
    if shared and not _is_writable(shared / name):
        shared = None
    return (_expanded(data_dir) or shared or _cache()) / name


def _shared() -> Path | None:
    return _expanded(os.environ.get("COSDEFENSE_DATA"))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cosdefense"


def _expanded(folder: Path | str | None) -> Path | None:
    return Path(folder).expanduser() if folder else None


def _is_writable(folder: Path) -> bool:
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    return os.access(existing, os.W_OK | os.X_OK)


def _absent(specification: Specification, data_dir: Path | None, what_else: str, details: str) -> DataError:
    name, target = specification.name, _target(specification.name, data_dir)
    looked_in = []
    for folder, _ in _folders(name, data_dir):
        found = any(release.find(folder) for release in specification.releases)
        looked_in.append(f"{folder}{' (these files are damaged or of another dataset)' if found else ''}")
    files = "\nor ".join(", ".join(release.missing(target)) for release in specification.releases)
    paragraphs = {"looked in": "\n".join(looked_in), f"needed in {target}": files, what_else: details}
    text = "\n".join(f"{head}:\n{indent(body, '  ')}" for head, body in paragraphs.items())
    return DataError(f"{name} was not found\n{text}")


def _checked(
    split: Split, specification: Specification, count: int, source: str
) -> tuple[UInt8[Tensor, "m c h w"], Int64[Tensor, " m"]]:
    images, labels = split
    shape, last = (count, *specification.shape), len(specification.classes) - 1
    if images.shape != shape:
        raise DataError(f"{source}: needed images of shape {shape}, found {images.shape}")
    if labels.shape != (count,):
        raise DataError(f"{source}: needed {count} labels, found {len(labels)}")
    if labels.min() < 0 or labels.max() > last:
        raise DataError(f"{source}: needed labels from 0 to {last}, found {labels.min()} to {labels.max()}")
    return torch.tensor(images), torch.tensor(labels)
