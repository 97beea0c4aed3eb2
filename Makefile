# Everything from a bare checkout: each target makes the virtual environment it needs in .venv.
# Needs Python >= 3.10 with its headers, Rust and gcc; neither a GPU nor a CUDA toolkit.
#   make demo PYTHON=python3.12
#   make wheel TILEWISE_CUDA_TARGETS=8.6,9.0    (for these GPUs; also all, none, or native: those of this machine)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# What compiles (maturin and the parts of nvcc, as pyproject.toml lists them) lives in an environment of its
# own: torch depends on other releases of the same NVIDIA packages, and mixed parts of nvcc do not compile.
TOOLS := $(VENV)/build-tools
BUILD_REQUIRES = $(shell sed -n "/^requires = \[/,/^\]/s/^ *\"\(.*\)\",/'\1'/p" pyproject.toml)
# What the wheel's extra `torch` asks for, before there is a wheel.
TORCH_REQUIRES = $(shell sed -n "s/^torch = \[\(.*\)\]/\1/p" pyproject.toml | tr -d ,)

# A wheel for some GPUs lies in a folder of its own: all, none, 90, 80-90 and so on.
WHEELS := target/wheels
# The oldest glibc that a wheel runs with: zig links against it, whatever this machine has.
PORTABLE := manylinux_2_28
# Where the complete wheel is looked at.
COMPLETE := target/complete
# Before zig's own unwinder, by which no exception of C++ may pass through a frame of ours.
UNWINDER = -C link-arg=$(realpath $(shell gcc -print-file-name=libgcc_s.so.1))
comma := ,
space := $() $()
NATIVE = $(or $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
	sed -n 's/^\([0-9]*\)\.\([0-9]\)$$/\1\2/p' | sort -nu),none)
ASKED := $(sort $(subst $(comma), ,$(subst .,,$(TILEWISE_CUDA_TARGETS))))
set = $(subst $(space),-,$(strip $(patsubst native,$(NATIVE),$(or $(ASKED),$(1)))))
DEMO = $(call set,native)
WHEEL = $(call set,all)
# What is tested: code for the GPUs of this machine, and of all others the names, for the emulator. Where there is no GPU, the code of
# additions alone is compiled, so that all of the build is run. That the kernels compile for every GPU, `make kernels` says in
# kernels/resources.txt, with a digest that the tests compare.
TESTED = $(subst $(space),-,$(strip $(filter-out none,$(NATIVE)) emulated))
# What is tested is built for the instructions of this machine: loops for others, which do not run here, are a third of the work.
# The unit tests, which are not optimised, and clippy have all of them.
LEVEL := $(if $(filter x86_64,$(shell uname -m)),$(shell grep -qsw avx512vl /proc/cpuinfo && echo v4 || { grep -qsw avx2 /proc/cpuinfo && echo v3; }))
LEVEL_FLAGS := $(if $(LEVEL),-C target-cpu=x86-64-$(LEVEL))
LEVEL_FEATURES := $(if $(filter v4,$(LEVEL)),,--no-default-features)
# $(call if_tested,SET,WORDS): the words where the set of GPUs is that of a wheel to be tested.
if_tested = $(if $(findstring emulated,$(1)),$(2))
# Their build script compiles kernels, too.
CARGO = TILEWISE_CUDA_TARGETS='$(subst -, ,$(TESTED))' cargo
unexport TILEWISE_CUDA_TARGETS

# build.rs asks this interpreter for nvcc, and PyO3 links against its library.
export PYO3_PYTHON := $(CURDIR)/$(TOOLS)/bin/python
unexport VIRTUAL_ENV
# The test binaries load libpython, which need not be where the loader looks.
LIBPYTHON := $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')
export LD_LIBRARY_PATH := $(LIBPYTHON)$(if $(LD_LIBRARY_PATH),:$(LD_LIBRARY_PATH))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

SOURCES := $(shell find src build kernels python -name '*.rs' -o -name '*.cu' -o -name '*.cuh' -o -name '*.py' -o -name '*.pyi') \
	build.rs Cargo.toml Cargo.lock pyproject.toml

# uv takes a third of pip's time, but does not read pip's settings (an index of one's own, say): where it finds nothing, pip may.
# $(call install,ENVIRONMENT,PACKAGES)
install = $(BIN)/uv pip install --quiet --python $(1)/bin/python $(2) || $(BIN)/python -m pip --python $(1)/bin/python install --quiet $(2)

# The network is busy with packages while the processors are with kernels, and one of them compiles the tests while the
# other links the wheel; what they leave, the emulator takes. Cargo counts processors itself, below.
TOGETHER := $(MAKE) --jobs=3 --output-sync=line

# No part of `test`: it takes two cores a minute and a half to build, and its answer changes with Cargo.lock only.
DENY := target/tools/bin/cargo-deny

.PHONY: demo wheel kernels test lint lint-rust lint-python lint-stub rust emulator audit test-rust test-python test-torch bench docs figures clean help
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 14

demo:  ## install, run add, softmax and matmul on the best device present, compare with torch
	$(TOGETHER) $(VENV)/.torch $(WHEELS)/$(DEMO)/.built
	$(MAKE) $(VENV)/.installed-$(DEMO)
	$(BIN)/python -m tilewise.demo

test:  ## everything CI runs
	$(TOGETHER) $(VENV)/.groups $(WHEELS)/$(TESTED)/.built lint-python rust emulator
	$(MAKE) $(VENV)/.developing
	$(TOGETHER) lint-stub test-python

lint: lint-rust lint-python lint-stub  ## formatting, clippy, ruff, mypy, stubtest

lint-rust: $(TOOLS)/.ready
	cargo fmt --check
	$(CARGO) clippy --all-targets --locked -- -D warnings

lint-python: $(VENV)/.groups
	$(BIN)/clang-format --dry-run --Werror kernels/*.cu kernels/common/*.cuh kernels/common/ptx/*.cuh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-stub: $(VENV)/.developing
	$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml tilewise._core

# One after the other: they share a folder, which cargo locks. Not before the packages are there, which nobody waits for while
# this waits for the kernels.
rust: $(TOOLS)/.ready $(VENV)/.groups
	$(MAKE) lint-rust
	$(MAKE) test-rust

# Most of what tests/emulator/test_emulator.py would compile else, for the device and the dtypes that it asks for.
emulator:
	nice -n 19 $(PYTHON) tests/emulator/host_build.py h200 --without float16

audit: $(DENY)  ## licences and sources of the Rust dependencies: run it when Cargo.lock changes
	$(DENY) --log-level error check licenses bans sources

$(DENY):
	cargo install --quiet --locked --root target/tools --version 0.20.2 cargo-deny

test-rust: $(TOOLS)/.ready
	$(CARGO) test --locked --lib

# Two processes where they do not meet on a GPU: the emulator's tests beside all others. Threads of torch that spin in one
# would take the cores from the other.
test-python: $(VENV)/.developing
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest $(if $(wildcard /dev/nvidia0),,-n 2 --dist worksteal)

# An environment of its own for each release. The newest is what `test` has. inductor of torch 2.5 needs setuptools.
test-torch: $(VENV)/.pip $(WHEELS)/$(TESTED)/.built  ## the tests that concern torch, with one release: make test-torch VERSION=2.11.0
	$(if $(VERSION),,$(error VERSION is not set: make test-torch VERSION=2.11.0))
	$(PYTHON) -m venv --without-pip target/torch/$(VERSION)
	$(call install,target/torch/$(VERSION),--group test setuptools torch==$(VERSION))
	$(call install,target/torch/$(VERSION),--no-deps --force-reinstall $(WHEELS)/$(TESTED)/*.whl)
	OMP_WAIT_POLICY=passive target/torch/$(VERSION)/bin/python -m pytest -n 2 --dist worksteal tests/torch tests/interop

bench: $(VENV)/.benching  ## time every operation against torch and others (quick set; docs/measuring.md has the full one)
	$(BIN)/python -m tilewise.bench all --quick

docs: $(VENV)/.developing  ## build the site into .site (mkdocs serve shows it while you write)
	$(BIN)/python -m mkdocs build

figures: $(VENV)/.developing  ## write docs/performance, pictures, and figures of README and notebooks from benchmarks/results
	$(BIN)/python benchmarks/pages.py

clean:  ## remove the environment and everything built
	rm -rf $(VENV) target dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find python tests -name __pycache__ -prune -exec rm -rf {} +

wheel:  ## build the portable wheel for every GPU into target/wheels/all
	$(MAKE) $(WHEELS)/$(WHEEL)/.built
	@ls $(WHEELS)/$(WHEEL)/*.whl

# Not into the environment, where what is tested may be for this machine alone.
kernels: $(WHEELS)/all/.built $(VENV)/.groups  ## compile the kernels for every GPU, and record that: after every change to them
	$(call install,$(VENV),--no-deps --upgrade --target $(COMPLETE) $(WHEELS)/all/*.whl)
	PYTHONPATH=$(COMPLETE) $(BIN)/python build/record.py
	PYTHONPATH=$(COMPLETE) $(BIN)/python -m pytest -q tests/cuda/test_kernel_resources.py

# pip 25.1 is the first that knows dependency groups.
$(VENV)/.pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' uv
	@touch $@

$(TOOLS)/.ready: $(VENV)/.pip pyproject.toml
	$(PYTHON) -m venv --without-pip $(TOOLS)
	$(call install,$(TOOLS),$(BUILD_REQUIRES) --group wheel)
	@touch $@

$(WHEELS)/%/.built: $(TOOLS)/.ready $(SOURCES)
	@rm -rf $(@D)
	MAKEFLAGS= TILEWISE_CUDA_TARGETS='$(subst -, ,$*)' CARGO_ZIGBUILD_PYTHON_PATH=$(PYO3_PYTHON) \
		RUSTFLAGS='$(UNWINDER) $(call if_tested,$*,$(LEVEL_FLAGS))' \
		$(TOOLS)/bin/maturin build --release --locked $(call if_tested,$*,$(LEVEL_FEATURES)) \
		--interpreter $(PYO3_PYTHON) --zig --compatibility $(PORTABLE) --out $(@D)
	$(TOOLS)/bin/auditwheel show $(@D)/*.whl | grep '"$(PORTABLE)_'
	@touch $@

$(VENV)/.torch: $(VENV)/.pip pyproject.toml
	$(call install,$(VENV),$(TORCH_REQUIRES))
	@touch $@

$(VENV)/.groups: $(VENV)/.torch
	$(call install,$(VENV),--group test --group docs --group lint)
	@touch $@

# The second line replaces an older build of the same version, which pip would otherwise keep.
$(VENV)/.installed-%: $(WHEELS)/%/.built $(VENV)/.torch
	@rm -f $(VENV)/.installed-*
	$(call install,$(VENV),"$$(ls $(WHEELS)/$*/*.whl)[torch]")
	$(call install,$(VENV),--no-deps --force-reinstall $(WHEELS)/$*/*.whl)
	@touch $@

$(VENV)/.developing: $(VENV)/.installed-$(TESTED) $(VENV)/.groups
	@touch $@

$(VENV)/.benching: $(VENV)/.installed-$(DEMO)
	$(call install,$(VENV),"$$(ls $(WHEELS)/$(DEMO)/*.whl)[bench]")
	@touch $@
