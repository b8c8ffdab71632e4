# What people type here; `make` alone lists it.

PYTHON ?= python3
PIP_OPTIONS ?=
PYTEST_OPTIONS ?=
TEST_PROCESSES ?= 2
VENV = .venv
RUN = runs/quickstart

PIP = -m pip install --disable-pip-version-check $(PIP_OPTIONS)
PIP_INSTALL = $(VENV)/bin/python $(PIP)
CODE = ale_jax benchmarks configs envs notebooks tests
AS_ROOT = $$([ "$$(id -u)" = 0 ] || echo sudo)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install install-test install-cluster rock gem sandbox runtimes browser quickstart test lint format validate report clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

install: $(VENV)/installed  ## the package and what it needs, into .venv

install-test: $(VENV)/installed-test  ## the same, and what the tests need

install-cluster: $(VENV)/installed-cluster  ## the same, and what a node of a Ray cluster needs

rock: .venv-rock/installed  ## ROCK's client, in an environment of its own, for a test

gem: .venv-gem/installed  ## gem-llm's games, in an environment of their own (Python 3.12.0 at most, a C compiler)

sandbox:  ## at least one sandbox runtime: bubblewrap, unless the Docker image is there
	@command -v bwrap > /dev/null \
	    || docker image inspect ale-shell > /dev/null 2>&1 \
	    || { echo "install bubblewrap" \
	        && $(AS_ROOT) apt-get -q update \
	        && $(AS_ROOT) apt-get -q install --yes --no-install-recommends bubblewrap; } \
	    || { echo "there is no sandbox runtime; type as root: apt-get install bubblewrap" >&2; exit 1; }

runtimes:  ## both sandbox runtimes: bubblewrap, and Docker with the image of the worlds
	launch/runtimes.sh

browser:  ## Chromium, in which the tests look at the pages
	launch/browser.sh

quickstart: install sandbox  ## trains, evaluates and writes the report, into RUN=runs/quickstart
	$(VENV)/bin/python -m ale_jax.launch --config=configs/quickstart.py --workdir=$(RUN)

test: install-test rock  ## all tests; with root or sudo it first installs the runtimes and the browser
	launch/for_tests.sh $(VENV)/bin/python -m pytest --numprocesses=$(TEST_PROCESSES) $(PYTEST_OPTIONS)

lint: install-test  ## what must be clean before a change is merged
	$(VENV)/bin/ruff check $(CODE) setup.py
	$(VENV)/bin/ruff format --check $(CODE) setup.py

format: install-test  ## puts imports and spaces right
	$(VENV)/bin/ruff check --fix $(CODE) setup.py
	$(VENV)/bin/ruff format $(CODE) setup.py

validate: install sandbox  ## proves of each family that its tasks can be solved, and not by doing nothing
	$(VENV)/bin/python -m envs.shell.validate

report: install  ## rewrites the report of the run in RUN from its files
	$(VENV)/bin/python -m ale_jax.monitor.report $(RUN)

clean:  ## removes what can be made again: .venv and caches, never runs/
	rm -rf $(VENV) .venv-* build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null \
	    || { echo "Python 3.11 or newer with venv is missing; type as root: apt-get install python3-venv" \
	        "(or, where one has another name: make PYTHON=python3.12)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Editable, so only new requirements make a new installation.
$(VENV)/installed: setup.py | $(VENV)/bin/python
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/installed-test: setup.py | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[test]'
	@touch $(VENV)/installed $@

$(VENV)/installed-cluster: setup.py | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[cluster]'
	@touch $(VENV)/installed $@

# What wants other versions than we do, with nothing of ours.
.venv-rock/installed: packages = rl-rock==1.11.0
.venv-gem/installed: packages = gem-llm==0.1.0
.venv-rock/installed .venv-gem/installed: Makefile
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP) $(packages)
	@touch $@
