"""Datasets by name: where they are searched for, what is checked, and the real files where they are on disk."""

from __future__ import annotations

import gzip
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cosdefense.catalog.options import ConfigError
from cosdefense.data import DATASETS, DataError, Dataset, Specification, datasets, load, where
from cosdefense.data.parsers import parse_cifar_binary
from cosdefense.data.releases import CifarBatches, IdxFiles
from forked import run_code

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's own is looked at."""
    monkeypatch.delenv("COSDEFENSE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "debian")


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def tiny(name: str, seed: int, monkeypatch: pytest.MonkeyPatch, **changes: NDArray[np.uint8]) -> dict[str, bytes]:
    """The files of a dataset of six and four images that is known by this name from now on."""
    rng = np.random.default_rng(seed)
    arrays = {
        "train_images": rng.integers(0, 256, (6, 5, 5), dtype=np.uint8),
        "train_labels": rng.integers(0, 3, 6, dtype=np.uint8),
        "test_images": rng.integers(0, 256, (4, 5, 5), dtype=np.uint8),
        "test_labels": rng.integers(0, 3, 4, dtype=np.uint8),
    } | changes
    files = {key: idx(array) for key, array in arrays.items()}
    release = IdxFiles(**{key: hashlib.sha256(data).hexdigest() for key, data in files.items()})
    known = Specification(name, "tiny", (1, 5, 5), 6, 4, ("a", "b", "c"), (0.5,), (0.5,), (release,))
    monkeypatch.setitem(DATASETS, name, known)
    return dict(zip(NAMES, files.values(), strict=True))


def put(files: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


# The table


def test_the_four_datasets_are_listed() -> None:
    assert list(DATASETS) == ["digits", "mnist", "fashion-mnist", "cifar-10"]
    for name, specification in DATASETS.items():
        assert specification.name == name
        assert "\n" not in specification.description
        assert len(specification.classes) == 10
        assert len(specification.mean) == len(specification.std) == specification.shape[0]


@pytest.mark.parametrize("function", [load, where, datasets.fetch])
def test_an_unknown_name_is_met_with_the_near_one(function: object) -> None:
    assert callable(function)
    with pytest.raises(ConfigError, match="dataset 'fashion-minst' is unknown: did you mean 'fashion-mnist'"):
        function("fashion-minst")


@pytest.mark.slow
def test_importing_pulls_in_nothing_heavy(tmp_path: Path) -> None:
    heavy = {"sklearn", "PIL", "rich", "typer", "pooch", "requests"}
    script = f"import sys, cosdefense.data; print(*sorted({heavy} & {{*sys.modules}}))"
    answer = run_code(script, tmp_path)
    assert (answer.returncode, answer.stdout.split()) == (0, [])


# Digits


def test_digits() -> None:
    digits = load("digits", download=False)
    assert digits.train_inputs.shape == (1437, 1, 8, 8)
    assert digits.test_inputs.shape == (360, 1, 8, 8)
    assert digits.train_inputs.dtype == torch.uint8
    assert (int(digits.train_inputs.min()), int(digits.train_inputs.max())) == (0, 255)
    assert digits.n_classes == 10
    for labels, share in ((digits.train_targets, 143.7), (digits.test_targets, 36.0)):
        assert labels.dtype == torch.int64
        assert (labels.bincount() - share).abs().max() < 5  # stratified
    pixels = digits.train_inputs.double() / 255
    assert digits.mean == (round(float(pixels.mean()), 4),)
    assert digits.std == (round(float(pixels.std(correction=0)), 4),)


def test_digits_are_split_alike_whatever_was_drawn_before() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    first = load("digits")
    torch.manual_seed(2)
    np.random.seed(2)
    second = load("digits")
    assert torch.equal(first.train_inputs, second.train_inputs)
    assert first.test_targets[:10].tolist() == second.test_targets[:10].tolist() == [0, 2, 4, 7, 1, 6, 8, 9, 5, 3]


def test_digits_are_those_of_scikit_learn() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed here")
    from sklearn.datasets import load_digits  # here, because the import takes a second in every process

    bundled, digits = load_digits(), load("digits")
    images = torch.cat([digits.train_inputs, digits.test_inputs])
    assert sorted(map(tuple, images.flatten(1).tolist())) == sorted(
        map(tuple, np.rint(bundled.data * 255 / 16).astype(int).tolist())
    )
    labels = torch.cat([digits.train_targets, digits.test_targets])
    assert torch.bincount(labels).tolist() == np.bincount(bundled.target).tolist()


def test_digits_are_part_of_the_package() -> None:
    path = where("digits")
    assert path is not None
    assert path.parent == Path(datasets.__file__).parent


# Where datasets are looked for


def test_places_are_tried_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tiny("tiny", 0, monkeypatch)
    monkeypatch.setenv("COSDEFENSE_DATA", str(tmp_path / "shared"))
    assert where("tiny", tmp_path / "given") is None
    for root in ("debian", "cache/cosdefense", "shared", "given"):  # each is preferred to those before it
        folder = put(files, tmp_path / root / "tiny")
        assert where("tiny", tmp_path / "given") == folder
    assert where("tiny") == tmp_path / "shared" / "tiny"


def test_files_may_lie_directly_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tiny("tiny", 0, monkeypatch)
    root = put({f"{name}.gz": gzip.compress(data) for name, data in files.items()}, tmp_path / "given")
    assert where("tiny", root) == root
    assert where("tiny", put(files, root / "tiny").parent) == root / "tiny"  # preferred


def test_one_dataset_is_not_mistaken_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, yours = tiny("mine", 0, monkeypatch), tiny("yours", 1, monkeypatch)
    root = put(mine, tmp_path / "given")
    assert where("mine", root) == root
    assert where("yours", root) is None
    assert where("yours", put(yours, tmp_path / "cache" / "cosdefense").parent) == tmp_path / "cache" / "cosdefense"
    put(mine, tmp_path / "wrong" / "yours")
    with pytest.raises(DataError, match=r"wrong/yours/train-images-idx3-ubyte: needed SHA-256 \w+, found"):
        load("yours", tmp_path / "wrong")


def test_absent_says_where_it_looked_and_what_to_put_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, _ = tiny("mine", 0, monkeypatch), tiny("yours", 1, monkeypatch)
    mirror = "https://example.org/files/"
    monkeypatch.setitem(DATASETS, "yours", replace(DATASETS["yours"], mirrors=(mirror,)))
    root = put(mine, tmp_path / "given")
    with pytest.raises(DataError) as caught:
        load("yours", root, download=False)
    assert str(caught.value).splitlines() == [
        "yours was not found",
        "looked in:",
        f"  {root}/yours",
        f"  {root} (these files are damaged or of another dataset)",
        f"  {tmp_path}/cache/cosdefense/yours",
        f"  {tmp_path}/cache/cosdefense",
        f"  {tmp_path}/debian/yours",
        f"  {tmp_path}/debian",
        f"needed in {root}/yours:",
        f"  {', '.join(f'{name}.gz' for name in NAMES)}",
        "it may be downloaded from:",
        f"  {mirror}",
    ]


def test_every_form_of_cifar_10_is_offered(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("cifar-10", tmp_path, download=False)
    lines = [line.strip() for line in str(caught.value).splitlines()]
    start = lines.index(f"needed in {tmp_path}/cifar-10:") + 1
    assert lines[start : start + 3] == [
        "cifar-10-binary.tar.gz",
        "or cifar-10-python.tar.gz",
        "or cifar10-images.tar.xz",
    ]


# What is checked


def test_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tiny("tiny", 0, monkeypatch)
    dataset = load("tiny", put(files, tmp_path / "tiny").parent)
    assert dataset.train_inputs.numpy().tobytes() == files[NAMES[0]][16:]
    assert bytes(dataset.train_targets.tolist()) == files[NAMES[1]][8:]
    assert dataset.test_inputs.numpy().tobytes() == files[NAMES[2]][16:]
    assert bytes(dataset.test_targets.tolist()) == files[NAMES[3]][8:]
    assert dataset.train_inputs.shape == (6, 1, 5, 5)
    assert (dataset.name, dataset.classes, dataset.n_classes, dataset.note) == ("tiny", ("a", "b", "c"), 3, "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": [0, 1, 2, 3, 0, 1]}, r"\(training\): needed labels from 0 to 2, found 0 to 3"),
        ({"test_labels": [0, 1, 255, 1]}, r"\(test\): needed labels from 0 to 2, found 0 to 255"),
        ({"train_labels": [0, 1]}, r"\(training\): needed 6 labels, found 2"),
        (
            {"test_images": np.zeros((4, 5, 4))},
            r"\(test\): needed images of shape \(4, 1, 5, 5\), found \(4, 1, 5, 4\)",
        ),
        ({"train_images": np.zeros((7, 5, 5))}, r"\(training\): needed images of shape \(6, 1, 5, 5\), found \(7,"),
        ({"train_images": np.zeros((0, 5, 5))}, r"\(training\): needed images of shape \(6, 1, 5, 5\), found \(0,"),
        (
            {"train_images": np.zeros((6, 25))},
            "train-images-idx3-ubyte: needed the magic number 00000803, found 00000802",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], message: str
) -> None:
    files = tiny("tiny", 0, monkeypatch, **{key: np.array(value, np.uint8) for key, value in changes.items()})
    with pytest.raises(DataError, match=message):
        load("tiny", put(files, tmp_path / "tiny").parent)


def test_an_incomplete_folder_of_batches_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = CifarBatches("c.tar.gz", "", "batches", ".bin", parse_cifar_binary)
    known = Specification("c", "tiny", (3, 32, 32), 2, 1, ("a",), (0.5,) * 3, (0.5,) * 3, (release,))
    monkeypatch.setitem(DATASETS, "c", known)
    folder = put({"data_batch_1.bin": bytes(3073), "test_batch.bin": bytes(3073)}, tmp_path / "c" / "batches")
    with pytest.raises(DataError, match=rf"{folder} \(training\): needed images of shape \(2, .*found \(1, "):
        load("c", tmp_path)
    put({"data_batch_2.bin": bytes(3073)}, folder)
    assert load("c", tmp_path).train_inputs.shape == (2, 3, 32, 32)


# The real files


def real(name: str, folder: Path) -> Dataset:
    if where(name, folder) is None:
        pytest.skip(f"{name} is not in {folder}")
    return load(name, folder, download=False)


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("mnist", [5, 0, 4, 1, 9, 2, 1, 3], [7, 2, 1, 0, 4, 1, 4, 9]),
        ("fashion-mnist", [9, 0, 0, 3, 0, 2, 7, 2], [9, 2, 1, 1, 6, 1, 4, 6]),
    ],
)
def test_real_idx_files(real_data: Path, name: str, train: list[int], test: list[int]) -> None:
    dataset = real(name, real_data)
    assert dataset.train_inputs.shape == (60_000, 1, 28, 28)
    assert dataset.test_inputs.shape == (10_000, 1, 28, 28)
    assert dataset.train_targets[:8].tolist() == train
    assert dataset.test_targets[:8].tolist() == test
    pixels = dataset.train_inputs.float() / 255
    assert float(pixels.mean()) == pytest.approx(dataset.mean[0], abs=2e-4)
    assert float(pixels.std()) == pytest.approx(dataset.std[0], abs=2e-4)


def test_the_real_mnist_folder_is_not_fashion_mnist(real_data: Path) -> None:
    real("mnist", real_data)
    assert where("mnist", real_data / "mnist") == real_data / "mnist"
    assert where("fashion-mnist", real_data / "mnist") is None


@pytest.mark.slow
def test_real_cifar_10(real_data: Path) -> None:
    dataset = real("cifar-10", real_data)
    assert dataset.train_inputs.shape == (50_000, 3, 32, 32)
    assert dataset.test_inputs.shape == (10_000, 3, 32, 32)
    assert dataset.train_targets.bincount().tolist() == [5000] * 10
    assert dataset.test_targets.bincount().tolist() == [1000] * 10
    means = (dataset.train_inputs.float() / 255).mean((0, 2, 3))
    assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-3)
    if str(where("cifar-10", real_data)).endswith("cifar10-images.tar.xz"):
        assert dataset.note == "CIFAR-10 (JPEG)"
