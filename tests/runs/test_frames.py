"""Tables of runs against the records that they come from."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("polars", reason='needs the extra "frames"')

import polars as pl

import cosdefense
from commands import called
from cosdefense.runs.packed_records import PACK, compact, write_pack
from cosdefense.runs.records import RoundRecord, RunRecord
from cosdefense.runs.run_folder import RunFolder
from synthetic_runs import make_run

NODE = 2**64 - 3  # Flower's ids take all 64 bits

ROUNDS = (
    RoundRecord(
        0, (7, NODE), (1.0, 0.0), reasons=(None, "late"), names=("clinic", None), scores={"krum": (0.5, None)},
        seconds={"train": 2.0}, notes={"buffers": (7,)},
    ),
    RoundRecord(1, (7,), (0.5,), malicious=(True,), accuracy=0.75, class_recalls=(1.0, None)),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = RunFolder(tmp_path / "runs" / "flower")
    with run.lock():
        run.begin({"experiment": {"name": "flower"}, "defense": "krum"})
        for record in ROUNDS:
            run.append(record)
    return tmp_path / "runs"


def test_a_row_per_round(folder: Path) -> None:
    table = cosdefense.read_runs(folder)
    assert table["run"].to_list() == [str(folder / "flower")] * 2
    assert table.select("experiment", "attack", "defense", "seed").row(0) == ("flower", None, "krum", None)
    expected = {
        "round": [0, 1], "accuracy": [None, 0.75], "loss": [None, None], "skipped": [None, None],
        "seconds_train": [2.0, None], "class_recalls_0": [None, 1.0], "class_recalls_1": [None, None],
        "n_clients": [2, 1], "n_rejected": [1, 0], "n_malicious": [None, 1], "n_malicious_rejected": [None, 0],
    }  # fmt: skip
    assert {name: table[name].to_list() for name in expected} == expected
    assert table["loss"].dtype == pl.Float64


def test_a_row_per_client(folder: Path) -> None:
    table = cosdefense.read_runs(str(folder / "flower"), rows="clients")
    assert {name: table[name].to_list() for name in table.columns[5:]} == {
        "round": [0, 0, 1], "client": [7, NODE, 7], "name": ["clinic", None, None], "weight": [1.0, 0.0, 0.5],
        "accepted": [True, False, True], "malicious": [None, None, True], "reason": [None, "late", None],
        "notes": ["buffers", None, None], "score_krum": [0.5, None, None],
    }  # fmt: skip


def test_the_metrics_of_clients_that_did_not_take_part(tmp_path: Path) -> None:
    record = RoundRecord(0, (2, 0), (1.0, 0.0), accuracy=0.5, client_metrics={"accuracy": (0.25, 0.5, None)})
    write_pack(tmp_path / PACK, [RunRecord({"experiment": {}, "clients": ["Aberg", "Birke", "Cedar"]}, (record,))])
    table = cosdefense.read_runs(tmp_path, rows="clients")
    assert table.select("client", "name", "accepted", "metric_accuracy").rows() == [
        (2, "Cedar", True, None),
        (0, "Aberg", False, 0.25),
        (1, "Birke", None, 0.5),
    ]


def test_a_row_per_run_has_its_summary(tmp_path: Path) -> None:
    run = make_run(rounds=80)
    finished = RunRecord(run.header, run.rounds, {"final_accuracy": 0.5, "seconds": {"train": 8.0}})
    unfinished = replace(finished, summary=None, header={**run.header, "defense": "median"})
    write_pack(tmp_path / PACK, [compact(finished), unfinished])
    table = cosdefense.read_runs(tmp_path, rows="runs")
    assert table["defense"].to_list() == ["cosdefense", "median"]
    assert table["finished"].to_list() == [True, False]
    assert table["n_rounds"].to_list() == [80, 80]
    assert table["seconds_train"].to_list() == [8.0, pytest.approx(8.0)]
    measured = [record.accuracy for record in run.rounds if record.accuracy is not None]
    assert table["final_accuracy"].to_list() == [0.5, pytest.approx(measured[-1], rel=1e-5)]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_an_export_reads_back(folder: Path, suffix: str) -> None:
    for rows in ("rounds", "clients"):
        done = called("export", "runs", "--to", f"out/{rows}.{suffix}", "--rows", rows, cwd=folder.parent)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"wrote out/{rows}.{suffix}: " in done.stdout
        file = folder.parent / "out" / f"{rows}.{suffix}"
        table = pl.read_parquet(file) if suffix == "parquet" else pl.read_csv(file)
        expected = cosdefense.read_runs(folder, rows=rows).with_columns(run=pl.lit("runs/flower"))
        assert table.rows() == expected.rows()
        assert table.columns == expected.columns


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("runs", "--to", "x.xlsx"), "--to must end in .parquet or .csv, got x.xlsx"),
        (("runs", "--to", "x.csv", "--rows", "nodes"), "rows must be one of rounds, clients, runs, got 'nodes'"),
        (("elsewhere", "--to", "x.csv"), "elsewhere holds no run"),
    ],
)
def test_mistakes_are_named(folder: Path, words: tuple[str, ...], complaint: str) -> None:
    done = called("export", *words, cwd=folder.parent)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_a_pack_without_clients_is_said(tmp_path: Path) -> None:
    run = make_run(rounds=4)
    write_pack(tmp_path / PACK, [compact(RunRecord(run.header, run.rounds, {"final_accuracy": 0.5}))])
    done = called("export", PACK, "--to", "clients.csv", "--rows", "clients", cwd=tmp_path)
    assert "these records hold no clients" in done.stderr


def test_without_polars_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    done = called("export", "runs", "--to", "x.csv", cwd=folder.parent)
    assert done.returncode == 1
    assert "polars was not found" in done.stderr
    with pytest.raises(ImportError):
        cosdefense.read_runs(folder)
