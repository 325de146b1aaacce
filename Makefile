# Every target works on a fresh clone: it creates .venv when there is none.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check install --quiet -c constraints.txt

# For the tests of the report: any of these will do. Where there is none, `browser` tries to install one.
BROWSERS := chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable
APT      := DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Acquire::http::Timeout=20 -o Acquire::Retries=1

.PHONY: help setup demo browser test test-long lint format docs bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

SOURCES := pyproject.toml setup.py constraints.txt $(wildcard src/dpsinkhorn/ot/native/*.[ch])

$(VENV)/.package: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(VENV)/.setup: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	@touch $(VENV)/.package $@

$(VENV)/.bench: $(VENV)/.setup
	$(PIP) -e '.[bench]'
	@touch $@

setup: $(VENV)/.setup  ## create .venv with the package and its development tools

demo: $(VENV)/.package  ## train privately on handwritten digits: samples, release, and a report to open in a browser
	@rm -rf runs/demo runs/demo-samples.npz runs/demo-samples.png
	$(BIN)/dpsinkhorn train --data digits --epsilon 10 --out runs/demo
	$(BIN)/dpsinkhorn sample runs/demo/release --count 1000 --output runs/demo-samples.npz --grid runs/demo-samples.png
	@echo "Look at the images, runs/demo-samples.png, and open runs/demo/report.html in a browser."

browser: $(VENV)/.setup  ## a headless browser for the tests of the report, where it may be installed
	@for name in $(BROWSERS); do command -v $$name > /dev/null && exit 0; done; \
	echo "installing a headless browser for the tests of the report"; \
	{ test "$$(id -u)" = 0 && \
		{ $(APT) install --no-install-recommends chromium-headless-shell || \
		{ $(APT) update && $(APT) install --no-install-recommends chromium-headless-shell; }; } || \
	$(BIN)/playwright install --only-shell chromium; } > $(VENV)/browser.log 2>&1 || \
	echo "no browser could be installed ($(VENV)/browser.log says why): its tests will be skipped"

test: $(VENV)/.setup browser  ## run the whole test suite, doctests and README snippets included
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-long: $(VENV)/.setup  ## the tests that take long: fuzzing, audits, kills
	$(BIN)/python -m pytest -m long -s

lint: $(VENV)/.setup  ## ruff (style) and mypy (types)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.setup  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.setup  ## build the site of the documentation into site/; a broken link or an undocumented name is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.bench  ## time and memory of the solver beside GeomLoss, POT and OTT-JAX
	$(BIN)/python benchmarks/sinkhorn_peers.py

clean:  ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
