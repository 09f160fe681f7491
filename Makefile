PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Bytecode is kept, as of an installed package: otherwise each start compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

# $(call list,FILE): print the targets of a Makefile, each with what stands after its ##.
list = @awk -F ':.*\#\# ' '/^[a-z0-9%-]+:.*\#\# / {printf "  %-16s %s\n", $$1, $$2}' $(1)

help: ## list these targets
	$(call list,Makefile)
	@echo "More: make bench, make tools and make frameworks list them."

demo: $(VENV)/demo.stamp ## record a real training with a slow rank, analyze it, serve it (NO_SERVE=1: end after the verdict)
	$(BIN)/tracelens demo $(if $(NO_SERVE),--no-serve)

test: $(VENV)/installed.stamp browser network ## set up, check, and pass all quick tests: ten minutes (PYTEST_ARGS="--durations=20")
	@$(MAKE) --no-print-directory --jobs 2 check $(VENV)/test.stamp
	@rm -f $(SECOND_TRIES)
	$(BIN)/pytest -m "not slow" $(ON_ALL_CORES) $(PYTEST_ARGS)

test-all: test test-rest ## make test, then all slow tests, and the recorder without its native part: three quarters of an hour

# Tests that judge times of real processes run one after the other: side by side they would slow each other.
test-rest: $(VENV)/test.stamp
	$(BIN)/pytest -m "slow and not alone" $(ON_ALL_CORES) $(PYTEST_ARGS)
	$(BIN)/pytest -m "slow and alone" $$(grep -rl --include='test_*.py' mark.alone tests) $(PYTEST_ARGS)
	TRACELENS_NATIVE=0 $(BIN)/pytest $(NATIVE_TWINS) $(ON_ALL_CORES) $(PYTEST_ARGS)

# mypy ends with 2 where its workers need more than a few seconds to start, as on a busy machine.
TYPED := tracelens instrument/tracelens_instrument dashboard/tracelens_dashboard tests
check: $(VENV)/installed.stamp ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2 $(TYPED) || { [ $$? = 2 ] && $(BIN)/mypy $(TYPED); }
	$(BIN)/lint-imports

ON_ALL_CORES := --numprocesses logical --maxprocesses 4 --dist loadfile
# Tests of modules of which a C version and a Python version exist.
NATIVE_TWINS := tests/instrument/core $(addprefix tests/instrument/storage/test_,rotation.py kill.py full_disk.py live.py) \
  tests/instrument/retention/test_ring.py $(addprefix tests/instrument/test_,fork.py signals.py stop.py) \
  tests/hooks/torch/test_torch_buckets.py
SECOND_TRIES := .pytest_cache/second-tries
test test-rest: export SECOND_TRIES := $(SECOND_TRIES)
# As many tests run at once as there are cores; a second thread of Polars would only wait for one. `test-rest` leaves it its threads.
test: export POLARS_MAX_THREADS := 1

.PHONY: browser
browser: # the browser tests use the system's Chromium
	@command -v chromium >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; \
	  else echo "Chromium is missing: run  sudo apt-get install -y chromium fonts-dejavu-core"; exit 1; fi; }

.PHONY: network
network: # pretend hosts are made by ip and tc; where these cannot be had, their tests are skipped
	@command -v tc >/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || { apt-get update -qq && apt-get install -y -qq --no-install-recommends iproute2; } || true

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

NATIVE := instrument/build_native.py tracelens/accounting/_sweep.c $(wildcard $(addprefix instrument/tracelens_instrument/,*.c native/*.h hooks/torch/*.cpp))

$(VENV)/demo.stamp: pyproject.toml $(NATIVE) | $(VENV)/bin/python
	$(PIP) -e '.[demo]'
	touch $@

# What the tests use is locked, with hashes; PyTorch is not, as its CPU build lies elsewhere on each machine.
# uv installs in seconds what takes pip three minutes; pip serves where uv finds no index.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
LOCK := tests/requirements.txt
$(VENV)/installed.stamp: pyproject.toml $(LOCK) $(NATIVE) | $(VENV)/bin/python
	$(PIP) 'uv>=0.9'
	$(UV) --require-hashes --no-deps -r $(LOCK) || $(PIP) --require-hashes --no-deps -r $(LOCK)
	$(PIP) --no-compile 'torch==2.13.0'
	$(PIP) --no-build-isolation -e '.[test]'
	touch $@ $(VENV)/demo.stamp

# Three quarters of a minute of C++ on one core: `test` compiles it while it checks.
$(VENV)/test.stamp: $(VENV)/installed.stamp
	$(BIN)/python -m tracelens_instrument.hooks.torch.compiled || echo "buckets are seen in Python only, also in the tests"
	touch $@

docs: rooms screenshots notebook schema constants ## what programs make of docs: pictures, notebook, the schema of reports, constants

bench: ## list the benchmarks; run one: make bench NAME=recorder (QUICK=1: seconds, whether it works)
	@$(MAKE) --no-print-directory -f tests/benchmarks/Makefile $(NAME)

PROOFS := tests/faults/test_kills.py tests/faults/test_side_by_side.py tests/instrument/storage/test_converter_kill.py tests/instrument/storage/test_kill.py tests/instrument/core/test_threads.py tests/instrument/test_fork.py tests/instrument/storage/test_full_disk.py
proofs: export TRACELENS_PROOF_KILLS := 100
proofs: export TRACELENS_PROOF_SPANS := 100000
proofs: export TRACELENS_TURN := all
proofs: $(VENV)/test.stamp ## the recorder's promises at length: 100 kills of each sort, 8 x 10^5 spans, forks, full disks; with both recorders
	TRACELENS_NATIVE=1 $(BIN)/pytest $(PROOFS) --timeout 1800
	TRACELENS_NATIVE=0 $(BIN)/pytest $(PROOFS) --timeout 1800

samples: $(VENV)/test.stamp ## record sample_traces/ anew
	PYTHONPATH=tests $(BIN)/python -m support.samples

clean: ## remove what the targets made
	rm -rf $(VENV) .venv-* traces .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Their targets are called as those above: make mutate MODULE=..., make test-gpu.
tools:
	$(call list,tests/support/Makefile)
frameworks:
	$(call list,tests/frameworks/Makefile)
include tests/support/Makefile tests/frameworks/Makefile

.PHONY: tools frameworks $(shell sed -n 's/^\([a-z0-9-]*\):.*\#\#.*/\1/p' $(MAKEFILE_LIST))
