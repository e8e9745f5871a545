# Two commands: `make run` trains the default job, `make test` checks everything.  Both start from nothing but Python.
PYTHON ?= python3
VENV := .venv
DEV := .venv-dev
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run test lint format bench clean

run: $(VENV)/installed
	$(VENV)/bin/ffgb train

test: lint
	$(DEV)/bin/python -m pytest -n 3 --dist loadfile

lint: $(DEV)/installed
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/mypy

format: $(DEV)/installed
	$(DEV)/bin/ruff check --fix .
	$(DEV)/bin/ruff format .

bench: $(DEV)/installed
	$(DEV)/bin/python benchmarks/oracle.py
	$(DEV)/bin/python benchmarks/closed.py --quick
	$(DEV)/bin/python benchmarks/norms.py

# The base package alone: no torch.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(INSTALL) --editable .
	touch $@

# What the tests need besides.
$(DEV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/python $(INSTALL) --editable '.[neural,simulation,onnx,transport,plots,dev]'
	touch $@

clean:
	rm -rf $(VENV) $(DEV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
