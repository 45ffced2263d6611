# make run: one broker on 127.0.0.1:9092. make demo: flights through Spark. make test: every test. Everything lives in .venv; nothing else is touched.
# make simulate SEEDS=10000: simulated clusters with faults, each of which a seed repeats. make planted: finds known bugs in them.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3 python3.14 python3.13 python3.12 python3.11
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ARGS ?=
DEMO_ARGS ?=
SEEDS ?= 200
WORKERS ?= 2

.PHONY: run demo test check bench simulate planted docs format clean

run: $(VENV)/.installed
	@exec $(BIN)/wirekafka serve $(ARGS)

demo: $(VENV)/.installed-demo
	@exec $(BIN)/python -m examples.flights.demo --page build/flights.html $(DEMO_ARGS)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

check: $(VENV)/.installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks $(ARGS)

simulate: $(VENV)/.installed
	$(BIN)/python -m wirekafka.simulation --seeds $(SEEDS) $(ARGS)

planted: $(VENV)/.installed
	$(BIN)/python -m wirekafka.simulation.planted $(ARGS)

docs: $(VENV)/.installed
	$(BIN)/python docs/generate.py

format: $(VENV)/.installed-check
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .cache build dist

$(BIN)/python:
	@for python in $(PYTHON); do \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		"$$python" -c 'import ensurepip' 2>/dev/null || { echo "$$python has no venv module: on Debian, apt-get install python3-venv" >&2; exit 1; }; \
		exec "$$python" -m venv $(VENV); \
	done; \
	echo "wirekafka needs Python 3.11 or newer: install it, or name it: make PYTHON=/path/to/python" >&2; exit 1

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[$*]'
	@touch $@
