# make demo    see it work (about a minute after installation)
# make test    the whole test suite
# make quick   a part of the suite: no long training, no other processes
# make coverage  the same part, and how much of the package it runs
# make docs    build the documentation site into dist/site
# make check   format, lint, types, tests: what CI runs
# make bench   measure beside byzfl and Flower (minutes; leave the computer alone meanwhile)
# make format  let ruff rewrite the code
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

# With cached bytecode a process of the tests starts in half the time; there are a hundred of them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick coverage check lint bench format docs clean

demo: .venv/.installed
	$(BIN)/python -m cosdefense demo

# tests/conftest.py sorts the files: those with long tests first, so that they do not come last and alone.
# Four processes for two cores, because many tests wait for others: for servers, deadlines, killed processes.
test: .venv/.developing
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --durations=15

quick: .venv/.developing
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not federation"

# Apart from the others, because tracing lines takes half as long again as running them.
coverage: .venv/.developing
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not federation" --cov --cov-report=
	@echo "make quick runs $$($(BIN)/python -m coverage report --format=total) % of the package's lines."

lint: .venv/.developing
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

# Strict: a broken link, a missing anchor or a page that no menu has ends it. Not --quiet: that hides what strict counts.
docs: .venv/.developing
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The site is in dist/site."

check: lint docs test

bench: .venv/.measuring
	$(BIN)/python benchmarks/aggregation.py
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/startup.py

format: .venv/.developing
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

# Paths are relative, so that a clone may live in a folder with spaces in its name.
.venv/bin/python:
	$(PYTHON) -m venv .venv || (rm -rf .venv; false)

.venv/.installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e ".[report]"
	touch $@

# byzfl judges some tests; it is installed alone, because its dependencies are larger than everything else together.
.venv/.developing: .venv/.installed
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps byzfl
	touch $@

.venv/.measuring: .venv/.installed
	$(PIP) -e ".[report,bench]"
	$(PIP) --no-deps byzfl
	touch $@

clean:
	rm -rf .venv .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis runs
