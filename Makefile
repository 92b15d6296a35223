# For Debian and Ubuntu, without a GPU: GNU make and python3 are enough, the rest is installed or asked for.
#
#   make selftest                 a transfer over loopback on SGLang 0.5.11: hotfix off, then on
#   make selftest SGLANG=0.5.16   the same on another release
#   make test                     every check and test
#   make lint                     only the checks
#   make matrix RELEASE=0.5.16    the tests that run on one SGLang release (without RELEASE: on each)
#   make bench                    what the hotfix costs, in ratios measured side by side
#   make soak MINUTES=30          a pair under mixed load with faults
#   make clean                    what these commands leave in this directory
#
# What SGLang needs (torch, Mooncake, each release) is installed once, outside of this directory, into
# SGLANG_DSV4_HOTFIX_CACHE (default ~/.cache/sglang_dsv4_hotfix): about 1.5 GB for the self-test, 6 GB for the tests.
# Which torch pip takes is up to its configuration: see the head of tests/releases/requirements.txt for a CPU build.

PYTHON ?= python3
SGLANG ?= 0.5.11
RELEASE ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
MINUTES ?= 5

VENV := .venv
# Two at a time: most tests wait for a process that imports SGLang, and CI has two cores.
PYTEST := $(VENV)/bin/python -m pytest -n 2 --dist loadgroup

.PHONY: selftest test lint matrix bench soak clean system

selftest: system
	@$(PYTHON) tests/environments.py $(SGLANG) --run -m sglang_dsv4_hotfix.cli selftest --hotfix both

test: lint
	$(VENV)/bin/python tests/environments.py --all
	$(PYTEST) $(PYTEST_ARGS)

lint: $(VENV)/complete
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy --strict

matrix: $(VENV)/complete
	$(PYTEST) $(wildcard tests/releases tests/pd) $(if $(RELEASE),--release $(RELEASE)) $(PYTEST_ARGS)

bench: system
	@$(PYTHON) -m benchmarks $(BENCH_ARGS)

soak: system
	@$(PYTHON) tests/environments.py $(SGLANG) --run -m benchmarks.soak $(MINUTES)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

system:
	@scripts/system_packages.sh $(PYTHON)

# The file is written last: an installation that was interrupted is not taken for a whole one.
$(VENV)/complete: tests/requirements.txt | system
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -r tests/requirements.txt
	touch $@
