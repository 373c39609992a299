"""Records survive the file, and a torn last line does not matter."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosdefense.runs.records import NotARun, RoundRecord, read_run

numbers = st.floats(-1e6, 1e6).map(lambda x: float(f"{x:.6g}"))
fields = st.integers(1, 5).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            "round": st.integers(0, 1000),
            "clients": st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * n),
            "weights": st.tuples(*[numbers] * n),
            "malicious": st.none() | st.tuples(*[st.booleans()] * n),
            "defended": st.booleans(),
            "skipped": st.none() | st.text(max_size=20),
            "scores": st.dictionaries(st.text(max_size=5), st.tuples(*[st.none() | numbers] * n), max_size=2),
            "accuracy": st.none() | numbers,
            "loss": st.none() | numbers,
            "attack_success": st.none() | numbers,
            "batch_statistics_accuracy": st.none() | numbers,
            "seconds": st.dictionaries(st.sampled_from(["train", "defend"]), numbers),
            "peak_memory": st.dictionaries(st.sampled_from(["train", "defend"]), st.integers(0, 2**40)),
        }
    )
)


@given(fields)
def test_round_trip(values: dict[str, Any]) -> None:
    record = RoundRecord(**values)
    assert RoundRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_json_knows_neither_nan_nor_infinity() -> None:
    line = RoundRecord(0, (1,), (1.0,), loss=float("-inf"), scores={"Krum": (float("nan"),)}).to_json()
    assert line["loss"] == -sys.float_info.max
    assert line["scores"] == {"Krum": [None]}
    json.dumps(line, allow_nan=False)


HEADER = '{"experiment":{"name":"x"},"defense":"Krum"}\n'


def test_a_torn_last_line_is_ignored(tmp_path: Path) -> None:
    whole = '{"round":0,"clients":[1],"weights":[1.0]}\n'
    (tmp_path / "records.jsonl").write_text(HEADER + whole + whole[:20])
    run = read_run(tmp_path)
    assert [record.round for record in run.rounds] == [0]
    assert run.summary is None
    assert run.label == "Krum"


def test_what_is_not_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match=r"records.jsonl does not exist"):
        read_run(tmp_path)
    for content in ('{"round": 1}\n', "", "123\n", "[]\n", '{"experiment": 3}\n', "\x00\n"):
        (tmp_path / "records.jsonl").write_text(content)
        with pytest.raises(NotARun, match="has no header line"):
            read_run(tmp_path)
    (tmp_path / "records.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(NotARun, match="has no header line"):
        read_run(tmp_path)
    (tmp_path / "records.jsonl").write_text(HEADER + '{"round": 0}\n')
    with pytest.raises(NotARun, match="holds a round that cannot be read"):
        read_run(tmp_path)
