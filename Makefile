# `make demo` and `make test` need Python 3.10 to 3.13, make and a network
# connection. They create a virtual environment in .venv.

PYTHON ?= python3
VENV ?= .venv
# Additional requirements for pip, such as REQUIREMENTS="tensorflow==2.20.*".
REQUIREMENTS ?=
# The extras of pyproject.toml to install in VENV.
EXTRAS ?= test
# How uv chooses versions, such as lowest-direct. If empty, pip installs the
# packages.
RESOLUTION ?=
# Files whose requirements override pyproject.toml; only with RESOLUTION.
OVERRIDES ?=
# Arguments of pytest that select what `make lowest` and `make next` run.
TESTS ?=
# Processes that run the tests; each needs about 3 GB of memory.
TEST_PROCESSES ?= 2
# Arguments of `make traces`: names of runs, or --record and names of runs.
TRACES ?=
# The duration and the other arguments of `make fuzz`.
FUZZ_SECONDS ?= 600
FUZZ ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
PIP := $(BIN)/python -m pip install
UV := $(BIN)/uv pip install --python=$(BIN)/python --resolution=$(RESOLUTION) \
    $(addprefix --override=,$(OVERRIDES))

.PHONY: help demo test tests lint slow properties traces fuzz interchange
.PHONY: interchange-tests lowest next test-all docs site format clean

help:
	@echo "make demo      run every step from text to a SavedModel; results in demo/"
	@echo "make test      run the linter and the tests that take seconds"
	@echo "make slow      run the tests that take minutes"
	@echo "make properties  run the property tests on 20 times as many examples,"
	@echo "               drawn at random"
	@echo "make traces    compare the losses of 100 steps of each recipe and task"
	@echo "               with the recorded losses"
	@echo "make fuzz      read damaged files of every kind for FUZZ_SECONDS"
	@echo "make interchange  run the tests with PyTorch, transformers, JAX and Beam,"
	@echo "               on Python 3.11 to 3.13, in a separate environment. On Linux,"
	@echo "               the default index installs PyTorch with gigabytes of CUDA"
	@echo "               libraries. To avoid them, set PIP_EXTRA_INDEX_URL to an index"
	@echo "               of CPU builds, or REQUIREMENTS to a version."
	@echo "make lowest    run the tests with the lowest versions that pyproject.toml"
	@echo "               allows, on Python 3.10 if it is installed"
	@echo "make next      run the tests with the next TensorFlow, without"
	@echo "               tensorflow-text"
	@echo "make docs      build the site in build/site, in a separate environment"
	@echo "make test-all  run test, slow, traces and interchange"
	@echo "make format    format the code with ruff"
	@echo "make clean     remove the environments, caches and demo/"

demo: $(INSTALLED)
	$(BIN)/python examples/demo/pipeline.py --output_dir=demo

test: lint
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow -n $(TEST_PROCESSES) --dist loadfile

properties: $(INSTALLED)
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -m hypothesis \
	    -n $(TEST_PROCESSES) --dist loadfile

traces: $(INSTALLED)
	PYTHONPATH=tests $(BIN)/python -m traces --processes=$(TEST_PROCESSES) \
	    $(TRACES)

fuzz: $(INSTALLED)
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds=$(FUZZ_SECONDS) $(FUZZ)

interchange:
	$(MAKE) VENV=$(VENV)-interchange \
	    EXTRAS=test,beam,convert,phonemes,step-file interchange-tests

# A test that is skipped because a package is missing counts as a failure.
interchange-tests: $(INSTALLED)
	$(BIN)/python -m pytest -p tests.no_skips -m interchange

# This target omits the linter, whose results depend on the version of ruff.
tests: $(INSTALLED)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile $(TESTS)

OLDEST ?= $(shell python3.10 -c 'print("python3.10")' 2>/dev/null || \
    echo $(PYTHON))
lowest:
	$(MAKE) VENV=$(VENV)-lowest PYTHON=$(OLDEST) RESOLUTION=lowest-direct \
	    TESTS='$(TESTS)' tests

# Tests that need tensorflow-text are skipped and listed.
next:
	$(MAKE) VENV=$(VENV)-next RESOLUTION=highest \
	    OVERRIDES=tests/next_tensorflow.txt \
	    TESTS='-p tests.no_strings -rs $(TESTS)' tests

docs:
	$(MAKE) VENV=$(VENV)-docs EXTRAS=docs site

site: $(INSTALLED)
	$(BIN)/python -m sphinx -W --keep-going -q -E docs build/site

test-all: test slow traces interchange

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-interchange $(VENV)-docs $(VENV)-lowest \
	    $(VENV)-next demo build dist docs/generated *.egg-info \
	    .pytest_cache .ruff_cache .hypothesis

$(INSTALLED): setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; \
	    sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || { \
	    echo "error: Python 3.10 to 3.13 is needed;" \
	        "pass its path as PYTHON=. Received: PYTHON=$(PYTHON)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "error: this Python cannot create environments; install its venv" \
	        "module (Debian, Ubuntu: apt-get install python3-venv)." >&2; \
	    exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(if $(RESOLUTION),$(PIP) uv)
	$(if $(RESOLUTION),$(UV),$(PIP)) -e '.[$(EXTRAS)]' \
	    $(foreach r,$(REQUIREMENTS),'$(r)')
	@touch $@
