# pulptrain: `make demo` and `make test` install everything they need into .venv; nothing else is touched.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test bench fuzz validation clean

demo: $(VENV)/.demo
	$(BIN)/pulptrain run digits-cnn --iterations 3000 --seed 0 --out out/digits-cnn
	$(BIN)/pulptrain run tutorial-cnn --out out/tutorial-cnn

test: $(VENV)/.test
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal

bench: $(VENV)/.test
	$(BIN)/python -m pytest benchmarks -m bench -o addopts="-q" --benchmark-columns=median,iqr,rounds --benchmark-sort=name

# Mutated inputs of every kind; goes on where it stopped. What fails is minimised below out/fuzz/$(SEED).
SEED  ?= 0
COUNT ?= 20000
fuzz: $(VENV)/.test
	$(BIN)/python -W ignore -m tools.fuzz --seed $(SEED) --count $(COUNT)

# docs/validation.md, its pictures, and the figures the tests compare with.
validation: $(VENV)/.demo
	$(BIN)/python -m scheduler.validation.page
	$(BIN)/python tools/update_validation_figures.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Two stamps, so that the demo does not wait for torch and the test tools.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e ".[test,torch]"
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
