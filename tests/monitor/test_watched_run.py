"""What is shown of a run while it grows."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from rounds import all_accepted, make_round

from cosdefense.monitor.view import RunView
from cosdefense.monitor.watched_run import WatchedRun
from cosdefense.runs.checkpoint import Checkpoint
from cosdefense.runs.run_folder import RunFolder

HEADER: dict[str, Any] = {"experiment": {"name": "flower", "strategy": "FedAvg"}, "defense": "Clip", "device": "Flower"}
HOSTILE = "<img src=x>\x1b[31m\u202e\n"


def test_each_look_gives_only_what_is_new(tmp_path: Path) -> None:
    run, folder = WatchedRun(tmp_path), RunFolder(tmp_path)
    assert run.look() is None
    assert run.status == "waiting"
    with folder.lock():
        folder.begin(HEADER)
        first = run.look()
        assert first is not None
        assert (first.kind, first.content["status"], first.content["title"]) == ("snapshot", "running", "Clip")
        for number in range(3):
            folder.append(all_accepted(number, accuracy=0.5, seconds={"train": 2.0}))
            change = run.look()
            assert change is not None
            assert change.kind == "update"
            assert [row["round"] for row in change.content["rounds"]] == [number]
            assert change.content["evaluations"] == [[number, 0.5, None]]
            assert change.content["replies"] == [[number, 10, 0, 2.0, 0]]
        assert run.look() is None
        assert [row["round"] for row in run.snapshot()["rounds"]] == [0, 1, 2]
    change = run.look()  # the lock is free, and there is no summary
    assert change is not None
    assert change.content["status"] == "stopped"
    folder.finish()
    change = run.look()
    assert change is not None
    assert (change.kind, change.content["status"]) == ("update", "finished")


def test_a_resumed_run_is_shown_anew(tmp_path: Path) -> None:
    run, folder = WatchedRun(tmp_path), RunFolder(tmp_path)
    folder.begin(HEADER)
    for number in range(4):
        folder.append(all_accepted(number))
        if number == 1:
            folder.save(Checkpoint(2, {}, {}))
    run.look()
    folder.rewind(folder.load())
    change = run.look()
    assert change is not None
    assert change.kind == "snapshot"
    assert change.content["n_rounds"] == 2


def test_unreadable_records_are_reported_until_they_are_repaired(tmp_path: Path) -> None:
    run = WatchedRun(tmp_path)
    records = tmp_path / "records.jsonl"
    for text in ("no JSON\n", '{"experiment": {}}\n{"round": 0, "clients": 5, "weights": 1}\n'):
        records.write_text(text)
        run.look()
        assert run.status == "unreadable"
        assert str(run.snapshot()["error"]).isprintable()
    RunFolder(tmp_path).begin(HEADER)
    run.look()
    assert run.status == "stopped"


def test_a_long_run_stays_small() -> None:
    view = RunView(HEADER)
    for number in range(2000):
        record = make_round(number, {1: None, 2: "defense"}, accuracy=number / 3000, seconds={"train": 1 / 3})
        view.add(record)
    snapshot = view.snapshot()
    assert len(json.dumps(snapshot)) < 50_000
    assert len(json.dumps(view.update([record]))) < 2_000
    rounds = [point[0] for point in snapshot["evaluations"]]
    assert rounds == sorted(rounds)
    assert (rounds[0], rounds[-1], snapshot["n_rounds"]) == (0, 1999, 2000)  # the last round is always there
    assert 300 <= len(rounds) <= 601
    assert max(b - a for a, b in itertools.pairwise(rounds)) <= 4


def test_a_run_of_many_nodes_stays_small() -> None:
    view = RunView(HEADER)
    for number in range(20):
        record = make_round(number, {2**63 + node: "defense" if node % 3 == 0 else None for node in range(700)})
        view.add(record)
    snapshot = view.snapshot()
    assert len(json.dumps(snapshot)) < 150_000
    assert len(json.dumps(view.update([record]))) < 100_000
    assert (snapshot["n_nodes"], len(snapshot["nodes"])) == (700, 200)
    assert {node["n_accepted"] for node in snapshot["nodes"]} == {0}  # those accepted least often
    (*_, last) = snapshot["rounds"]
    assert (last["n_rejected"], len(last["rejected"]), last["n_accepted"]) == (234, 20, 466)


def test_no_text_can_change_a_terminal() -> None:
    view = RunView({"experiment": {"name": HOSTILE, "strategy": HOSTILE}, "defense": HOSTILE, "attack": HOSTILE})
    view.add(
        make_round(
            0, {1: HOSTILE}, skipped=HOSTILE, scores={HOSTILE: (1.0,)}, seconds={HOSTILE: 1.0}, n_bytes={HOSTILE: 1}
        )
    )

    def strings(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for item in value.items() for text in strings(list(item))]
        return [text for item in value for text in strings(item)] if isinstance(value, list) else [str(value)]

    assert all(text.isprintable() for text in strings(view.snapshot()))
    assert "<img src=x>" in str(view.snapshot())  # the page shows it as text


def test_nodes_have_the_names_that_the_operator_gave_them() -> None:
    view = RunView(HEADER)
    for number in range(6):
        view.add(make_round(number, {2**64 - 1: "shape", 7: None, 8: None}, names=("clinic\x07 A", None, "clinic B")))
    snapshot = view.snapshot()
    assert [node["name"] for node in snapshot["nodes"]] == ["clinic\N{REPLACEMENT CHARACTER} A", "7", "clinic B"]
    assert snapshot["alarms"][0]["node"] == "clinic\N{REPLACEMENT CHARACTER} A"
    assert snapshot["rounds"][0]["rejected"][0]["node"] == "clinic\N{REPLACEMENT CHARACTER} A"


def test_node_ids_are_strings_and_the_unknown_sender_is_called_so() -> None:
    view = RunView(HEADER)
    view.add(make_round(0, {2**64 - 1: None, 0: "unsolicited"}))
    assert {node["id"]: node["name"] for node in view.snapshot()["nodes"]} == {
        "0": "unknown sender", str(2**64 - 1): str(2**64 - 1)
    }  # fmt: skip
    simulated = RunView({**HEADER, "device": "cpu"})
    simulated.add(make_round(0, {0: None}))
    assert simulated.snapshot()["nodes"][0]["name"] == "0"


def test_numbers_that_json_does_not_know_are_left_out() -> None:
    view = RunView(HEADER)
    view.add(make_round(0, {1: None}, accuracy=float("nan"), loss=float("inf"), scores={"f": (float("inf"),)}))
    json.dumps(view.snapshot(), allow_nan=False)
