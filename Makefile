# Needs nothing but make and Python 3.11 or newer.
#
#   make reproduce          the quick reproduction, in an environment of its own
#   make test ARGS="-k sim" any target passes ARGS on to what it runs
#   make gate AGAINST=v0.1  this tree's speed against a commit's, a tag's or a branch's
#   make PYTHON=python3.12  another interpreter (after `make clean`, if .venv exists)

PYTHON ?= python3
VENV ?= .venv
OUT ?= results
ARGS ?=
AGAINST ?= main

# What is imported is compiled once, even where the environment forbids Python to keep that: each
# start of Ray alone would compile for longer than it runs.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
# Python compiles what is imported when it is: most of what is installed never is.
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet install --no-compile
GOAL := $(firstword $(MAKECMDGOALS))

# Each stamp stands for one install, and runs again when pyproject.toml has changed. What installs
# more than another sets the other's stamp, too. Two pips at once break an environment.
.NOTPARALLEL:
CREATED := $(VENV)/.raytwin-created
INSTALLED := $(VENV)/.raytwin-installed
INSTALLED_PEERS := $(VENV)/.raytwin-installed-peers
INSTALLED_DEV := $(VENV)/.raytwin-installed-dev
INSTALLED_RAY := $(VENV)/.raytwin-installed-ray
INSTALLED_DOCS := $(VENV)/.raytwin-installed-docs

# What `check` leaves to `test`.
SLOW := browser or ray or docker or toxiproxy or slow or real

# An environment with the lower bound of every dependency and without the extras, for the fast layer.
# Tests run there where only the installed package can be imported; those of the repository itself
# need its tools and stay out.
OLDEST := .venv-oldest
OF_REPOSITORY := test_repository.py test_docs.py test_in_lanes.py test_pages_run.py

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help reproduce test check lint oldest baselines bench coverage history gate proof docs clean

help: ## say what the targets do
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s%s\n", $$1, $$2 }'

reproduce: $(INSTALLED_PEERS) ## run the quick reproduction and say where the report is
	@$(BIN)/raytwin reproduce --quick --out $(OUT) $(ARGS)

test: $(INSTALLED_RAY) ## install what the tests need and run all of them, or those of ARGS
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m tests.in_lanes
else
	@$(BIN)/python -m pytest $(ARGS)
endif

check: lint ## the fast layer: style, types, arrows, unit and simulation tests
	@$(BIN)/python -m pytest -m "not ($(SLOW))" $(ARGS)

lint: $(INSTALLED_DEV) ## style, types and the arrows between packages
	@echo "ruff, mypy and import-linter"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

oldest: ## the fast layer for the built package on the oldest libraries that pyproject.toml allows
	@"$(PYTHON)" -m venv --clear $(OLDEST)
	@sed -n '/^dependencies/,/^]/s/^ *"\(.*\)>=\(.*\)",$$/\1==\2/p' pyproject.toml > $(OLDEST)/bounds.txt
	@echo "installing the package on" && cat $(OLDEST)/bounds.txt
	@$(OLDEST)/bin/python -m pip --disable-pip-version-check --no-input --quiet \
	  install . -r $(OLDEST)/bounds.txt 'pytest>=8.3' 'pytest-timeout>=2.3' 'hypothesis>=6.112' pytest-benchmark 'jsonschema>=4.18'
	@mkdir $(OLDEST)/work && ln -s ../../tests ../../pyproject.toml $(OLDEST)/work
	@cd $(OLDEST)/work && ../bin/python -m pytest -m "not ($(SLOW))" $(OF_REPOSITORY:%=--ignore tests/%) $(ARGS)

baselines: $(INSTALLED) ## say which simulated figures have moved, and by how much
	@$(BIN)/raytwin baseline --check --scale all $(ARGS)

bench: $(INSTALLED_RAY) ## measure raytwin, Ray and Dask side by side, into results/bench.json
	@mkdir -p $(OUT)
	@$(BIN)/python -m pytest tests/benchmarks --benchmark-only --benchmark-json=$(OUT)/microbenchmarks.json
	@$(BIN)/raytwin bench --peers ray,dask --json $(OUT)/bench.json $(ARGS)

coverage: $(INSTALLED_DEV) ## which branches of the control plane 2,500 seeds of the fuzz reach
	@$(BIN)/python -m tests.fuzz_coverage --seeds 2500 --out $(OUT) $(ARGS)

history: $(INSTALLED) ## measure raytwin alone, into a file that github-action-benchmark reads
	@mkdir -p $(OUT)
	@$(BIN)/raytwin bench --json $(OUT)/bench.json --history $(OUT)/history.json $(ARGS)

gate: $(INSTALLED) ## is this tree slower than AGAINST? exits with 1, and names the case; table in results/gate.md
	@mkdir -p $(OUT)
	@$(BIN)/raytwin bench --against $(AGAINST) --json $(OUT)/gate.json --markdown $(OUT)/gate.md $(ARGS)

proof: $(INSTALLED_DEV) ## what the gate is worth: this commit against itself 20 times, and slower ones; takes hours
	@$(BIN)/python -m tests.gate_proof --same 20 --burns 1 --sleeps 1 --out $(OUT)/proof $(ARGS)

docs: $(INSTALLED_DOCS) ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet $(ARGS)

clean: ## remove the environment, the results and what tools cache
	rm -rf .venv $(OLDEST) results site build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@command -v "$(PYTHON)" >/dev/null \
	  || { echo "raytwin needs Python 3.11 or newer, and there is no '$(PYTHON)': make $(GOAL) PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "raytwin needs Python 3.11 or newer, and '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1): make $(GOAL) PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "'$(PYTHON)' cannot make environments: install its venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "making the environment $(VENV)"
	@"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(INSTALLED): $(CREATED) pyproject.toml
	@echo "installing raytwin"
	@$(PIP_INSTALL) -e .
	@touch $@

$(INSTALLED_PEERS): $(CREATED) pyproject.toml
	@echo "installing raytwin, and the peers of figures and tables"
	@$(PIP_INSTALL) -e '.[peers,rl]'
	@touch $(INSTALLED) $@

$(INSTALLED_DEV): $(CREATED) pyproject.toml
	@echo "installing raytwin, and what the tests need"
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $(INSTALLED) $@

$(INSTALLED_RAY): $(CREATED) pyproject.toml
	@echo "installing raytwin, what the tests need, Ray and the other peers"
	@$(PIP_INSTALL) -e '.[dev,docs,ray,serve,peers,rl,joblib]'
	@touch $(INSTALLED) $(INSTALLED_PEERS) $(INSTALLED_DEV) $(INSTALLED_DOCS) $@

$(INSTALLED_DOCS): $(INSTALLED)
	@echo "installing what the documentation needs"
	@$(PIP_INSTALL) -e '.[docs]'
	@touch $@
