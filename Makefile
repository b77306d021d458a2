# Two commands: `make demo` and `make test`. Each makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread per process: two OpenMP threads on two busy cores spin against each other.
export OMP_NUM_THREADS ?= 1

# Root needs no sudo, and a container may have none.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: demo test test-browser test-faults lint bench docs lock audit sbom clean

demo: $(VENV)/.installed
	$(BIN)/ddm demo --out runs/demo

test: $(VENV)/.installed-dev
	$(BIN)/pytest

test-browser: $(VENV)/.installed-dev
	command -v chromium >/dev/null || { $(SUDO) apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -qq -y --no-install-recommends chromium >/dev/null; }
	$(BIN)/pytest tests/browser -n 0

test-faults: $(VENV)/.installed-dev
	$(BIN)/pytest tests/faults

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
