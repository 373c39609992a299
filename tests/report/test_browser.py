"""The page as a real browser sees it, without any network."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("altair", reason='needs the extra "report"')
pytest.importorskip("vl_convert", reason='needs the extra "report"')

from cosdefense.report import Report, write_report
from cosdefense.studies.paper.figures import draw_paper_figures
from cosdefense.studies.paper.page import render_paper_page
from cosdefense.studies.paper.tables import make_paper_tables
from cosdefense.studies.paper.views import select_paper_runs
from paper_runs import paper_runs
from synthetic_runs import make_run, make_runs

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason=f"needs a browser: {', '.join(BROWSERS)}"),
    pytest.mark.slow,  # starts browsers
]

HOSTILE = (
    "</script><script>document.documentElement.dataset.ran = 1</script>",
    "<img src=x onerror='document.documentElement.dataset.ran = 1'>",
    "\"]; document.documentElement.dataset.ran = 1; //'",
    "' + datum.constructor.constructor('document.documentElement.dataset.ran = 1')() + '",
)


def opened(page: Path, tmp_path: Path, width: int = 1280) -> str:
    """The page's elements after its scripts have run."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
    options += [f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=15000"]
    command = [str(BROWSER), *options, "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


def without_policy(text: str) -> str:
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)


def n_drawn(elements: str) -> int:
    return len(re.findall(r'<svg [^>]*class="marks"', elements))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return write_report(make_runs(seeds=2, attacks=("inner-product", "none")), tmp_path_factory.mktemp("out"), "t")


def test_every_chart_is_drawn_offline(report: Report, tmp_path: Path) -> None:
    elements = opened(report.page, tmp_path)
    assert n_drawn(elements) == elements.count('<div class="chart') == 3 + 2 + 4 + 4 + 4 + 1
    assert "could not be drawn" not in elements.split("<script")[0]
    assert 'stroke="var(--grid)"' in elements  # charts follow the page from light to dark


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_never_wider_than_its_window(report: Report, tmp_path: Path, width: int) -> None:
    inner, wanted, charts = in_a_frame(report.page.read_text(encoding="utf-8"), tmp_path, width)
    assert (inner, charts) == (width, 18)
    assert wanted <= width


def test_the_papers_page_fits_a_phone_and_draws_every_chart(tmp_path: Path) -> None:
    runs = paper_runs()
    figures = draw_paper_figures(select_paper_runs(runs))
    text = render_paper_page(runs, select_paper_runs(runs), make_paper_tables(select_paper_runs(runs)), figures, "t")
    inner, wanted, charts = in_a_frame(text, tmp_path, 390)
    assert (inner, charts) == (390, sum(len(figure.panels) for figure in figures.values()))
    assert wanted <= 390


def in_a_frame(text: str, tmp_path: Path, width: int) -> tuple[int, int, int]:
    """How wide a page's window is, how wide it would like it, and how many charts it draws.

    In a frame, since a window cannot be made as narrow as a phone.
    """
    seen = "[innerWidth, document.documentElement.scrollWidth, document.querySelectorAll('.marks').length]"
    probe = f"setTimeout(() => parent.postMessage({seen}, '*'), 3000)"
    (tmp_path / "probed.html").write_text(f"{without_policy(text)}<script>{probe}</script>", "utf-8")
    listen = "addEventListener('message', (event) => { document.body.dataset.seen = event.data })"
    frame = f'<iframe style="border: 0; width: {width}px; height: 900px" src="probed.html"></iframe>'
    (tmp_path / "window.html").write_text(f"<body><script>{listen}</script>{frame}</body>", "utf-8")
    found = re.search(r'data-seen="(\d+),(\d+),(\d+)"', opened(tmp_path / "window.html", tmp_path, width=1400))
    assert found is not None
    inner, wanted, charts = map(int, found.groups())
    return inner, wanted, charts


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    runs = [make_run(label, attack=attack, rounds=80) for label in HOSTILE for attack in HOSTILE[:2]]
    runs = [make_run("cosdefense", attack=HOSTILE[2], rounds=80), *runs]
    return write_report(runs, tmp_path_factory.mktemp("hostile"), HOSTILE[0])


@pytest.mark.parametrize("guarded", [True, False], ids=["policy", "no-policy"])
def test_labels_never_run(hostile: Report, tmp_path: Path, guarded: bool) -> None:
    text = hostile.page.read_text(encoding="utf-8")
    page = tmp_path / "page.html"
    page.write_text(text if guarded else without_policy(text), "utf-8")
    elements = opened(page, tmp_path)
    assert n_drawn(elements) == elements.count('<div class="chart') > 0
    assert "<html" in elements
    assert "data-ran" not in elements[: elements.index("<head")]


def test_the_marker_would_be_seen(hostile: Report, tmp_path: Path) -> None:
    text = without_policy(hostile.page.read_text(encoding="utf-8"))
    page = tmp_path / "page.html"
    page.write_text(text.replace("<main>", f"<main>{HOSTILE[1]}"), "utf-8")
    elements = opened(page, tmp_path)
    assert "data-ran" in elements[: elements.index("<head")]


def test_an_injected_script_is_stopped_by_the_policy(hostile: Report, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(hostile.page.read_text(encoding="utf-8").replace("<main>", f"<main>{HOSTILE[1]}"), "utf-8")
    elements = opened(page, tmp_path)
    assert "data-ran" not in elements[: elements.index("<head")]
