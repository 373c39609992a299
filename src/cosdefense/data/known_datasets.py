"""The datasets that can be loaded by name: their sizes, files, digests and mirrors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .parsers import DataError, Progress, Split, parse_cifar_binary, parse_cifar_python
from .releases import CifarBatches, IdxFiles, JpegFolders, Release

DIGITS_FILE = Path(__file__).parent / "digits.csv.gz"


@dataclass(frozen=True)
class Specification:
    """What a dataset must contain, and where it comes from."""

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
    """The handwritten digits that are installed with this package: 57 KB, beside 190 MB for scikit-learn and scipy.

    The file is scikit-learn's copy of the test set of "Optical Recognition of Handwritten Digits", E. Alpaydin and
    C. Kaynak, UCI Machine Learning Repository, 1998, CC BY 4.0, https://doi.org/10.24432/C50P49
    """

    def find(self, folder: Path) -> Path | None:
        return DIGITS_FILE if DIGITS_FILE.is_file() else None

    def missing(self, folder: Path) -> list[str]:
        raise DataError(f"digits: needed {DIGITS_FILE}, which is installed with cosdefense: install it again")

    def verify_file(self, path: Path, name: str) -> None:
        """The installer of the package did."""

    def verify(self, path: Path) -> None:
        """The installer of the package did."""

    def read(self, path: Path, progress: Progress | None = None) -> tuple[Split, Split]:
        table = np.loadtxt(path, delimiter=",")
        images = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)[:, None]
        labels = table[:, -1].astype(np.int64)
        test = np.zeros(len(labels), dtype=bool)
        test[np.argsort(labels, kind="stable")[::5]] = True  # every fifth of each class, the same for everybody
        return (images[~test], labels[~test]), (images[test], labels[test])


DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_ALL = (
    Specification(
        name="digits",
        description="handwritten digits, 8 × 8 gray pixels; installed with cosdefense",
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
