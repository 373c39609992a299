"""The readers, on small files: what is right is read, what is wrong is named, what is hostile does nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn
from numpy.typing import NDArray
from PIL import Image

from cosdefense.data import DataError, parsers
from cosdefense.data.parsers import Split
from cosdefense.data.releases import CifarBatches, IdxFiles, JpegFolders

Bytes = NDArray[np.uint8]
rng = np.random.default_rng(0)


def idx(array: Bytes) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pixels(*shape: int) -> Bytes:
    return rng.integers(0, 256, shape, dtype=np.uint8)


def jpeg(color: tuple[int, int, int] = (200, 30, 90), size: tuple[int, int] = (32, 32), mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, color).convert(mode).save(file, "JPEG", quality=95)
    return file.getvalue()


def python2_pickle(images: Bytes, labels: list[int]) -> bytes:
    """A batch as Python 2's cPickle wrote it: byte strings throughout, lists in pieces of a thousand."""
    pieces = [labels[start : start + 1000] for start in range(0, len(labels), 1000)]
    listed = b"".join(b"(" + b"".join(b"K" + bytes([label]) for label in piece) + b"e" for piece in pieces)
    data = images.tobytes()
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05"
        + listed
        + b"U\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
        + b"(K\x01M"
        + struct.pack("<H", len(images))
        + b"M\x00\x0c\x86cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", len(data))
        + data
        + b"tbU\x09filenamesq\x0c]q\x0d(U\x05a.pngq\x0eU\x05b.pngq\x0feu."
    )


def tar(members: dict[str, bytes], path: Path, link: str | None = None) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w:xz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        if link:
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(entry)
    return path


def unpack(members: dict[str, bytes], folder: Path) -> Path:
    for name, data in members.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def same(found: tuple[Split, Split], expected: tuple[Split, Split]) -> bool:
    return all(
        np.array_equal(mine, yours)
        for split, other in zip(found, expected, strict=True)
        for mine, yours in zip(split, other, strict=True)
    )


# IDX


@given(drawn.arrays(np.uint8, drawn.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)))
def test_idx_reads_what_was_written(array: Bytes) -> None:
    assert np.array_equal(parsers.parse_idx(idx(array), "x", array.ndim), array)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "an empty file"),
        (b"\x00\x00\x0d\x03" + bytes(12), "magic number 00000803, found 00000d03"),
        (b"\x00\x00\x08\x01" + bytes(12), "magic number 00000803, found 00000801"),
        (b"\x00\x00\x08\x03" + bytes(7), "header of 16 bytes, found 11"),
        (idx(pixels(2, 3, 4))[:-1], "2 × 3 × 4 bytes its header promises, found 23"),
        (idx(pixels(2, 3, 4)) + b"x", "2 × 3 × 4 bytes its header promises, found 25"),
    ],
)
def test_damaged_idx_is_named(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match="some-file: .*" + message):
        parsers.parse_idx(data, "some-file", 3)


def test_a_header_that_promises_terabytes_allocates_nothing() -> None:
    data = b"\x00\x00\x08\x03" + b"\xff" * 12 + bytes(100)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="found 100"):
            parsers.parse_idx(data, "x", 3)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


IDX_ARRAYS = {
    "train-images-idx3-ubyte": pixels(5, 4, 4),
    "train-labels-idx1-ubyte": np.arange(5, dtype=np.uint8),
    "t10k-images-idx3-ubyte": pixels(2, 4, 4),
    "t10k-labels-idx1-ubyte": np.array([1, 0], np.uint8),
}
IDX_RELEASE = IdxFiles(*(sha256(idx(array)) for array in IDX_ARRAYS.values()))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("separator", ["-", "."])
def test_idx_files_under_every_spelling(tmp_path: Path, separator: str, suffix: str) -> None:
    for name, array in IDX_ARRAYS.items():
        data = gzip.compress(idx(array)) if suffix else idx(array)
        (tmp_path / f"{name.replace('-idx', f'{separator}idx')}{suffix}").write_bytes(data)
    assert IDX_RELEASE.find(tmp_path) == tmp_path
    IDX_RELEASE.verify(tmp_path)
    (train_images, train_labels), (test_images, test_labels) = IDX_RELEASE.read(tmp_path)
    assert np.array_equal(train_images[:, 0], IDX_ARRAYS["train-images-idx3-ubyte"])
    assert train_labels.tolist() == [0, 1, 2, 3, 4]
    assert test_images.shape == (2, 1, 4, 4)
    assert test_labels.tolist() == [1, 0]


def test_an_incomplete_set_is_not_found(tmp_path: Path) -> None:
    unpack({name: idx(array) for name, array in list(IDX_ARRAYS.items())[:3]}, tmp_path)
    assert IDX_RELEASE.find(tmp_path) is None
    assert IDX_RELEASE.missing(tmp_path) == ["t10k-labels-idx1-ubyte.gz"]


@pytest.mark.parametrize("name", list(IDX_ARRAYS))
def test_every_idx_file_is_compared_with_its_digest(tmp_path: Path, name: str) -> None:
    files = {name: idx(array) for name, array in IDX_ARRAYS.items()}
    unpack(files | {name: files[name][:-1] + bytes([files[name][-1] ^ 1])}, tmp_path)
    for attempt in (IDX_RELEASE.read, IDX_RELEASE.verify):
        with pytest.raises(DataError, match=f"{name}: needed SHA-256 {sha256(files[name])}, found"):
            attempt(tmp_path)
    assert IDX_RELEASE.recognizes(tmp_path) is (name != "t10k-labels-idx1-ubyte")


# Files


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    files = unpack({"plain": b"12345", "packed.gz": gzip.compress(bytes(1_000_000))}, tmp_path)
    assert parsers.read_file(files / "plain", 5) == b"12345"
    with pytest.raises(DataError, match="plain: needed at most 4 bytes"):
        parsers.read_file(files / "plain", 4)
    with pytest.raises(DataError, match=r"packed\.gz: needed at most 999 bytes"):
        parsers.read_file(files / "packed.gz", 999)


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(pixels(1000).tobytes())[:-12],
        gzip.compress(pixels(1000).tobytes())[:-8] + bytes(8),
        gzip.compress(b"x")[:10] + b"\xff" * 20,
        b"no gzip",
        None,
    ],
    ids=["cut off", "wrong checksum", "garbage", "no gzip", "a folder"],  # gzip writes the time of day into its header
)
def test_unreadable_files_are_named(tmp_path: Path, data: bytes | None) -> None:
    if data is not None:
        (tmp_path / "file.gz").write_bytes(data)
    with pytest.raises(DataError, match=r"file\.gz: needed a readable file, found ."):
        parsers.read_file(tmp_path / "file.gz", 10_000)


# CIFAR-10's batches


def test_cifar_binary() -> None:
    images = pixels(3, 3, 32, 32)
    data = b"".join(bytes([label]) + image.tobytes() for label, image in zip((7, 0, 9), images, strict=True))
    found, labels = parsers.parse_cifar_binary(data, "x")
    assert np.array_equal(found, images)
    assert labels.tolist() == [7, 0, 9]


@pytest.mark.parametrize("length", [0, 1, 3072, 3074])
def test_cifar_binary_of_a_wrong_length(length: int) -> None:
    with pytest.raises(DataError, match=f"x: needed a multiple of 3073 bytes, found {length}"):
        parsers.parse_cifar_binary(bytes(length), "x")


@pytest.mark.parametrize("n", [1, 2, 2500])
def test_cifar_python_as_python_2_wrote_it(n: int) -> None:
    images, expected = pixels(n, 3, 32, 32), rng.integers(0, 10, n).tolist()
    found, labels = parsers.parse_cifar_python(python2_pickle(images, expected), "x")
    assert np.array_equal(found, images)
    assert labels.tolist() == expected


@pytest.mark.parametrize("key", [str, str.encode], ids=["text", "bytes"])
@pytest.mark.parametrize("protocol", range(2, 6))
def test_cifar_python_pickled_again(protocol: int, key: Callable[[str], object]) -> None:
    images, expected = pixels(30, 3, 32, 32), list(range(30))
    names = [f"image_{number}.png" for number in range(30)]
    batch = {"batch_label": "one", "labels": expected, "data": images.reshape(30, 3072), "filenames": names}
    data = pickle.dumps({key(name): value for name, value in batch.items()}, protocol)
    found, labels = parsers.parse_cifar_python(data, "x")
    assert np.array_equal(found, images)
    assert labels.tolist() == expected


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"labels": [1], "data": bytes(3071)}, "one array of 3072 bytes per image, found 0"),
        ({"labels": [1], "data": bytes(3072), "more": bytes(6144)}, "one array of 3072 bytes per image, found 2"),
        ({"labels": [1, 2], "data": bytes(3072)}, "1 labels, one per image, found 2"),
        ({"data": bytes(3072)}, "1 labels, one per image, found 0"),
        ({"labels": [300], "data": bytes(3072)}, "labels from 0 to 255, found 300"),
        ({"labels": [-1], "data": bytes(3072)}, "labels from 0 to 255, found -1"),
        ({"labels": [1 << 100], "data": bytes(3072)}, "labels from 0 to 255, found 1267"),
        ({"labels": [1], "data": "ü€" * 1536}, "a pickled batch, found .*latin-1"),
    ],
)
def test_unfit_pickles_are_named(batch: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match="some-file: needed " + message):
        parsers.parse_cifar_python(pickle.dumps(batch), "some-file")


def test_a_torn_pickle_is_named() -> None:
    with pytest.raises(DataError, match="x: needed a pickled batch, found"):
        parsers.parse_cifar_python(python2_pickle(pixels(2, 3, 32, 32), [1, 2])[:3000], "x")


def test_an_odd_escape_in_a_pickle_is_no_warning() -> None:
    with pytest.raises(DataError, match="one array of 3072 bytes per image, found 0"):
        parsers.parse_cifar_python(b"c\\u\nname\n.", "x")


class Hostile:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch '{self.canary}'",)


def test_a_hostile_pickle_does_not_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    batch = {"evil": Hostile(canary), "labels": [3], "data": bytes(3072)}
    (tmp_path / "batch").write_bytes(pickle.dumps(batch, 2))
    _, labels = parsers.parse_cifar_python((tmp_path / "batch").read_bytes(), "x")
    assert labels.tolist() == [3]
    assert not canary.exists()
    unpickle = f"import pickle; pickle.load(open({str(tmp_path / 'batch')!r}, 'rb'))"
    subprocess.run([sys.executable, "-c", unpickle], check=True, timeout=300)
    assert canary.exists()  # it would have run


# JPEG


def test_jpeg_keeps_colors_and_directions() -> None:
    picture = np.zeros((16, 24, 3), np.uint8)
    picture[:8, :, 0] = 255  # the upper half is red
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=95, subsampling=0)
    found = parsers.parse_jpeg(file.getvalue(), "x", (24, 16))
    assert found.shape == (3, 16, 24)
    assert np.abs(found.astype(int) - picture.transpose(2, 0, 1)).max() < 20


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (jpeg(size=(32, 31)), "found RGB of 32 × 31"),
        (jpeg(size=(3000, 3000)), "found RGB of 3000 × 3000"),
        (jpeg(mode="L"), "found L of 32 × 32"),
        (jpeg()[:-20], "found .*truncated"),
        (png(), "found cannot identify"),
        (b"", "found cannot identify"),
    ],
)
def test_unfit_images_are_named(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match="x: needed a JPEG image, RGB of 32 × 32, " + message):
        parsers.parse_jpeg(data, "x", (32, 32))


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data = jpeg()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"needed Pillow.*pip install .*'\.\[data\]'"):
        parsers.parse_jpeg(data, "x", (32, 32))


# Whatever is in a file, the only complaint is a DataError


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """`data` with a few bytes changed and its end cut off."""
    changes = st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=8)

    def apply(changes: list[tuple[int, int]], end: int) -> bytes:
        changed = bytearray(data)
        for place, value in changes:
            changed[place] = value
        return bytes(changed[:end])

    return st.builds(apply, changes, st.integers(0, len(data)) | st.just(len(data)))


def survives(parse: Callable[[], object]) -> None:
    with suppress(DataError):
        parse()


@given(damaged(idx(pixels(2, 3, 4))) | st.binary(max_size=40))
def test_any_bytes_as_idx(data: bytes) -> None:
    survives(lambda: parsers.parse_idx(data, "x", 3))


SMALL_PICKLE = python2_pickle(pixels(1, 3, 32, 32), [1])
HEAD, TAIL = SMALL_PICKLE[:240], SMALL_PICKLE[-60:]


@given(damaged(HEAD + TAIL) | damaged(SMALL_PICKLE) | st.binary(max_size=40))
def test_any_bytes_as_a_pickle(data: bytes) -> None:
    survives(lambda: parsers.parse_cifar_python(data, "x"))


@given(damaged(jpeg()))
def test_any_bytes_as_an_image(data: bytes) -> None:
    survives(lambda: parsers.parse_jpeg(data, "x", (32, 32)))


# Archives and folders

BATCHES = {
    name: (pixels(2, 3, 32, 32), [number, 9 - number])
    for number, name in enumerate(["data_batch_1", "data_batch_2", "test_batch"])
}
BATCH_ARRAYS: tuple[Split, Split] = (
    (
        np.concatenate([BATCHES["data_batch_1"][0], BATCHES["data_batch_2"][0]]),
        np.array([0, 9, 1, 8]),
    ),
    (BATCHES["test_batch"][0], np.array([2, 7])),
)


def binary(images: Bytes, labels: list[int]) -> bytes:
    return b"".join(bytes([label]) + image.tobytes() for label, image in zip(labels, images, strict=True))


KINDS = {
    "binary": ("c.tar.gz", "batches-bin", ".bin", parsers.parse_cifar_binary, binary),
    "python": ("c.tar.gz", "batches-py", "", parsers.parse_cifar_python, python2_pickle),
}


def batches(kind: str, digest: str = "") -> tuple[CifarBatches, dict[str, bytes]]:
    archive, folder, suffix, parse, write = KINDS[kind]
    files = {f"{name}{suffix}": write(*batch) for name, batch in BATCHES.items()}
    return CifarBatches(archive, digest, folder, suffix, parse), files


@pytest.mark.parametrize("kind", KINDS)
def test_batches_from_an_archive(tmp_path: Path, kind: str) -> None:
    release, files = batches(kind)
    backwards = {f"{release.folder}/{name}": files[name] for name in reversed(files)}  # order must not matter
    archive = tar({"readme.html": b"hello", **backwards}, tmp_path / release.archive)
    release, _ = batches(kind, sha256(archive.read_bytes()))
    assert release.find(tmp_path) == archive
    release.verify(archive)
    assert same(release.read(archive), BATCH_ARRAYS)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_from_a_folder(tmp_path: Path, kind: str, inside: bool) -> None:
    release, files = batches(kind)
    folder = unpack(files, tmp_path / release.folder)
    assert release.find(tmp_path if inside else folder) == folder
    assert same(release.read(folder), BATCH_ARRAYS)
    (folder / f"test_batch{release.suffix}").unlink()
    assert release.find(tmp_path) is None
    assert release.missing(tmp_path) == [release.archive]


CLASSES = ("cat", "dog")
COLORS = {"cat": (250, 10, 10), "dog": (10, 10, 250)}
IMAGES = {
    f"{part}/{label}/{number:04d}.jpg": jpeg(COLORS[label])
    for part, count in (("train", 3), ("test", 1))
    for label in CLASSES
    for number in range(count)
}


def pictures(digest: str = "") -> JpegFolders:
    return JpegFolders("images.tar.xz", digest, "images", CLASSES, (32, 32), "Pets")


@pytest.mark.parametrize("prefix", ["", "./", "images/"])
def test_images_from_an_archive(tmp_path: Path, prefix: str) -> None:
    archive = tar({prefix + name: data for name, data in reversed(IMAGES.items())}, tmp_path / "images.tar.xz")
    release = pictures(sha256(archive.read_bytes()))
    assert release.find(tmp_path) == archive
    calls: list[tuple[str, int, int]] = []
    (images, labels), (_, test_labels) = release.read(archive, lambda *call: calls.append(call))
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert test_labels.tolist() == [0, 1]
    assert images.shape == (6, 3, 32, 32)
    assert images[:3, 0].min() > 200 > 50 > images[3:, 0].max()  # cats are red
    assert calls == [("decoding images.tar.xz", 8, 8)]
    assert release.note == "Pets (JPEG)"


def test_images_from_a_folder_are_those_of_the_archive(tmp_path: Path) -> None:
    archive = tar(IMAGES, tmp_path / "images.tar.xz")
    packed = pictures(sha256(archive.read_bytes())).read(archive)
    folder = unpack(IMAGES, tmp_path / "elsewhere" / "images")
    for place in (folder, folder.parent):
        assert pictures().find(place) == folder
    assert same(pictures().read(folder), packed)


def test_folders_of_other_classes_are_not_taken_for_the_dataset(tmp_path: Path) -> None:
    unpack({name.replace("dog", "wolf"): data for name, data in IMAGES.items()}, tmp_path)
    assert pictures().find(tmp_path) is None


def test_a_damaged_image_is_named_with_its_archive(tmp_path: Path) -> None:
    archive = tar({**IMAGES, "train/cat/0001.jpg": b"nothing"}, tmp_path / "images.tar.xz")
    with pytest.raises(DataError, match=r"images\.tar\.xz: train/cat/0001\.jpg: needed a JPEG"):
        pictures(sha256(archive.read_bytes())).read(archive)


def test_a_member_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    archive = tar({**IMAGES, "train/cat/0001.jpg": bytes(2_000_000)}, tmp_path / "images.tar.xz")
    with pytest.raises(DataError, match=r"0001\.jpg: needed at most 1048576 bytes"):
        pictures(sha256(archive.read_bytes())).read(archive)


def test_an_archive_of_another_digest_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tar(IMAGES, tmp_path / "images.tar.xz")
    monkeypatch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("opened"))
    for attempt in (pictures("0" * 64).read, pictures("0" * 64).verify):
        with pytest.raises(DataError, match=r"images\.tar\.xz: needed SHA-256 0{64}, found"):
            attempt(archive)


@pytest.mark.parametrize("cut", [1, 0.5])
def test_a_damaged_archive_is_named(tmp_path: Path, cut: float) -> None:
    archive = tar(IMAGES, tmp_path / "images.tar.xz")
    data = archive.read_bytes()
    archive.write_bytes(data[: int(len(data) * cut)] if cut < 1 else b"nothing")
    with pytest.raises(DataError, match=r"images\.tar\.xz: needed a readable file, found ."):
        pictures(sha256(archive.read_bytes())).read(archive)


def test_reading_an_archive_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "a" / "b"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    outside = {"../../evil": b"x", "/tmp/../evil": b"x", "../train/cat/9999.jpg": b"x"}
    archive = tar({**IMAGES, **outside}, home / "images.tar.xz", link="train/cat/9998.jpg")
    before = sorted(tmp_path.rglob("*"))
    (_, labels), _ = pictures(sha256(archive.read_bytes())).read(archive)
    assert len(labels) == 6  # neither the link nor what lies outside is among them
    assert sorted(tmp_path.rglob("*")) == before
