# pulptrain: `make demo` and `make test` install everything they need into .venv; nothing else is touched.
#
# Tiers of tests, from seconds to half an hour (CONTRIBUTING.md says what each holds):
#   make smoke    one of everything, under 30 s: while you work
#   make test     lint, types and every test that is not slow, under 10 minutes on two cores: before every commit
#   make sweep    slow tests, and the rows of long parametrisations of which `make test` runs a tenth
#   make alarm    defects put into prices and runs on purpose: what validation and the number check say
#   make fuzz     changed inputs of every kind: an error in one line, or a result
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Source is compiled, and what shipped files say is read, once and not by every process of the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo smoke test sweep alarm fuzz bench bench-against validation docs clean

demo: $(VENV)/.demo
	$(BIN)/pulptrain run digits-cnn --iterations 3000 --seed 0 --out out/digits-cnn
	$(BIN)/pulptrain run tutorial-cnn --out out/tutorial-cnn

test: $(VENV)/.test
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/licence_lines.py --check
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Of the files that have such tests only: collecting all of them takes longer than the tests.
smoke: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal -m smoke --durations=5 $$(grep -rlw smoke tests --include="test_*.py")

sweep: $(VENV)/.test
	PULPTRAIN_SWEEP=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or sweep" --durations=10

alarm: $(VENV)/.test
	$(BIN)/python -m tools.timing_defects
	PYTHONPATH=tests $(BIN)/python -m alarm

bench: $(VENV)/.test
	$(BIN)/python -m pytest benchmarks -m bench -o addopts="-q" --benchmark-columns=median,iqr,rounds --benchmark-sort=name

# User CPU, memory and cycles of commands beside a former version's: make bench-against REV=a1b2c3d
bench-against: $(VENV)/.test
	$(BIN)/python -m tools.speed.against $(or $(REV),$(error REV=<a revision of git> is missing))

# Mutated inputs of every kind; goes on where it stopped. What fails is minimised below out/fuzz/$(SEED).
SEED  ?= 0
COUNT ?= 20000
fuzz: $(VENV)/.test
	$(BIN)/python -W ignore -m tools.fuzz --seed $(SEED) --count $(COUNT)

# docs/validation.md, its pictures, and the figures the tests compare with.
validation: $(VENV)/.demo
	$(BIN)/python -m tools.validation.page
	$(BIN)/python tools/update_validation_figures.py
	$(BIN)/python -m tools.validation.error_rows
	$(BIN)/python -m tools.validation.error_classes

# The site, into out/site: open out/site/index.html. Any warning is an error.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs out/site

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Two stamps, so that the demo does not wait for torch and the test tools.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e .
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e ".[docs]"
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e ".[test,torch]"
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
