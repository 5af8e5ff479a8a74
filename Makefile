# make            lint, types and tests
# make setup      the virtual environment alone
# make demo       the main line on real text, from raw reviews to labelled rows
# make test       the tests
# make soak       faults at random, MINUTES=10 SEED=0: killed, damaged, full disks; log in soak/
# make bench      preprocessing, streaming, training and prediction beside peers; QUICK=1 for a short one
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: all setup demo test soak bench lint format types docs clean
.DEFAULT_GOAL := all

all: lint types test

setup: $(VENV)/ready

$(VENV)/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tfbert needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "python3 lacks venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing TensorFlow and the other requirements into $(VENV) (a few minutes) ..."
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/ready-test: $(VENV)/ready
	@echo "installing what the tests need ..."
	@$(BIN)/python -m pip install --quiet -e '.[test]'
	@touch $@

demo: $(VENV)/ready
	@$(BIN)/python docs/demo.py

test: $(VENV)/ready-test
	@$(BIN)/python -m pytest -n 2 --dist loadfile

MINUTES ?= 10
SEED ?= 0
FAULTS ?= 0

soak: $(VENV)/ready-test
	@$(BIN)/python tests/faults/soak.py --minutes $(MINUTES) --seed $(SEED) --faults $(FAULTS)

lint: $(VENV)/ready-test
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: $(VENV)/ready-test
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

types: $(VENV)/ready-test
	@$(BIN)/mypy

# the environments of the peers lie in .venv-bench, or where TFBERT_BENCH_ENVS says
bench: $(VENV)/ready-test
	@$(BIN)/python -m benchmarks.environments
	@$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

docs: $(VENV)/ready
	@$(BIN)/python docs/make_settings.py

clean:
	rm -rf $(VENV) .venv-bench demo-data
