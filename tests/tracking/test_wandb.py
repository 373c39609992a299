"""What Weights & Biases wrote without a network, read back from its file."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from cosdefense.runs.records import RoundRecord

ROUNDS = [RoundRecord(number, (1, 2), (1.0, 0.0), accuracy=number / 4) for number in range(3)]


def read_records(folder: Path) -> list[Any]:
    """A log as LevelDB writes it: blocks of 32 KiB, each piece with checksum, length and kind (1: whole, 4: last)."""
    from wandb.proto import wandb_internal_pb2 as messages

    (file,) = folder.rglob("*.wandb")
    data, position, pieces, records = file.read_bytes(), 7, b"", []
    assert data.startswith(b":W&B")
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # what is left of a block is padding
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        if position + 7 + length > len(data):  # not yet written to its end
            break
        pieces += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            records.append(messages.Record.FromString(pieces))  # type: ignore[attr-defined]
            pieces = b""
    return records


def wait_for_end(folder: Path) -> list[Any]:
    """Its service process may write after `finish` has returned."""
    end = time.monotonic() + 300
    while not (records := read_records(folder)) or not records[-1].HasField("exit"):
        assert time.monotonic() < end, "no end was written"
        time.sleep(0.1)
    return records


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # its imports warn
def test_an_offline_run_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason='needs the extra "wandb"')
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    from cosdefense.tracking import WeightsAndBiases

    tracker = WeightsAndBiases("hospitals", "first", mode="offline", folder=tmp_path)
    tracker.started({"experiment": {"training": {"rounds": 3}}, "defense": "median"}, ROUNDS[:1])
    for record in ROUNDS[1:]:
        tracker.recorded(record)
    tracker.ended()
    records = wait_for_end(tmp_path)
    run = next(record.run for record in records if record.HasField("run"))
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.project, run.display_name, config["training.rounds"], config["defense"]) == (
        "hospitals", "first", 3, "median",
    )  # fmt: skip
    rows = [record.history for record in records if record.HasField("history")]
    found = [{(item.key or item.nested_key[0]): json.loads(item.value_json) for item in row.item} for row in rows]
    assert [(row["_step"], row["accuracy"], row["n_rejected"]) for row in found] == [(n, n / 4, 1) for n in range(3)]
