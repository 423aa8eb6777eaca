# One-word verbs; each creates .venv when it is missing. Needs make and Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLUSTER_PACKAGES := slurm-wlm munge openmpi-bin iproute2 bindfs faketime debootstrap
CLUSTER_PROGRAMS := slurmctld slurmd munged mpiexec ip tc bindfs faketime debootstrap

OLDEST_TORCH ?= 2.6.0
HOROVOD := 0.28.1
PROJECTS := chemprop==2.3.1 ultralytics==8.4.190 mace-torch==0.3.16
MINUTES ?= 5
SEED ?= 1

.PHONY: demo test test-all test-cluster test-weekly horovod projects browser test-oldest test-matrix cluster-packages fuzz storm lint bench count gpu-test gpu-accept docs clean

demo: $(VENV)/installed
	$(BIN)/benchsuite demo

# A process that hangs within the interpreter, where pytest-timeout cannot end its test, shows its threads and fails.
BY_FILE := --dist loadfile --no-loadscope-reorder --max-worker-restart 1 \
  -o faulthandler_timeout=660 -o faulthandler_exit_on_timeout=true

# The first tier: lint, types, unit tests, and one smoke of whatever there is to choose.
test: $(VENV)/installed-dev lint
	$(BIN)/python -m pytest -n 2 $(BY_FILE) -m "not slow and not weekly and not full and not cluster"

# What `make test` leaves out: faults, several ranks, DALI, DeepSpeed (Horovod, too, where it is built), the planner. A third
# of it waits for processes to start and to end.
test-all: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[deepspeed]'
	$(BIN)/python -m pytest -n 3 $(BY_FILE) tests planner/tests -m "slow and not weekly and not full and not cluster"

# With a Slurm, an mpirun or networks of their own, which mostly wait. They need root on Debian, where packages that are
# missing are installed; they skip with their reason elsewhere.
test-cluster: $(VENV)/installed-dev cluster-packages
	$(BIN)/python -m pytest -n 3 $(BY_FILE) tests/late tests/cluster tests/network -m "cluster and not full"

horovod: $(VENV)/horovod

# It has no package for today's PyTorch: its source is fetched, told to be C++ 20, and built without MPI. Needs g++; five minutes.
$(VENV)/horovod: $(VENV)/installed-dev
	@if ! type g++ >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && [ -e /etc/debian_version ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++ make; \
	fi
	@type g++ >/dev/null 2>&1 || { echo 'error: building Horovod needs g++ (Debian: apt install g++)'; exit 2; }
	rm -rf $(VENV)/src && mkdir -p $(VENV)/src
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'cmake<4' cffi cloudpickle setuptools wheel
	$(BIN)/python -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation horovod==$(HOROVOD) -d $(VENV)/src
	tar -xzf $(VENV)/src/horovod-$(HOROVOD).tar.gz -C $(VENV)/src
	cd $(VENV)/src/horovod-$(HOROVOD) && sed -i s/RelWithDebInfo/Release/ setup.py && sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 20/' CMakeLists.txt horovod/torch/CMakeLists.txt
	PATH="$(CURDIR)/$(BIN):$$PATH" MAKEFLAGS=-j2 CMAKE_POLICY_VERSION_MINIMUM=3.5 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
	  HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
	  $(BIN)/python -m pip install --quiet --no-build-isolation --no-deps $(VENV)/src/horovod-$(HOROVOD)
	rm -rf $(VENV)/src
	touch $@

# The first tier, without lint, on the oldest versions that pyproject.toml allows. PyTorch of that age brings CUDA's libraries: 4 GB.
test-oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-oldest/bin/python -m uv pip install --quiet --python .venv-oldest/bin/python --resolution lowest-direct \
	  torch==$(OLDEST_TORCH) -e '.[dev]' -e ./planner
	.venv-oldest/bin/python -m pytest -n 2 $(BY_FILE) -m "not slow and not weekly and not full and not cluster"

# Trainings of other projects, for the tests of `benchsuite run`: an environment that knows nothing of benchsuite, with the oldest PyTorch. 7 GB.
projects: .venv-projects/installed

.venv-projects/installed:
	$(PYTHON) -m venv .venv-projects
	.venv-projects/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-projects/bin/python -m uv pip install --quiet --python .venv-projects/bin/python torch==$(OLDEST_TORCH) $(PROJECTS)
	touch $@

# What CI leaves out, on a machine that does nothing else: tests that measure, charts in Chromium, Horovod, a storm, fuzzing.
test-weekly: $(VENV)/installed-dev cluster-packages browser horovod projects
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[deepspeed]'
	$(BIN)/python -m pytest tests planner/tests -m "(weekly or engines) and not full"
	$(BIN)/python -m tests.storm --minutes $(MINUTES) --seed $(SEED)
	BENCHSUITE_TEST_FUZZ_MINUTES=$(MINUTES) BENCHSUITE_TEST_FUZZ_SEED=$(SEED) $(BIN)/python -m pytest tests/fuzz/test_fuzz.py

browser:
	@if [ "$$(id -u)" = 0 ] && [ -e /etc/debian_version ] && ! type chromium >/dev/null 2>&1; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; \
	fi

# The full matrices, for hours.
test-matrix: $(VENV)/installed-dev
	$(BIN)/python -m pytest tests planner/tests -m full

cluster-packages:
	@if [ "$$(id -u)" = 0 ] && [ -e /etc/debian_version ] && ! type $(CLUSTER_PROGRAMS) >/dev/null 2>&1; then \
	  echo 'installing $(CLUSTER_PACKAGES)'; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(CLUSTER_PACKAGES); \
	fi

# Looks for what no test was written for, from fixed seeds; of one kind with TARGET=sweeps.
fuzz: $(VENV)/installed-dev
	BENCHSUITE_TEST_FUZZ_MINUTES=$(MINUTES) BENCHSUITE_TEST_FUZZ_SEED=$(SEED) \
	  $(BIN)/python -m pytest tests/fuzz/test_fuzz.py -k '$(TARGET)'

# Kills what three sweeps on two late mounts consist of, from a fixed seed, and then audits the store.
storm: $(VENV)/installed-dev cluster-packages
	$(BIN)/python -m tests.storm --minutes $(MINUTES) --seed $(SEED)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select PLW1514 benchsuite storage workloads results planner/benchsuite_plan
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy -n 2
	$(BIN)/mypy --python-version 3.10 -p benchsuite.inside

bench: $(VENV)/installed-dev
	IMAGENET_SAMPLE='$(IMAGENET_SAMPLE)' $(BIN)/python -m bench $(SECTIONS)

# How large the house is: verbs, options, axes, lines.
count: $(VENV)/installed-dev
	$(BIN)/python -m bench.counts

# Uses the interpreter that is there (PYTHON=...) and installs nothing.
gpu-test:
	$(PYTHON) -m pytest -m gpu tests/gpu

# The same, `doctor --device`, and one file to send back, within 20 minutes; on a node of a job, best of two nodes of 8 GPUs.
gpu-accept:
	$(PYTHON) -m tests.gpu.accept

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"error: Python {v[0]}.{v[1]} is too old: benchsuite needs 3.11 or newer; name one with make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# torch comes first and from its pin: a looser request may pull another build of it. Modules are compiled when they are
# first imported: most never are.
$(VENV)/installed: $(VENV)/bin/python pyproject.toml planner/pyproject.toml constraints.txt
	@echo 'installing into $(VENV) (a minute or two)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-compile torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-compile -e '.[all]' -e ./planner
	touch $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml planner/pyproject.toml constraints.txt
	@echo 'installing into $(VENV) (a minute or two)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-compile torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-compile -e '.[all,dev]' -e ./planner
	touch $(VENV)/installed $@

# The documentation as pages in site/, which need no network.
docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]' -e ./planner
	$(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) benchsuite-demo
