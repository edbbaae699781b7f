# The targets a newcomer needs: make demo, make test. Each sets up .venv by itself, make demo without developers' tools.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
INSTALLED := $(VENV)/.installed
STAMP  := $(VENV)/.ready
NODE   := $(patsubst %,tests/support/%/node_modules/.package-lock.json,azurite axe-core)
CORPORA ?= corpora
# Tests of a GPU need one; those of a release have a target of their own.
HERE   := not gpu and not release
SECONDS ?= 1800
SEED    ?= 1
INPUT   ?=

export RAY_USAGE_STATS_ENABLED = 0
export MLFLOW_DISABLE_TELEMETRY = true
export RAY_AUTH_MODE ?= disabled
# A tagger of a test is so small that a second thread only waits.
quick test durations release coverage: export OMP_NUM_THREADS = 1

.PHONY: help setup demo check lint smoke docs quick test durations release test-python coverage soak format bench grid clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

setup: $(STAMP)  ## Make .venv with every pinned package, the developers' tools included

# --use-pep517: seqeval comes as source only, and pip's old way of building leaves out what its build needs.
INSTALL := $(BIN)/pip install --quiet --use-pep517 --constraint constraints.txt --editable

# What a user needs.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null || \
		{ echo "Concord needs Python 3.11 to 3.14, which $(PYTHON) is not: set PYTHON, as in make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@

# What the tests need besides, among it the library transformers.
$(STAMP): $(INSTALLED)
	$(INSTALL) '.[dev,hf]'
	touch $@

demo: $(INSTALLED)  ## Annotate examples/news and show what came out
	$(BIN)/concord annotate examples/news --output out/news

check: docs smoke lint  ## Format, lint, types, import contracts, the budget, the documentation's site, every benchmark

lint: $(STAMP)  ## Format, lint, types, import contracts, and the budget of pyproject.toml
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	PYTHONPATH=. $(BIN)/python tests/budget.py
	$(BIN)/mypy

smoke: $(STAMP)  ## Run every benchmark on a tiny input
	OMP_NUM_THREADS=1 PYTHONPATH=.:tests/support $(BIN)/python benchmarks/smoke.py

docs: $(STAMP)  ## Build the site of the documentation in out/site; a dead link is an error
	$(BIN)/properdocs build

quick: $(STAMP) $(NODE)  ## The tests that take under a minute
	$(BIN)/pytest -m 'not slow and not ray and $(HERE)'

# Without npm, or out of reach of its registry, the tests of az:// and of accessibility are skipped.
$(NODE): %/node_modules/.package-lock.json: %/package-lock.json
	if command -v npm >/dev/null; then npm ci --prefix $(<D) --ignore-scripts --no-audit --no-fund && touch $@ || \
		{ rm -rf $(@D); echo "npm cannot install $(<D): the tests that need it are skipped"; }; fi

# The tests of Ray, which mostly wait and have limits of time, run beside the others, which let them have the cores. A file
# stays in one process, which makes its fixtures once; long files begin first (tests/conftest.py).
RAY_LOG := .pytest_ray.log
PARALLEL := --numprocesses 4 --dist loadfile --no-loadscope-reorder

test: $(STAMP) $(NODE)  ## Every test but those that need a GPU
	$(BIN)/pytest -m 'ray and $(HERE)' --durations=10 $(RECORD) >$(RAY_LOG) 2>&1 & \
	nice $(BIN)/pytest -m 'not ray and $(HERE)' $(PARALLEL) --durations=30 $(RECORD); others=$$?; \
	wait $$!; ray=$$?; cat $(RAY_LOG); exit $$((others | ray))

release: $(STAMP)  ## The tests of wheel and source distribution, of the notebook and the site; before a release
	$(BIN)/pytest -m 'release and not gpu'

durations: RECORD := --record-durations
durations: test  ## make test, and write how long each file and each long test take to tests/durations.json

test-python:  ## The quick tests under another interpreter, as in PYTHON=python3.13, in an environment of its own
	$(MAKE) quick PYTHON=$(PYTHON) VENV=.venv-$(notdir $(PYTHON))

coverage: $(STAMP) $(NODE)  ## make test with coverage of models and pipeline
	$(BIN)/pytest -m 'not ray and $(HERE)' $(PARALLEL) --cov=concord --cov-report=
	$(BIN)/pytest -m 'ray and $(HERE)' --cov=concord --cov-append --cov-report=term-missing:skip-covered

soak: $(STAMP)  ## Disturb runs by random faults for SECONDS (1800), drawn from SEED (1), over INPUT if given
	CONCORD_SOAK=1 $(BIN)/pytest -m 'hypothesis or soak' --timeout 3600
	PYTHONPATH=tests/support $(BIN)/python benchmarks/bench_soak.py --seconds $(SECONDS) --seed $(SEED) \
		$(addprefix --input ,$(wildcard $(INPUT)))

format: $(STAMP)  ## Format and sort imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## Print the benchmarks' commands
	@grep -h '^Command:' benchmarks/bench_*.py

grid: $(STAMP)  ## Train what the grid of results lacks, on the corpora in $(CORPORA), and write docs/results.md
	$(BIN)/python -m research.grid run --data $(CORPORA)
	$(BIN)/python -m research.grid pack
	$(BIN)/python -m research.grid render

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache
