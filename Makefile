PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Bytecode is kept, as of an installed package: otherwise each start compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*\#\#.*/\1/p' $(MAKEFILE_LIST))

help: ## list the targets
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

demo: $(VENV)/demo.stamp ## record a real training with a slow rank, analyze it, serve it (NO_SERVE=1: end after the verdict)
	$(BIN)/tracelens demo $(if $(NO_SERVE),--no-serve)

test: $(VENV)/test.stamp browser network check unit ## set up and pass everything

check: $(VENV)/test.stamp ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/lint-imports

SIDE_BY_SIDE := --numprocesses logical --maxprocesses 4 --dist loadfile
unit: export SECOND_TRIES := .pytest_cache/second-tries
unit: $(VENV)/test.stamp ## all tests, without the checks; the recorder's also without its native part
	@rm -f $(SECOND_TRIES)
	$(BIN)/pytest -m "side_by_side or not end_to_end" $(SIDE_BY_SIDE) $(PYTEST_ARGS) || [ $$? = 5 ]
	$(BIN)/pytest -m "not side_by_side and end_to_end" $(PYTEST_ARGS) || [ $$? = 5 ]
	TRACELENS_NATIVE=0 $(BIN)/pytest tests/instrument tests/hooks/torch/test_torch_buckets.py --ignore-glob='*/test_harmless_*' $(SIDE_BY_SIDE)

PROOFS := tests/faults/test_kills.py tests/faults/test_side_by_side.py tests/instrument/storage/test_converter_kill.py tests/instrument/storage/test_kill.py tests/instrument/core/test_threads.py tests/instrument/test_fork.py tests/instrument/storage/test_full_disk.py
proofs: $(VENV)/test.stamp ## the recorder's promises at length: 100 kills of each sort, 8 x 10^5 spans, forks, full disks; with both recorders
	TRACELENS_PROOF_KILLS=100 TRACELENS_PROOF_SPANS=100000 TRACELENS_NATIVE=1 $(BIN)/pytest $(PROOFS) --timeout 1800
	TRACELENS_PROOF_KILLS=100 TRACELENS_PROOF_SPANS=100000 TRACELENS_NATIVE=0 $(BIN)/pytest $(PROOFS) --timeout 1800

# ARGS: kinds of files, --inputs 20000, --minutes 10, --guided (by coverage), --replay FILE, --publish
fuzz: $(VENV)/fuzz.stamp ## damage every kind of file that is read, and watch (ARGS="native --inputs 20000"; ARGS=--guided)
	PYTHONPATH=.:instrument:tests $(BIN)/python -m support.fuzz --journal tests/data/fuzzed.jsonl $(ARGS)

sanitize: $(VENV)/test.stamp ## the tests of what is in C, with sanitizers in it
	PYTHONPATH=tests $(BIN)/python -m support.sanitize $(PYTEST_ARGS)

# GROUPS instead of MODULE: samples of the changes of schema, conversion, gate, clocks (ARGS="--seed 2"; PUBLISH=1: write docs/reliability.md)
mutate: $(VENV)/mutate.stamp ## what no test notices of many small changes of a module: make mutate MODULE=tracelens.conversion.columns (TESTS="tests/schema")
	PYTHONPATH=tests $(BIN)/python -m $(if $(MODULE),support.mutate $(MODULE) $(if $(TESTS),--tests $(TESTS)) $(PYTEST_ARGS),support.mutate_groups $(GROUPS) $(if $(PUBLISH),--publish) $(ARGS))

samples: $(VENV)/test.stamp ## record sample_traces/ anew
	PYTHONPATH=tests $(BIN)/python -m support.samples

example-%: $(VENV)/test.stamp ## record and explain an entry of sample_traces/manifest.toml; fails if what is planted is not found: make example-mpi-late-rank
	PYTHONPATH=tests $(BIN)/python -m support.samples $*

study-%: $(VENV)/test.stamp ## record a paper's system in small, and make its study with that: make study-easgd
	PYTHONPATH=tests $(BIN)/python -m support.studies $*

screenshots: $(VENV)/test.stamp browser ## one picture of every page of the dashboard, into docs/pictures
	PYTHONPATH=tests $(BIN)/python -m support.screenshots

rooms: $(VENV)/test.stamp ## the picture of the rooms, from who imports whom, into docs/pictures; and the layout in numbers
	PYTHONPATH=tests $(BIN)/python -m support.rooms
	PYTHONPATH=tests $(BIN)/python -m support.layout

bench: bench-recorder bench-conversion bench-stragglers ## all benchmarks

bench-recorder: $(VENV)/peers.stamp ## what recording costs, beside other recorders (PUBLISH=1: write docs/benchmarks.md)
	PYTHONPATH=.:instrument:tests $(PEERS)/bin/python tests/benchmarks/recorder.py $(if $(PUBLISH),--publish) $(ARGS)

bench-amortised: $(VENV)/test.stamp ## what a span costs with steps, segments and pages: means over 10^5 spans (PUBLISH=1: write docs/benchmarks.md)
	PYTHONPATH=.:instrument:tests $(BIN)/python tests/benchmarks/amortised.py $(if $(PUBLISH),--publish) $(ARGS)

bench-start: $(VENV)/test.stamp ## what importing and starting takes (PUBLISH=1: write docs/benchmarks.md)
	PYTHONPATH=.:instrument:tests $(BIN)/python tests/benchmarks/start.py $(if $(PUBLISH),--publish) $(ARGS)

bench-peers: $(VENV)/peers.stamp ## install the recorders to compare with, into an environment of their own

bench-conversion: $(VENV)/test.stamp ## what it costs to turn recordings into Arrow: time, bytes, memory
	PYTHONPATH=.:instrument:tests $(BIN)/python tests/benchmarks/conversion.py $(if $(PUBLISH),--publish) $(ARGS)

soak: $(VENV)/test.stamp ## whether recording, reports and a polled dashboard stay small: memory, descriptors, files, spans lost (an hour; ARGS="--seconds 600"; PUBLISH=1: write docs/reliability.md)
	PYTHONPATH=.:instrument:tests $(BIN)/python tests/benchmarks/soak.py $(if $(PUBLISH),--publish) $(ARGS)

# KEEP: a folder for the runs, which serve again (0.9 GB in all); ARGS="--arms report": one arm of four.
bench-scale: $(VENV)/test.stamp ## what explaining large runs takes, of what it takes to read them (QUICK=1: small runs; PUBLISH=1: write docs/scale.md)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/scale.py $(if $(QUICK),--quick) $(if $(PUBLISH),--publish) $(if $(KEEP),--keep $(KEEP)) $(ARGS)

# SAMPLE: a rank's Kineto file, to be copied for all ranks; without one trainings are simulated.
bench-peers-analysis: $(VENV)/test.stamp $(VENV)-hta/hta.stamp ## Holistic Trace Analysis beside `tracelens analyze` (QUICK=1, PUBLISH=1, KEEP=: as above)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/analysis.py --hta $(VENV)-hta/bin/python $(if $(SAMPLE),--sample $(SAMPLE)) \
	  $(if $(QUICK),--quick) $(if $(PUBLISH),--publish) $(if $(KEEP),--keep $(KEEP)) $(ARGS)

# SAMPLE: a profile (.json.gz) to be made larger, with kernels, which HTA needs; ARGS=--large: also a file of 2 GiB.
bench-kineto: $(VENV)/test.stamp $(VENV)-hta/hta.stamp ## reading profiles of torch.profiler: events a second, memory, CPU beside HTA (PUBLISH=1: write docs/kineto.md)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/kineto.py --hta $(VENV)-hta/bin/python $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(PUBLISH),--publish) $(ARGS)

bench-formats: $(VENV)/test.stamp ## reading other tools' files: events a second, memory beside the file (PUBLISH=1: write docs/formats.md)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/formats.py $(if $(PUBLISH),--publish) $(ARGS)

bench-stragglers: $(VENV)/test.stamp ## false alarms and recall of the straggler tests
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/stragglers.py

calibrate: $(VENV)/test.stamp ## set the constants of the analyses by runs whose truth is known (ARGS=--dry: only print)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/calibrate.py $(ARGS)

# KEEP: a folder for the real runs, to which each call adds some (ARGS="--seconds 200"); without one they are recorded anew.
bench-gate: $(VENV)/test.stamp ## how often `tracelens compare` fails equal runs and misses slower ones, simulated and real (10 minutes; PUBLISH=1: write docs/compare.md)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/gate.py $(if $(PUBLISH),--publish) $(if $(KEEP),--keep $(KEEP)) $(ARGS)

bench-forecasts: $(VENV)/test.stamp ## how far forecasts of `tracelens scaling` are from runs of that size (10 minutes; PUBLISH=1: write docs/scaling.md)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/forecasts.py $(if $(PUBLISH),--publish) $(ARGS)

bench-simulate: $(VENV)/test.stamp ## what simulating 512 workers with 64 servers takes (a minute)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/simulate.py $(ARGS)

bench-dashboard: $(VENV)/test.stamp ## the dashboard on large runs: index, memory, zooms, also in a browser (SPANS=100000000: 15 minutes, 12 GB of memory, 20 of disk; PUBLISH=1: write docs/dashboard.md)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/dashboard.py $(SPANS) $(if $(PUBLISH),--publish)

bench-live: $(VENV)/test.stamp ## how long after being written a step is seen on screen (some minutes; PUBLISH=1: write docs/dashboard.md)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/live.py $(if $(PUBLISH),--publish) $(ARGS)

bench-clients: $(VENV)/test.stamp ## whether 50 people who look at a run at once are all answered (a minute; PUBLISH=1: write docs/reliability.md)
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/clients.py $(if $(PUBLISH),--publish) $(ARGS)

bench-ddp: $(VENV)/test.stamp ## what recording costs a real DDP training, with its interval (PUBLISH=1: write docs/benchmarks.md)
	PYTHONPATH=tests $(BIN)/python tests/benchmarks/ddp_overhead.py $(if $(PUBLISH),--publish) $(ARGS)

# Beside TraceML, which make bench-verdicts installs.
bench-ddp-starts: $(VENV)/test.stamp $(VENV)-traceml/traceml.stamp ## what recording costs whole starts of a DDP program, beside TraceML (15 minutes; PUBLISH=1: write docs/benchmarks.md)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/ddp_starts.py --traceml $(VENV)-traceml/bin/traceml $(if $(PUBLISH),--publish) $(ARGS)

bench-easgd: $(VENV)/test.stamp ## how much the methods of the EASGD family communicate, in real runs (PUBLISH=1: write docs/easgd.md)
	PYTHONPATH=.:instrument:tests $(BIN)/python tests/benchmarks/easgd.py $(if $(PUBLISH),--publish) $(ARGS)

# With Open MPI as well where it is installed: apt-get install openmpi-bin.
suites: suite-torch suite-mpi4py ## the own tests of PyTorch and mpi4py, without and under `tracelens record` (PUBLISH=1: write docs/harmless.md)

suite-torch: $(VENV)/test.stamp ## PyTorch's own tests of c10d, DDP and FSDP on gloo (ARGS="--classes Fsdp": some of them)
	PYTHONPATH=.:tests $(BIN)/python tests/suites/torch_suite.py $(if $(PUBLISH),--publish) $(ARGS)
	TRACELENS_ALL_PROGRAMS=1 $(BIN)/pytest tests/end_to_end/test_programs.py $(PYTEST_ARGS)

suite-mpi4py: $(VENV)/test.stamp ## mpi4py's own tests at 2 and 4 ranks (ARGS="--ranks 2 --files test_comm": some of them)
	PYTHONPATH=.:tests $(BIN)/python tests/suites/mpi4py_suite.py $(if $(PUBLISH),--publish) $(ARGS)

bench-accuracy: $(VENV)/test.stamp ## how right verdicts are, beside other tools' rules (hours; QUICK=1: a minute)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/accuracy.py $(if $(QUICK),--quick)

bench-real: $(VENV)/test.stamp ## how often verdicts on real trainings are right, each fault recorded 10 times (half an hour; as root)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/real_runs.py $(if $(PUBLISH),--publish) $(ARGS)

bench-verdicts: $(VENV)/test.stamp $(VENV)-traceml/traceml.stamp ## rank and place of verdicts on plain programs, beside TraceML's (10 minutes; ARGS="--often": each often; PUBLISH=1: write docs/verdicts.md)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/verdicts.py --traceml $(VENV)-traceml/bin/traceml $(if $(PUBLISH),--publish) $(ARGS)

bench-savings: $(VENV)/test.stamp ## what fixing real faults saves, beside what reports state (15 minutes; PUBLISH=1: write docs/accuracy.md)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/savings.py $(if $(PUBLISH),--publish) $(ARGS)

bench-background: $(VENV)/test.stamp ## what a write in the background costs that fits a step's pauses, and one twice as large (5 minutes, as root; PUBLISH=1: write docs/studies.md)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/background_write.py $(if $(PUBLISH),--publish) $(ARGS)

bench-whatif: $(VENV)/test.stamp ## what whatif predicts, beside what came of it when it was done (20 minutes, as root; PUBLISH=1: write docs/whatif.md)
	PYTHONPATH=.:tests $(BIN)/python tests/benchmarks/interventions.py $(if $(PUBLISH),--publish) $(ARGS)

# TensorFlow needs seconds to be imported and a gigabyte, so it has an environment of its own.
test-tensorflow: ## real parameter servers of TensorFlow, in an environment of their own
	$(PYTHON) -m venv .venv-tensorflow
	.venv-tensorflow/bin/python -m pip install --quiet --disable-pip-version-check -e '.[analyze]' tensorflow-cpu pytest pytest-timeout pytest-randomly
	.venv-tensorflow/bin/python -m pytest tests/frameworks/test_tensorflow.py tests/frameworks/test_tensorflow_sessions.py $(PYTEST_ARGS)

# The last release sets C++14, and PyTorch needs C++17; its gloo asks for an older CMake (ten minutes).
HOROVOD := 0.28.1
test-horovod: ## real Horovod, built from source with C++17, in an environment of its own
	$(PYTHON) -m venv .venv-horovod
	.venv-horovod/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
	.venv-horovod/bin/python -m pip install --quiet --disable-pip-version-check -e '.[analyze]' pytest pytest-timeout pytest-randomly setuptools wheel cmake cloudpickle psutil pyyaml packaging cffi
	test -d .venv-horovod/horovod-$(HOROVOD) || { cd .venv-horovod && bin/python -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation horovod==$(HOROVOD) && tar xzf horovod-$(HOROVOD).tar.gz; }
	sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' .venv-horovod/horovod-$(HOROVOD)/CMakeLists.txt .venv-horovod/horovod-$(HOROVOD)/horovod/torch/CMakeLists.txt
	PATH=$(CURDIR)/.venv-horovod/bin:$$PATH HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 CMAKE_POLICY_VERSION_MINIMUM=3.5 \
	  .venv-horovod/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps .venv-horovod/horovod-$(HOROVOD)
	.venv-horovod/bin/python -m pytest tests/frameworks/test_horovod.py $(PYTEST_ARGS)

test-trainers: ## Lightning and Hugging Face's Trainer, in an environment of their own
	$(PYTHON) -m venv .venv-trainers
	.venv-trainers/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
	.venv-trainers/bin/python -m pip install --quiet --disable-pip-version-check -e '.[analyze]' lightning transformers accelerate pytest pytest-timeout pytest-randomly
	.venv-trainers/bin/python -m pytest tests/frameworks/test_trainers.py $(PYTEST_ARGS)

suite-accelerate: ## Accelerate's own test scripts, without and under `tracelens record`, in an environment of their own (PUBLISH=1: write docs/harmless.md)
	$(PYTHON) -m venv .venv-trainers
	.venv-trainers/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
	.venv-trainers/bin/python -m pip install --quiet --disable-pip-version-check -e '.[analyze]' accelerate
	PYTHONPATH=.:tests .venv-trainers/bin/python tests/suites/accelerate_suite.py $(if $(PUBLISH),--publish) $(ARGS)

test-trackers: ## a report in MLflow and W&B, frames of pandas: in an environment of their own
	$(PYTHON) -m venv .venv-trackers
	.venv-trackers/bin/python -m pip install --quiet --disable-pip-version-check -e '.[analyze,notebook]' mlflow-skinny sqlalchemy alembic wandb pytest pytest-timeout pytest-randomly
	.venv-trackers/bin/python -m pytest tests/reports/test_trackers.py tests/model/test_shown.py $(PYTEST_ARGS)

notebook: $(VENV)/test.stamp ## execute docs/notebook.ipynb anew
	cd tests && $(abspath $(VENV))/bin/python -m support.notebook

test-jax: ## JAX on two processes, in an environment of its own
	$(PYTHON) -m venv .venv-jax
	.venv-jax/bin/python -m pip install --quiet --disable-pip-version-check -e '.[analyze]' jax pytest pytest-timeout pytest-randomly
	.venv-jax/bin/python -m pytest tests/frameworks/test_jax.py $(PYTEST_ARGS)

# A machine with a GPU has a PyTorch of its own: PYTHON with torch, pyarrow, numpy, wrapt, pytest, pytest-timeout.
ON_GPU := PYTHONPATH=.:instrument:tests $(PYTHON) -m

test-gpu: ## the tests that need a CUDA device, with what PYTHON has installed
	$(ON_GPU) pytest tests/gpu $(PYTEST_ARGS)

sample-gpu: ## record a training on this machine's GPUs into TRACE, check its device times, measure what they cost
	$(ON_GPU) support.gpu_sample $(or $(TRACE),traces/ddp-gpu) $(ARGS)

clean: ## remove what the targets made
	rm -rf $(VENV) .venv-tensorflow .venv-horovod .venv-trainers .venv-jax .venv-hta .venv-traceml $(PEERS) traces .mypy_cache .ruff_cache .pytest_cache .hypothesis

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
LOCK := tests/requirements.txt
$(VENV)/test.stamp: pyproject.toml $(LOCK) $(NATIVE) | $(VENV)/bin/python
	$(PIP) --require-hashes --no-deps -r $(LOCK)
	$(PIP) 'torch==2.13.0'
	$(PIP) --no-build-isolation -e '.[test]'
	$(BIN)/python -m tracelens_instrument.hooks.torch.compiled || echo "buckets are seen in Python only, also in the tests"
	touch $@ $(VENV)/demo.stamp

# Of PyTorch only what its CPU build needs, too: CUDA comes with other builds.
NOT_LOCKED := torch triton cuda-bindings cuda-pathfinder cuda-toolkit $(addprefix nvidia-,cublas cuda-cupti cuda-nvrtc \
  cuda-runtime cudnn-cu13 cufft cufile curand cusolver cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx)
lock: $(VENV)/bin/python ## the newest versions of what the tests use, with hashes, into tests/requirements.txt
	$(PIP) 'uv>=0.9'
	$(BIN)/uv pip compile pyproject.toml --extra test --universal --python-version 3.11 --generate-hashes --no-annotate --quiet \
	  --upgrade --custom-compile-command 'make lock' $(addprefix --no-emit-package ,$(NOT_LOCKED)) --output-file $(LOCK)

# Inputs are chosen by coverage where atheris can be installed; elsewhere only ARGS=--guided is missing.
$(VENV)/fuzz.stamp: $(VENV)/test.stamp
	$(PIP) 'atheris>=3' || echo "atheris cannot be installed here: make fuzz ARGS=--guided will not run"
	touch $@

$(VENV)/mutate.stamp: $(VENV)/test.stamp
	$(PIP) 'cosmic-ray>=8.4'
	touch $@

# In an environment of its own; if it cannot be installed, bench-peers-analysis says so.
$(VENV)-hta/hta.stamp: tests/benchmarks/analyzers/requirements.txt
	$(PYTHON) -m venv $(VENV)-hta
	$(VENV)-hta/bin/python -m pip install --quiet --disable-pip-version-check -r $< || echo "HTA cannot be installed here"
	touch $@

# With the PyTorch of the tests; if it cannot be installed, bench-verdicts says so.
$(VENV)-traceml/traceml.stamp: tests/benchmarks/traceml.txt $(VENV)/test.stamp
	$(BIN)/python -m venv $(VENV)-traceml
	$(BIN)/python -c "import site; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" \
	  > "$$(echo $(VENV)-traceml/lib/python3*/site-packages)/with-tests.pth"
	$(VENV)-traceml/bin/python -m pip install --quiet --disable-pip-version-check -r $< || echo "TraceML cannot be installed here"
	touch $@

# Beside what the tests use; a recorder that cannot be installed is left out, and bench-recorder says why.
$(VENV)/peers.stamp: tests/benchmarks/peers.txt $(VENV)/test.stamp
	$(BIN)/python -m venv $(PEERS)
	$(BIN)/python -c "import site; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" \
	  > "$$(echo $(PEERS)/lib/python3*/site-packages)/with-tests.pth"
	grep -v '^#' tests/benchmarks/peers.txt | while read -r peer; do \
	  $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check "$$peer" > /dev/null 2>&1 \
	    || echo "$$peer cannot be installed here"; done
	touch $@
