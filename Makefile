# Every target makes and reuses its own virtual environment; nothing to install by hand.
#
#   make demo                          the whole workflow on this machine, simulated where there is no GPU
#   make profile convert verify perf compare     the same by stages, with real file dependencies
#   make tune                          flags that make the step faster, and all of it again under them
#   make test                          lint, types and tests
#
# Your own program:  make profile convert perf RUN=runs/mine CMD='python train.py --config x'
# Variables: WORKLOAD=fsdp|overlap|ring|tensor|moe|offload  ARGS='--layers 8'  TARGET=h100|a100|…  DEVICES=4
#            CAPTURE=auto|jax|nsys|simulated  MODE=sync|async  RUN=runs/NAME  CMD='…'  PYTHON=python3.12  VENV=.venv

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	  command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    && { command -v $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
PGLE := $(BIN)/pgle
# A name with blanks: `named` as a target, `quoted` as a word of the shell.
EMPTY :=
BLANK := $(EMPTY) $(EMPTY)
named = $(subst $(BLANK),\ ,$(1))
quoted = '$(subst ','\'',$(1))'
COMMA := ,
MADE := $(call named,$(VENV))/.installed
MADE_DEV := $(MADE)-dev
PY := $(call quoted,$(BIN)/python)

WORKLOAD ?= fsdp
ARGS ?= $(if $(filter fsdp,$(WORKLOAD)),--layers 8 --model-dim 2048 --ff-dim 8192 --batch 4)
TARGET ?= h100
DEVICES ?= 4
CAPTURE ?= auto
MODE ?= sync
JAX_RELEASES ?= 0.4.38 0.5.3 0.6.2 0.7.2 0.8.3 0.9.2 0.10.2 0.12.0.1
RUN ?= runs/demo
# Without a GPU the program is only compiled: the simulated GPU runs the compiled schedule.
ONLY := $(if $(wildcard /proc/driver/nvidia/version),,--compile-only)
PROGRAM = $(or $(wildcard benchmarks/programs/$(WORKLOAD).py),-m pgle.workloads $(WORKLOAD))
CMD ?= $(PY) $(PROGRAM) --devices $(DEVICES) $(ONLY) $(ARGS)
export PGLE RUN TARGET DEVICES CAPTURE MODE CMD

ifneq ($(words $(RUN)),1)
$(error RUN='$(RUN)' is not one word, and make takes blanks for the end of a name; choose another, \
  or: pgle run --run-dir '$(RUN)' -- COMMAND)
endif

# Of several stages only the last says what to do next.
compare: export PGLE_NEXT := 0

.DEFAULT_GOAL := help
.PHONY: help demo profile convert verify baseline perf compare tune rehearse test quick lint types unit fuzz minutes frameworks jax-releases gpu gpu-wheels gpu-report format
.DELETE_ON_ERROR:

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The workflow. Each stage makes a file that the next one depends on.
demo: | $(MADE)  ## profile → convert → baseline → verify → perf → compare
	@scripts/demo.sh

profile: $(RUN)/profile/steps.jsonl  ## Profile run: trace, HLO, step times
convert: $(RUN)/profile.pbtxt  ## Trace → cost profile
baseline: $(RUN)/baseline/steps.jsonl  ## Run without the profile
perf: $(RUN)/perf/steps.jsonl  ## Run with the profile; fails where XLA did not use it

$(RUN)/profile/steps.jsonl: | $(MADE)
	scripts/profile.sh
$(RUN)/profile.pbtxt: $(RUN)/profile/steps.jsonl
	scripts/convert.sh
$(RUN)/baseline/steps.jsonl: $(RUN)/profile/steps.jsonl
	scripts/baseline.sh
$(RUN)/perf/steps.jsonl: $(RUN)/profile.pbtxt
	scripts/perf.sh

verify: $(RUN)/profile.pbtxt $(RUN)/baseline/steps.jsonl  ## Check that the profile covers the baseline's HLO module
	scripts/verify.sh
compare: verify $(RUN)/baseline/steps.jsonl $(RUN)/perf/steps.jsonl  ## Step times: baseline against perf
	scripts/compare.sh
tune: $(RUN)/profile.pbtxt  ## Search for flags by the measured costs, then all stages under what it found
	scripts/tune.sh
rehearse: | $(MADE)  ## Compile for TARGET with and without a profile, no GPU needed
	scripts/rehearse.sh

# The virtual environment and the checks.
$(MADE): pyproject.toml
	@test -n $(call quoted,$(PYTHON)) || { echo "pgle needs Python 3.11 or newer; say make PYTHON=/path/to/python3" >&2; exit 2; }
	@mkdir -p $(call quoted,$(VENV))
	@LOG=$(call quoted,$(VENV)/install.log) scripts/install.sh $(call quoted,pgle$(COMMA) jax and its CUDA plugin into $(VENV)) \
	  scripts/make_venv.sh $(call quoted,$(PYTHON)) $(call quoted,$(VENV)) ".[rehearse-cuda13]"
	@touch $(call quoted,$@)

$(MADE_DEV): $(MADE)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[rehearse-cuda13,dev]'
	@touch $(call quoted,$@)

test: lint  ## Lint, types and every test that this machine can run
	@$(MAKE) --no-print-directory --jobs 2 types unit

# Rooms that compile nothing and start nothing: what one runs while one works.
QUICK := $(patsubst %,tests/%,account requests schedule steps scale tune costs/estimate xla/hlo xla/flags report/page \
  test_floors.py test_house_style.py test_next.py test_checks.py)
quick: $(MADE_DEV)  ## Tests of pure rooms, within a minute
	$(PY) -m pytest -q -m 'not (minutes or slow or rehearse or browser)' -k 'not contention_real' $(QUICK)

lint: $(MADE_DEV)  ## ruff
	$(call quoted,$(BIN)/ruff) format --check .
	$(call quoted,$(BIN)/ruff) check .

types: $(MADE_DEV)  ## mypy --strict
	$(call quoted,$(BIN)/mypy)

fuzz: $(MADE_DEV)  ## 20,000 damaged inputs; FUZZ_FIRST=1000000 for others
	FUZZ_CASES=20000 $(PY) -m pytest -n auto tests/fuzz

# A process more than cores: tests wait for the programs that they start. Files start in the order of tests/conftest.py.
# What tests start finds pgle compiled, though the environment asks for no bytecode.
unit: export PYTHONDONTWRITEBYTECODE :=
unit: export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
unit: $(MADE_DEV)  ## pytest; PYTEST_ARGS='-k nsys' to choose
	$(PY) -m pytest -n auto --dist loadfile --no-loadscope-reorder -m 'not minutes' $(PYTEST_ARGS)

minutes: $(MADE_DEV)  ## The tests that take minutes: a module of 2024 compiled, guides that compile
	$(PY) -m pytest -m minutes

# Two at a time; one that passed is skipped until pgle, its recipe or the test changes. What it prints is kept beside.
FRAMEWORKS ?= flax equinox levanter maxtext
frameworks:  ## Flax, Equinox, Levanter and MaxText under pgle as they are; PYTHON=python3.12 or newer
	$(MAKE) --no-print-directory --keep-going --jobs 2 $(FRAMEWORKS:%=build/frameworks/%.passed)

build/frameworks/%.passed: docs/guides/frameworks.md tests/integration/test_guides.py $(shell find pgle -name '*.py')
	@mkdir -p $(@D)
	@$(filter .venv-%,$(^D))/bin/python -m pytest -s -q -p no:cacheprovider tests/integration/test_guides.py -k 'framework and $*' \
	  2>&1 | tee build/frameworks/$*.log | sed -u 's/^/$*: /'
	@grep -q '^1 passed' build/frameworks/$*.log && touch $@

$(patsubst %,build/frameworks/%.passed,flax equinox levanter): .venv-frameworks/.installed
build/frameworks/maxtext.passed: .venv-maxtext/.installed

OWN := .venv-frameworks/.made .venv-maxtext/.made
$(OWN):
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@touch $@

UV = $(@D)/bin/uv pip install --quiet --python $(@D)/bin/python
TRY := --editable '.[rehearse-cuda13]' pytest hypothesis jsonschema
.venv-frameworks/.installed: .venv-frameworks/.made pyproject.toml
	$(UV) $(TRY) flax equinox optax 'marin-levanter>=0.2.dev0'
	@touch $@
.venv-maxtext/.installed: .venv-maxtext/.made pyproject.toml
	$(UV) --no-deps maxtext
	$(UV) $(TRY) -r $(@D)/lib/python3*/site-packages/dependencies/requirements/generated_requirements/decoupled-requirements.txt
	@touch $@

jax-releases:  ## `pgle run` with every release line of jax on five programs: the table of docs/install.md
	$(PYTHON) scripts/try_jax.py $(JAX_RELEASES)

# What a GPU shows: a Python with jax and its CUDA plugin, no virtual environment, no network.
gpu: export PYTHON := $(PYTHON)
gpu:  ## Measure on one NVIDIA GPU: OUT=runs/gpu WHEELS=wheels BUDGET=8m CAPTURE=auto|simulated PYTHON=python3.12
	@scripts/gpu.sh

# Wheels of what pgle needs besides jax, for the Python of the machine with the GPU.
WHEELS ?= build/wheels
GPU_NEEDS := click rich protobuf 'etils[epath]' jinja2 msgspec attrs
GPU_PYTHON ?= 3.12
export WHEELS
gpu-wheels: $(MADE)  ## The wheels for it, for Linux on x86-64: WHEELS=build/wheels GPU_PYTHON=3.12
	@mkdir -p $(call quoted,$(WHEELS))
	$(PY) -m pip download --quiet --disable-pip-version-check --only-binary=:all: --platform manylinux2014_x86_64 \
	  --python-version $(GPU_PYTHON) --dest $(call quoted,$(WHEELS)) $(GPU_NEEDS)

gpu-report: $(MADE)  ## Predicted against measured, without a GPU: IN=runs/gpu
	$(PY) -m benchmarks.gpu.report $(call quoted,$(or $(IN),runs/gpu))

format: $(MADE_DEV)  ## Let ruff format and fix
	$(call quoted,$(BIN)/ruff) format .
	$(call quoted,$(BIN)/ruff) check --fix .
