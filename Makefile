# Each target does the set-up that it needs. Needs Python 3.11 or newer, git and make; nothing else.
#
#   PYTHON=...      make workbook: build over that interpreter's packages, so that its torch and your model code are visible
#                   other targets: the Python to make .venv with
#   RUN=...         make workbook: the failed run to open, a file or a folder
#   ARGS=...        make test: more for pytest, as in ARGS="-k torch_oom"
#   TORCH_ARGS=...  make test: more for the pip that installs PyTorch, such as the index of its CPU builds
#   PIP_ARGS=...    more for every pip

.DEFAULT_GOAL := help
PYTHON = python3
OVER = $(if $(filter command line,$(origin PYTHON)),--over)
BIN = .venv/bin
export PIP_ARGS TORCH_ARGS

.PHONY: help workbook test lint benchmarks fuzz samples lock clean have-python

help:  ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-12s%s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

workbook: have-python  ## Open JupyterLab on the workbook [RUN=path] [PYTHON=/your/python]
	@$(PYTHON) .ci/venv.py workbook $(OVER)
	@$(BIN)/diag-kit workbook $(if $(RUN),"$(RUN)")

test: have-python  ## Run all tests, notebooks and browser journeys too [ARGS=...]
	@$(PYTHON) .ci/venv.py test
	@$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

lint: have-python  ## Check style (ruff) and types (mypy)
	@$(PYTHON) .ci/venv.py test
	@$(BIN)/ruff check .
	@$(BIN)/mypy

benchmarks: have-python  ## Print what is fast, beside what one would pick instead
	@$(PYTHON) .ci/venv.py test
	@for script in benchmarks/[a-z]*.py; do echo "$$script" && $(BIN)/python "$$script" || exit 1; done

fuzz: have-python  ## Diagnose mutated cases for ten minutes; fails on anything but answers [SECONDS=...]
	@$(PYTHON) .ci/venv.py test
	@$(BIN)/python tests/fuzz.py --seconds $(or $(SECONDS),600)

samples: have-python  ## Write data/samples anew from data/make_samples.py
	@$(PYTHON) data/make_samples.py

lock: have-python  ## Write what .venv has now to requirements.lock
	@$(PYTHON) .ci/venv.py test
	@{ sed -n '/^#/p' requirements.lock; $(BIN)/python -m pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//'; } > .venv/lock
	@mv .venv/lock requirements.lock && git diff --stat -- requirements.lock

clean:  ## Remove .venv and everything else that was made here
	@rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

have-python:
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON): not found; install Python 3.11 or newer, or name it: PYTHON=/path/to/python" >&2; exit 2; }
