"""The live page in a real browser, while a federation runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("websockets", reason="needs websockets, which Flower installs")
from federations import NODES, LocalGrid, content, honest, model, record, reply, to_arrays
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from browser import BROWSER, NAMES, Browser, start_browser
from cosdefense.filters import MultiKrum
from cosdefense.flower import Defended
from cosdefense.runs.records import RoundRecord
from cosdefense.runs.run_folder import RunFolder
from serving import serving

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason=f"needs a browser: {', '.join(NAMES)}"),
    pytest.mark.slow,  # starts browsers
]

TOKEN = "0123456789abcdef"
HOSTILE = "<img src=x onerror='document.documentElement.dataset.ran = 1'>"
ROUNDS = "[...document.querySelectorAll('#rounds th')].map((cell) => cell.textContent).join()"
STATE = "document.getElementById('state')?.textContent"
WIDTHS = "[innerWidth, document.documentElement.scrollWidth]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with start_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def malicious(message: Message) -> Message:
    """The first node sends NaN, all others are honest."""
    if message.metadata.dst_node_id != NODES[0] or message.metadata.message_type == "evaluate":
        return honest(message)
    arrays = to_arrays(message.content["arrays"])
    arrays["head.bias"] = arrays["head.bias"] * float("nan")
    return reply(message, content(arrays, {"loss": 1.0, "num-examples": 10}))


class Steps:
    """Evaluates each round when the test allows it."""

    def __init__(self) -> None:
        self.allowed = threading.Semaphore(0)

    def __call__(self, number: int, arrays: ArrayRecord) -> MetricRecord:
        assert number == 0 or self.allowed.acquire(timeout=300)
        return MetricRecord({"accuracy": 0.5 + number / 10, "loss": 1 / (1 + number)})


def test_new_rounds_appear_while_a_federation_runs(browser: Browser, tmp_path: Path) -> None:
    steps, folder = Steps(), tmp_path / "run"
    defended = Defended(FedAvg(fraction_evaluate=0.0), MultiKrum(0.2), checkpoint_dir=folder, seed=1)
    arguments = {"num_rounds": 4, "evaluate_fn": steps}
    federation = threading.Thread(
        target=defended.start, args=(LocalGrid(malicious), record(model())), kwargs=arguments, daemon=True
    )
    with serving(folder, TOKEN) as port:
        browser.open(f"http://any:{TOKEN}@127.0.0.1:{port}/")
        browser.wait_for(f"{STATE} === 'waiting for the first round'")
        browser.evaluate("window.before = 1")  # gone if the page were loaded again
        federation.start()
        for number in (1, 2):
            steps.allowed.release()
            browser.wait_for(f"{ROUNDS} === '{','.join(map(str, range(number, 0, -1)))}'")
        assert browser.evaluate(STATE) == "running"
        text = str(browser.evaluate("document.body.innerText"))
        assert f"{NODES[0]} not-finite" in text
        assert "6 of 8" in text  # one is malformed, and Multi-Krum rejects one
        assert "70.0 %" in text
        assert browser.evaluate("document.querySelectorAll('.plot svg').length") == 4
    # Another server on the same port, as after a restart: the page connects again.
    steps.allowed.release()
    browser.wait_for(f"{STATE} === 'disconnected'")
    with serving(folder, TOKEN, port=port):
        browser.wait_for(f"{ROUNDS} === '3,2,1'")
        steps.allowed.release()
        federation.join(300)
        browser.wait_for(f"{ROUNDS} === '4,3,2,1'")
        browser.wait_for(f"{STATE} === 'finished'")
        assert browser.evaluate("window.before") == 1


@pytest.mark.parametrize("width", [390, 1280])
def test_hostile_text_is_shown_as_text_and_nothing_overflows(browser: Browser, tmp_path: Path, width: int) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin({"experiment": {"name": HOSTILE, "strategy": "s" * 300}, "defense": HOSTILE, "device": "Flower"})
    for number in range(7):
        folder.append(
            RoundRecord(
                number, (1, 2**64 - 1, 3), (1.0, 0.0, 1.0), reasons=(None, HOSTILE, None), skipped=HOSTILE * 3,
                scores={HOSTILE: (1.0, 1e300, 2.0)}, seconds={HOSTILE: 1.0}, n_bytes={HOSTILE: 10**15},
            )
        )  # fmt: skip
    with serving(folder.path) as port:
        browser.open(f"http://127.0.0.1:{port}/", width)
        browser.wait_for(f"{ROUNDS} === '7,6,5,4,3,2,1'")
        assert HOSTILE in str(browser.evaluate("document.body.innerText"))
        assert browser.evaluate("document.querySelectorAll('img').length") == 0
        assert browser.evaluate("document.documentElement.dataset.ran") is None
        inner, wanted = browser.evaluate(WIDTHS)
        assert inner == width
        assert wanted <= width
