# `make demo` and `make test` need Python 3.10 to 3.13, make and a network;
# they make their own environment in .venv.

PYTHON ?= python3
VENV ?= .venv
# More requirements for pip, for example REQUIREMENTS="tensorflow==2.20.*".
REQUIREMENTS ?=
# Processes that run the quick tests; each needs about 2 GB.
TEST_PROCESSES ?= 2

BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: help demo test lint slow test-all format clean

help:
	@echo "make demo      text to SavedModel on this machine, results in demo/"
	@echo "make test      lint and the tests that take seconds"
	@echo "make slow      the tests that take minutes"
	@echo "make test-all  test and slow"
	@echo "make format    format the code as lint wants it"
	@echo "make clean     remove the environment, caches and demo/"

demo: $(INSTALLED)
	$(BIN)/python -m albert_tf.demo_pipeline --output_dir=demo

test: lint
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

test-all: test slow

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo build dist *.egg-info .pytest_cache .ruff_cache

$(INSTALLED): setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; \
	    sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || { \
	    echo "error: Python 3.10 to 3.13 is needed;" \
	        "name one with PYTHON=. Received: PYTHON=$(PYTHON)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "error: this Python cannot make environments; install its venv" \
	        "module (Debian, Ubuntu: apt-get install python3-venv)." >&2; \
	    exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -e '.[test]' $(foreach r,$(REQUIREMENTS),'$(r)')
	@touch $@
