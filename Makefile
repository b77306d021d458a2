# Two commands: `make demo` and `make test`. Each makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread per process: two OpenMP threads on two busy cores spin against each other.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint bench clean

demo: $(VENV)/.installed
	$(BIN)/ddm demo --out runs/demo

test: $(VENV)/.installed-dev
	$(BIN)/pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-dev
	$(BIN)/pytest bench -n 0

# Where Debian's python3-venv is missing, pip is put into the environment from outside.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV) >/dev/null || { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install -q pip; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
# kronfluence asks for torchvision without using it, and one that was built for another torch cannot be imported.
	$(BIN)/pip uninstall -q -y torchvision
	touch $@

clean:
	rm -rf $(VENV) runs dist .mypy_cache .ruff_cache .pytest_cache
