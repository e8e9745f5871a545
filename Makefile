# Two commands: `make run` trains the default job, `make test` checks everything.  Both start from nothing but Python.
PYTHON ?= python3
VENV := .venv
DEV := .venv-dev
# The time of the last commit; outside of a repository, the first moment that a zip file can name.
BUILD_TIME = $(shell git log -1 --format=%ct 2>/dev/null || echo 315532800)
TRACER = $(shell $(PYTHON) -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')
COVERAGE ?= $(filter sysmon,$(TRACER))
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run test pytest lint docs format bench wheel dist clean

run: $(VENV)/installed
	$(VENV)/bin/ffgb train

# The checks and the tests side by side; `make` fails if either does.
test: $(DEV)/installed
	$(MAKE) --no-print-directory --jobs=2 lint pytest

# Bytecode is kept, whatever the environment says: hundreds of processes begin.
# One BLAS thread a process: three processes with two threads each would wait for one another.
# Each process takes one file after another, in the order of tests/conftest.py.
# Coverage costs next to nothing from Python 3.12 on, and a third more time before: there `make test COVERAGE=1` adds it.
pytest: $(DEV)/installed
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 COVERAGE_CORE=$(TRACER) \
	  $(DEV)/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(if $(COVERAGE),--cov)

lint: $(DEV)/installed
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/mypy
	$(DEV)/bin/lint-imports
	$(MAKE) --no-print-directory docs

# The documentation site, in site/: open site/index.html.  A warning is an error.
docs: $(DEV)/installed
	NO_MKDOCS_2_WARNING=1 $(DEV)/bin/mkdocs build --quiet --strict

format: $(DEV)/installed
	$(DEV)/bin/ruff check --fix .
	$(DEV)/bin/ruff format .

bench: $(DEV)/installed
	$(DEV)/bin/python benchmarks/oracle.py
	$(DEV)/bin/python benchmarks/closed.py --quick
	$(DEV)/bin/python benchmarks/norms.py

# The source distribution and the wheel.  They are built twice; the wheel must have the same bytes both times.
dist: $(DEV)/installed
	rm -rf dist
	umask 022; for copy in 1 2; do \
	  SOURCE_DATE_EPOCH=$(BUILD_TIME) PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(DEV)/bin/python -m build --outdir dist/$$copy . || exit 1; \
	done
	cmp dist/1/*.whl dist/2/*.whl
	mv dist/1/* dist && rm -r dist/1 dist/2
	cd dist && sha256sum *

# The wheel alone, to carry to a site: it needs nothing of what the tests need.
wheel: $(VENV)/installed
	mkdir -p dist
	umask 022; SOURCE_DATE_EPOCH=$(BUILD_TIME) PIP_CONSTRAINT=$(CURDIR)/constraints.txt \
	  $(VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	cd dist && sha256sum *.whl

# The base package alone: no torch.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(INSTALL) --editable .
	touch $@

# What the tests need besides.
$(DEV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/python $(INSTALL) --editable '.[neural,simulation,onnx,transport,plots,secure,fast,sql,excel,dev,docs]'
	touch $@

clean:
	rm -rf $(VENV) $(DEV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage site dist
