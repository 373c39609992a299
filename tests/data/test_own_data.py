"""Datasets of one's own: each source gives the samples that were put into it, and mistakes are named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cosdefense.catalog.options import ConfigError
from cosdefense.core.experiment_folder import reading_from
from cosdefense.data import DataError, Dataset, load, split_dataset
from shapes import unchecked

SAVED = Path(__file__).parent / "saved_datasets"  # written by `save_to_disk` of Hugging Face's datasets 5.2.0

TABLE = """\
age,site,sex,sick,score
10,north,f,no,0.5
20,north,m,yes,1.5
30,south,f,no,2.5
40,south,m,yes,3.5
50,south,f,no,4.5
60,north,m,yes,5.5
70,south,f,no,6.5
80,north,m,yes,7.5
90,north,f,no,8.5
99,south,m,yes,9.5
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


def test_a_table(table: Path) -> None:
    data = load(str(table), label="sick", client="site", drop=["score"], test=0.4)
    assert (data.classes, data.clients) == (("no", "yes"), ("north", "south"))
    assert data.train_inputs.shape == (6, 3)  # the age, and one column for each of two words
    inputs, targets = (
        torch.cat([data.train_inputs, data.test_inputs]),
        torch.cat([data.train_targets, data.test_targets]),
    )
    order = inputs[:, 0].argsort()
    assert inputs[order, 0].tolist() == [10, 20, 30, 40, 50, 60, 70, 80, 90, 99]
    assert inputs[order, 1].tolist() == [1, 0] * 5  # "f"
    assert targets[order].tolist() == [0, 1] * 5
    assert data.train_clients is not None
    assert data.test_clients is not None
    owners = torch.cat([data.train_clients, data.test_clients])
    assert owners[order].tolist() == [0, 0, 1, 1, 1, 0, 1, 0, 0, 1]
    assert sorted(data.test_clients.tolist()) == [0, 0, 1, 1]  # of each client, as nearly as possible
    ages = data.train_inputs[:, 0].double()
    assert data.mean == pytest.approx((float(ages.mean()), 0, 0))
    assert data.std == pytest.approx((float(ages.std(unbiased=False)), 1, 1))


def test_numbers_to_predict(table: Path) -> None:
    data = load(str(table), label="score", drop=["site"])
    assert (data.classes, data.n_classes, data.train_targets.dtype) == ((), 0, torch.float32)
    assert load(str(table), label="age", kind="numbers").n_classes == 0
    assert load(str(table), label="age").n_classes == 10


def test_a_column_says_which_samples_are_for_testing(table: Path) -> None:
    table.write_text(TABLE.replace("north", "test"))
    data = load(str(table), label="sick", test="site")
    assert sorted(data.test_inputs[:, 0].tolist()) == [10, 20, 60, 80, 90]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "ill"}, "needed a column 'ill', found age, site, sex, sick, score"),
        ({"label": "sick", "client": "town"}, "needed a column 'town'"),
        ({"label": "sick", "test": 1.5}, "test must be a share between 0 and 1, got 1.5"),
        ({"label": "sex", "kind": "numbers"}, "needed finite numbers, found 'f' and others"),
        ({"label": "sick", "drop": ["age", "site", "sex", "score"]}, "needed at least one column of features"),
    ],
)
def test_mistakes_about_a_table(table: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(str(table), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("20,north", ",north"), "line 3, column 'age': needed a finite number, found ''"),
        (("20,north", "nan,north"), "line 3, column 'age': needed a finite number, found 'nan'"),
        (("20,north,m", "20,north"), "line 3: needed 5 columns, found 4"),
        ((TABLE[24:], ""), "needed samples below the names of columns"),
        (("age,site", "age,age"), "needed different names of columns"),
    ],
)
def test_damaged_tables(table: Path, change: tuple[str, str], message: str) -> None:
    table.write_text(TABLE.replace(*change))
    with pytest.raises(DataError, match=message):
        load(str(table), label="sick")


def test_what_cannot_be_found_or_read(tmp_path: Path, table: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(TABLE.encode() + b"\xff")
    with pytest.raises(DataError, match="needed a table in UTF-8"):
        load(str(tmp_path / "latin.csv"), label="sick")
    with pytest.raises(ConfigError, match=r"dataset 'nowhere.csv' was not found: looked for .*nowhere.csv"):
        load("nowhere.csv", label="x")
    with pytest.raises(ConfigError, match=r"needs label: write dataset = \{ name = .*label = "):
        load(str(table))
    with pytest.raises(ConfigError, match="option 'lable' is unknown: did you mean 'label'"):
        load(str(table), lable="sick")
    (tmp_path / "table.xlsx").touch()
    with pytest.raises(ConfigError, match=r"must be a file of kind .csv, .npz, or a folder, got .xlsx"):
        load(str(tmp_path / "table.xlsx"))
    with pytest.raises(ConfigError, match="dataset digits takes no options, got label"):
        load("digits", label="x")


def test_paths_are_relative_to_the_experiment(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path.parent)
    with reading_from(tmp_path):
        assert load("table.csv", label="sick").name == "table.csv"


def test_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8), np.array([[0], [1], [2], [0], [1], [2]])
    np.savez(tmp_path / "a.npz", x_train=images[:4], y_train=labels[:4], x_test=images[4:], y_test=labels[4:])
    data = load(str(tmp_path / "a.npz"))
    assert data.classes == ("0", "1", "2")
    assert data.train_targets.tolist() == [0, 1, 2, 0]
    assert data.test_inputs.numpy().transpose(0, 2, 3, 1).tolist() == images[4:].tolist()
    tokens = rng.integers(0, 9, (10, 5), dtype=np.int32)
    np.savez(tmp_path / "b.npz", inputs=tokens, targets=np.linspace(0, 1, 10), clients=["x", "y"], owners=[0, 1] * 5)
    data = load(str(tmp_path / "b.npz"), test=0.5)
    assert (data.train_inputs.dtype, data.train_targets.dtype) == (torch.int64, torch.float32)
    assert data.clients == ("x", "y")
    np.savez(tmp_path / "c.npz", inputs=np.array([{}]), targets=[0])
    with pytest.raises(DataError, match=r"needed a readable .npz file of plain arrays"):
        load(str(tmp_path / "c.npz"))
    np.savez(tmp_path / "d.npz", features=tokens)
    with pytest.raises(DataError, match="or inputs and targets, found features"):
        load(str(tmp_path / "d.npz"))


def test_a_folder_of_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 5, 3), dtype=np.uint8)
    for i, array in enumerate(pixels):
        path = tmp_path / "pictures" / ("north", "south")[i % 2] / ("cat", "dog")[i // 4] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(array).save(path)
    data = load(str(tmp_path / "pictures"), by_client=True, test=0.25)
    assert (data.classes, data.clients) == (("cat", "dog"), ("north", "south"))
    found = torch.cat([data.train_inputs, data.test_inputs]).permute(0, 2, 3, 1).tolist()
    assert sorted(found) == sorted(pixels.tolist())
    assert load(str(tmp_path / "pictures"), by_client=True, size=4, mode="L").train_inputs.shape[1:] == (1, 4, 4)
    with pytest.raises(DataError, match=r"needed images as class/image.png, found north/cat/0.png"):
        load(str(tmp_path / "pictures"))
    image.fromarray(pixels[0, :3]).save(tmp_path / "pictures" / "north" / "cat" / "x.png")
    with pytest.raises(DataError, match="needed images of one size, or the option size, found 5 × 6 and 5 × 3"):
        load(str(tmp_path / "pictures"), by_client=True)
    (tmp_path / "pictures" / "north" / "cat" / "x.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"x.png: needed an image of PNG, JPEG"):
        load(str(tmp_path / "pictures"), by_client=True)


def test_saved_datasets(tmp_path: Path) -> None:
    """The first twenty token lists were drawn by numpy; the division is that of the library."""
    pytest.importorskip("polars")
    rng = np.random.default_rng(0)
    expected = [rng.integers(0, 9, 6).tolist() for _ in range(20)]
    data = load(str(SAVED / "tokens"), features=["tokens"], client="site")
    assert data.train_inputs.tolist() == expected[:15]
    assert data.test_inputs.tolist() == expected[15:]
    assert (data.classes, data.clients) == (("no", "yes"), ("a", "b"))
    assert data.train_targets.tolist() == [i % 2 for i in range(15)]
    with pytest.raises(DataError, match="needed a column 'lable', found tokens, label, site"):
        load(str(SAVED / "tokens"), label="lable")
    pictures = load(str(SAVED / "images"), test=0.5)
    assert pictures.train_inputs.shape == (3, 3, 5, 5)
    broken = shutil.copytree(SAVED / "images", tmp_path / "broken")
    (broken / "data-00000-of-00001.arrow").write_bytes(b"ARROW1")
    with pytest.raises(DataError, match="needed readable Arrow files"):
        load(str(broken))
    (broken / "state.json").write_text(json.dumps({"_data_files": [{"filename": "/etc/passwd"}]}))
    with pytest.raises(DataError, match="needed readable Arrow files"):
        load(str(broken))


MODULE = """
import torch
from cosdefense.data import Dataset, split_dataset

def make(n: int = 10, shift: float = 0.0) -> Dataset:
    return split_dataset("mine", torch.arange(n)[:, None] + shift, torch.arange(n) % 2, classes=("a", "b"))

def anything(n: int = 3):
    return n
"""


def test_a_function(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    with reading_from(tmp_path):
        assert len(load("mine:make", n=20).train_targets) == 16
        with pytest.raises(ConfigError, match="option 'm' is unknown"):
            load("mine:make", m=20)
        with pytest.raises(ConfigError, match=r"must be a subclass of Dataset, or a function annotated to return one"):
            load("mine:anything")


def example(**changes: Any) -> Dataset:
    inputs, targets = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    made = Dataset("x", inputs[:4], targets[:4], inputs[4:], targets[4:], ("a", "b"))
    return replace(made, **changes)


def test_the_digest_is_that_of_the_content() -> None:
    one = example()
    assert example(name="y", note="z").digest == one.digest
    changed = one.train_inputs.clone()
    changed[0, 0] += 1
    others: list[dict[str, Any]] = [
        {"train_inputs": changed},
        {"classes": ("b", "a")},
        {"std": (2.0,)},
        {"test_targets": torch.tensor([1, 1])},
    ]
    assert len({one.digest, *(example(**change).digest for change in others)}) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_targets": torch.tensor([0, 1, 2, 0])}, r"x \(training\): needed labels from 0 to 1, found 0 to 2"),
        ({"test_targets": torch.tensor([0])}, r"x \(test\): needed as many targets as inputs, found 1 and 2"),
        ({"train_inputs": torch.full((4, 2), torch.nan)}, "needed finite numbers, found 8 that are not"),
        ({"test_inputs": torch.zeros(2, 3)}, "needed inputs of one shape for training and test"),
        ({"classes": ()}, "needed names of the classes, or targets that are floating-point"),
        ({"clients": ("a",)}, "needed names of clients together with the client of every training sample"),
        ({"clients": ("a",), "train_clients": torch.tensor([0, 0, 0, 1])}, "needed clients from 0 to 0, found others"),
    ],
)
def test_what_a_dataset_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        example(**changes)


def test_bytes_are_pixels() -> None:
    flat = torch.zeros(4, 2, dtype=torch.uint8)
    with (
        unchecked(),
        pytest.raises(DataError, match=r"bytes are pixels, and need shape \(m, channels, height, width\)"),
    ):
        Dataset("x", flat, torch.zeros(4), flat, torch.zeros(4))


def test_every_client_and_class_is_held_out_alike() -> None:
    owners, labels = torch.arange(400) % 4, torch.arange(400) // 200
    data = split_dataset(
        "x", torch.arange(400.0), labels, test=0.25, classes=("a", "b"), clients=tuple("abcd"), owners=owners
    )
    assert data.test_clients is not None
    counts = torch.bincount(data.test_clients * 2 + data.test_targets, minlength=8)
    assert int(counts.min()) >= 12
    assert int(counts.max()) <= 13
