# SPDX-License-Identifier: Apache-2.0
# Every target makes what it needs in .venv first; a second run does not repeat it. PYTHON=... takes another interpreter.

.DEFAULT_GOAL := help
.PHONY: help demo test lint format docs clean
SHELL := /bin/bash

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2> /dev/null && echo $$python && break; done)
BIN := .venv/bin
# Run and development need different packages; each set has a file that says which it was made from.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
TORCH := 'torch>=2.11,<2.14'
JOBS ?= 2

help:  ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' Makefile | expand -t 14

demo: .venv/demo  ## A language model learns arithmetic; minutes, no GPU
	@$(BIN)/python examples/reasoning/grpo_math.py $(ARGS)

test: lint .venv/dev  ## Style, types and all tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS)

lint: .venv/dev  ## Style and types alone
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --pythonpath $(BIN)/python

format: .venv/dev  ## Put sources and tables of options into the project's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/python docs/hooks/option_tables.py

docs: .venv/docs  ## Build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html, or read with search: $(BIN)/python -m http.server --directory site"

clean:  ## Remove what the other targets made, but for runs/
	rm -rf .venv site .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/base:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed and none was found: install one, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@rm -rf .venv
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "$(PYTHON) cannot make a virtual environment: install its venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@touch $@

# PyTorch first and within its range: that is what decides which build of it is taken.
.venv/demo: pyproject.toml constraints.txt | .venv/base
	@echo "installing into .venv (a few minutes, once)"
	@$(INSTALL) $(TORCH)
	@$(INSTALL) --editable .
	@touch $@

.venv/dev: .venv/demo
	@echo "installing what the tests need"
	@$(INSTALL) --editable '.[all,dev]'
	@touch $@

.venv/docs: .venv/demo
	@echo "installing what the site needs"
	@$(INSTALL) --editable '.[docs]'
	@touch $@
