# Two commands: `make demo` and `make test`. Each makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread per process: two OpenMP threads on two busy cores spin against each other.
export OMP_NUM_THREADS ?= 1

# Root needs no sudo, and a container may have none.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: demo test test-browser test-faults lint bench docs clean

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

# Where Debian's python3-venv is missing, pip is put into the environment from outside.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV) >/dev/null || { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install -q pip; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e '.[report]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
# kronfluence asks for torchvision without using it, and one that was built for another torch cannot be imported.
	$(BIN)/pip uninstall -q -y torchvision
	touch $@

clean:
	rm -rf $(VENV) runs dist site .mypy_cache .ruff_cache .pytest_cache
