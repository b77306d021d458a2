# `make demo` shows what it does. `make test` runs the quick tests, in a few minutes; `make test-all` also those that take
# long: every benchmark, documentation, clusters, browser and faults. Each makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread per process: two OpenMP threads on two busy cores spin against each other.
export OMP_NUM_THREADS ?= 1

# Root needs no sudo, and a container may have none.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: demo test test-slow test-all test-browser test-faults chromium lint bench docs lock audit sbom clean

demo: $(VENV)/.installed
	$(BIN)/ddm demo --out runs/demo

test: $(VENV)/.installed-dev
	$(BIN)/pytest

# Without the default norecursedirs, tests/browser and tests/faults are collected too. The tests of a file run in one
# worker, because two workers must not start a Ray cluster at the same time. A browser or a cluster may time out beside
# another heavy test, so tests that fail run once more, alone.
SLOW := $(BIN)/pytest -m slow -o norecursedirs='.*'
test-slow: $(VENV)/.installed-dev chromium
	$(SLOW) --dist loadfile || $(SLOW) -n 0 --last-failed --last-failed-no-failures none

test-all:
	$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory test-slow

test-browser: $(VENV)/.installed-dev chromium
	$(BIN)/pytest -m slow tests/browser

# FAULTS is the part of all faults that is tried; test-slow tries a hundredth.
test-faults: $(VENV)/.installed-dev
	FAULTS=$(or $(FAULTS),1) $(BIN)/pytest -m slow tests/faults

chromium:
	command -v chromium >/dev/null || { $(SUDO) apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -qq -y --no-install-recommends chromium >/dev/null; }

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-dev
	$(BIN)/pytest bench -n 0

# The banner that is left out advertises another program.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The hashes that pip checks, anew from constraints.txt.
lock: $(VENV)/.installed-dev $(VENV)/tools
	$(BIN)/python .ci/lock.py $(VENV)/tools/bin/uv

# Known vulnerabilities of what is locked and of torch, where their database can be reached.
audit: $(VENV)/tools
	$(VENV)/tools/bin/python .ci/audit.py

# What the environment is made of, as a CycloneDX document.
sbom: $(VENV)/.installed-dev $(VENV)/tools
	mkdir -p dist
	$(VENV)/tools/bin/cyclonedx-py environment --pyproject pyproject.toml -o dist/sbom.cdx.json $(BIN)/python
	@echo dist/sbom.cdx.json

$(VENV)/tools: requirements/tools.txt | $(BIN)/pip
	$(BIN)/python -m venv --clear --without-pip $@
	$(BIN)/pip --python $@/bin/python install -q --no-deps --require-hashes -r requirements/tools.txt || { rm -rf $@; false; }
	touch $@

# Where Debian's python3-venv is missing, pip is put into the environment from outside.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV) >/dev/null || { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install -q --no-deps --require-hashes -r requirements/pip.txt; }

# What is locked is checked by its hashes and comes first; the other lines find it there. torch and what it asks for
# beyond that have no hashes: every kind of accelerator has files of its own.
$(VENV)/.installed: pyproject.toml constraints.txt requirements/report.txt | $(BIN)/pip
	$(BIN)/pip install -q --no-deps --require-hashes -r requirements/report.txt
	$(BIN)/pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[report]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements/dev.txt
	$(BIN)/pip install -q --no-deps --require-hashes -r requirements/dev.txt
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[dev]'
# kronfluence asks for torchvision without using it, and one that was built for another torch cannot be imported.
	$(BIN)/pip uninstall -q -y torchvision
	touch $@

clean:
	rm -rf $(VENV) runs dist site .mypy_cache .ruff_cache .pytest_cache
