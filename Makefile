# Each target works from nothing: it makes .venv and installs into it what it needs.
PYTHON ?= python3
BIN := .venv/bin
DATA ?= data/multi30k

.PHONY: demo test check lint bench clean

demo: .venv/installed  ## translate a few sentences; on a terminal, stay at the prompt
	@$(BIN)/python tools/demo.py
	@if [ -t 0 ] && [ -t 1 ]; then $(BIN)/mlx-transformer translate; fi
	@echo "The command lies in .venv: 'source .venv/bin/activate' puts mlx-transformer on your path."

test: .venv/installed-dev  ## all tests, PyTorch parity included
	$(BIN)/pytest

check: .venv/installed-dev  ## the quick tests
	$(BIN)/pytest -m "not slow"

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/installed-dev  ## this project against PyTorch, transformers and CTranslate2; DATA is Multi30k
	$(BIN)/python tools/bench_train.py --data $(DATA) --write BENCHMARKS.md
	$(BIN)/python tools/bench_decode.py --data $(DATA) --write BENCHMARKS.md

clean:
	rm -rf .venv build dist *.egg-info mlx_transformer/cpu/*.so

.venv/bin/python:
	$(PYTHON) -m venv .venv

# An editable installation builds few_rows.cpp into the checkout, on Linux and with a C++ compiler.
BUILT_FROM := pyproject.toml setup.py mlx_transformer/cpu/few_rows.cpp

.venv/installed: .venv/bin/python $(BUILT_FROM)
	$(BIN)/pip install --quiet --editable .
	@touch $@

.venv/installed-dev: .venv/bin/python $(BUILT_FROM)
	$(BIN)/pip install --quiet --editable ".[dev]"
	@touch $@ .venv/installed
