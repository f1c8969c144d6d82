# Every target makes and reuses its own virtual environment; nothing to install by hand.
#
#   make demo                      the whole workflow on this machine: profile → convert → verify → perf → compare
#   make profile convert perf      the same by stages, with real file dependencies
#   make test                      lint, types and tests
#
# Variables: WORKLOAD=fsdp|ring|tensor|offload|overlap  TARGET=h100|a100|…  CAPTURE=auto|jax|nsys|simulated  RUN=runs/NAME  PYTHON=python3.12

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	  command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    && { command -v $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help test lint types unit format bench clean-venv

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "pgle needs Python 3.11 or newer; say make PYTHON=/path/to/python3" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[rehearse]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[rehearse,dev]'
	@touch $@

test: lint types unit  ## Lint, types and every test that this machine can run

lint: $(VENV)/.installed-dev  ## ruff
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev  ## mypy --strict
	$(BIN)/mypy

unit: $(VENV)/.installed-dev  ## pytest; PYTEST_ARGS='-k nsys' to choose
	$(BIN)/python -m pytest $(PYTEST_ARGS)

format: $(VENV)/.installed-dev  ## Let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
