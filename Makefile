# Everything a person or CI runs. `make` alone lists it.
#
# Each command that needs an environment makes it: .venv, with the versions of constraints/dev.txt.
# It is made again only when pyproject.toml or constraints/dev.txt changes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
WORKERS ?= 2
PYTEST_ARGS ?=
RIVALS ?=
SIZE_ARGS ?=

DRAFT ?= tests/assets/tiny-dflash
TARGET ?= tests/assets/tiny-target
OUT ?= build/engine/$(shell basename -- $(call quote,$(DRAFT)))
PRECISION ?=
QUANTIZE ?=
SM ?=
FAMILY ?=
IGNORE_KEY ?=
PROMPT ?=
PROMPTS ?= $(if $(filter tests/assets/tiny-target,$(TARGET)),tests/assets/prompts.txt)
RAW ?=
SYSTEM ?=
TEMPLATE_VAR ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := export,grammar,hf,hub,ort,rtx,serve,validate

# What Python compiles is kept, whatever the caller's settings, and within the environment.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/compiled

# $(call quote,TEXT): one shell word, whatever spaces or quotes TEXT holds.
quote = '$(subst ','\'',$(1))'
# $(call option,--name,VALUE): the option and its value, or nothing when VALUE is empty.
option = $(if $(2),$(1) $(call quote,$(2)))
# How prompts are written out for the target; $(TEMPLATE_VAR) may be several words.
form = $(if $(RAW),--raw) $(call option,--system,$(SYSTEM)) \
  $(foreach one,$(TEMPLATE_VAR),$(call option,--template-var,$(one)))
# ... || $(call stop,SENTENCE): say why and fail.
stop = { echo "make: $(strip $(1))" >&2; exit 1; }

.PHONY: help
help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@printf '\n%s\n' 'Variables: DRAFT TARGET OUT PRECISION QUANTIZE SM FAMILY IGNORE_KEY PROMPT for engine; DRAFT TARGET PROMPTS for bench;' \
	  '           RAW=1 SYSTEM TEMPLATE_VAR for both; PYTHON WORKERS PYTEST_ARGS'

# --- The main job -------------------------------------------------------------------------------

.PHONY: engine
engine: $(STAMP) ## DRAFT and TARGET to ONNX, a TensorRT-RTX plan, parity and a sample run
	$(BIN)/draftrt engine $(call quote,$(DRAFT)) --target $(call quote,$(TARGET)) \
	  -o $(call quote,$(OUT)) $(call option,--precision,$(PRECISION)) \
	  $(foreach one,$(QUANTIZE),$(call option,--quantize,$(one))) $(call option,--sm,$(SM)) \
	  $(call option,--family,$(FAMILY)) \
	  $(foreach one,$(IGNORE_KEY),$(call option,--ignore-key,$(one))) \
	  $(call option,--prompt,$(PROMPT)) $(form)

.PHONY: bench
bench: BUNDLE := build/bench/$(shell basename -- $(call quote,$(DRAFT)))
bench: $(STAMP) ## DRAFT and TARGET on this CPU: with drafter, without, transformers, z-lab's loop
	$(BIN)/draftrt export $(call quote,$(DRAFT)) --target $(call quote,$(TARGET)) \
	  -o $(call quote,$(BUNDLE)) --force
	$(BIN)/draftrt bench $(call quote,$(BUNDLE)) --rivals --draft $(call quote,$(DRAFT)) \
	  $(call option,--prompts,$(PROMPTS)) $(form) --calibrate \
	  --json $(call quote,$(BUNDLE).json) --svg $(call quote,$(BUNDLE).svg)

.PHONY: bench-size
bench-size: $(STAMP) ## Random checkpoints of published size: time, memory and plans against their bars; RIVALS=1
	$(BIN)/python -m tests.size.run --out build/size --json build/size.json \
	  $(if $(RIVALS),--rivals) $(SIZE_ARGS)

# --- Environment --------------------------------------------------------------------------------

.PHONY: dev
dev: $(STAMP) ## Make .venv with the package, its extras and the development tools

# --no-compile: Python compiles what it imports; to compile the whole of torch takes a minute more.
$(STAMP): pyproject.toml constraints/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || $(call stop,\
	  this needs Python 3.11 or newer (ONNX Runtime with TensorScatter); try: make PYTHON=python3.11 ...)
	@$(PYTHON) -c 'import ensurepip, venv' || $(call stop,\
	  $(PYTHON) cannot make environments; install its venv module (Debian: apt install python3-venv))
	@echo 'Installing into $(VENV): minutes the first time, nothing once it is done'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints/dev.txt \
	  --group dev --editable '.[$(EXTRAS)]'
	@touch $@

# --- Checks -------------------------------------------------------------------------------------

.PHONY: lint
lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: fix
fix: $(STAMP) ## ruff: repair what it can, then format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: type
type: $(STAMP) ## mypy, strict: the package, then the tests
	$(BIN)/mypy
	$(BIN)/mypy tests

# One thread a process: the workers share the cores. No model is ever fetched by a test.
test test-all parity wheel-check test-gpu: export OMP_NUM_THREADS := 1
test test-all parity wheel-check test-gpu: export HF_HUB_OFFLINE := 1

.PHONY: test
test: lint type ## All checks that need no GPU: lint, type, pytest without the extended tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m 'not extended' $(PYTEST_ARGS)

.PHONY: test-all
test-all: $(STAMP) ## Every test that needs no GPU, the extended ones included
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

.PHONY: parity
parity: $(STAMP) ## Every recorded drafter and the shipped pairs on ONNX Runtime: fp32, fp16, bf16
	$(BIN)/draftrt validate matrix tests/golden/*/ --draft tests/assets/tiny-dflash \
	  --draft tests/assets/tiny-dspark --target tests/assets/tiny-target --jobs $(WORKERS)

.PHONY: journeys
journeys: $(STAMP) ## Files that a reader enters along export, a round and parity
	$(BIN)/python -m tests.journeys

.PHONY: wheel-check
wheel-check: $(STAMP) ## Build sdist and wheel, and compare them with the tree
	$(BIN)/python -m pytest tests/packaging $(PYTEST_ARGS)

# `make test-gpu PYTEST="python3 -m pytest"` uses a machine's own packages and makes no .venv.
.PHONY: test-gpu
test-gpu: $(if $(PYTEST),,$(STAMP)) ## The GPU and TensorRT tests; each skips with its reason elsewhere
	$(or $(PYTEST),$(BIN)/python -m pytest) -m 'gpu or trt' $(PYTEST_ARGS)

.PHONY: ci
ci: ## What CI runs
	.ci/run

.PHONY: clean
clean: ## Remove .venv, caches and everything built, bundles under build/ included
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
