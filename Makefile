# One file to know: `make` alone explains itself.
SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
RLHF_HOME ?= var
BIN := .venv/bin
READY := .venv/.ready
export RLHF_HOME
# Tests start hundreds of processes: none of them compiles the sources anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed. Install Python 3.11, or name yours: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	echo "making .venv and installing (a few minutes the first time)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0 || { echo "torch 2.13.0 could not be installed; see 'A small torch' in docs/guides/troubleshooting.md"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0 --editable '.[dev]'
	touch $(READY)

.env: # a bare `dagster dev` finds the default home with it; definitions.py refuses it for another. Written once, yours from then on
	@printf 'DAGSTER_HOME=%s/dagster\nDO_NOT_TRACK=1\nMLFLOW_DISABLE_TELEMETRY=true\n' "$$(realpath -m var)" > .env

install: $(READY) .env ## make .venv with everything the project needs
	@if grep -qs '^RLHF_HOME=' .env; then
		echo ".env sets RLHF_HOME, which Dagster reads before your environment. Delete the file; make writes a new one without it."
	fi

demo: install ## run the whole loop for several simulated days; again = further days
	@$(BIN)/rlhf demo

CORES := $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n > 8 ? 8 : n)))
# Tests make hundreds of SQLite files, whose every transaction waits for a disk: that was half of their time. Where 8 GB of memory can hold them, they lie there.
TESTS_IN := $(or $(TMPDIR),$(shell cat /proc/mounts /proc/meminfo 2>/dev/null | awk '$$2 == "/dev/shm" && $$4 !~ /noexec/ {runs = 1} /^MemAvailable/ {free = $$2} END {exit !(runs && free > 12e6)}' && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 8e6 {print "/dev/shm"}'))
# Hundreds of processes import the same modules: without bytecode each would compile them again.
PYTEST := $(if $(TESTS_IN),TMPDIR=$(TESTS_IN)) PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q --dist loadgroup --durations=30 --durations-min=5 -o tmp_path_retention_policy=failed -o tmp_path_retention_count=1

test: install ## the fast tests and one run of the whole loop; no network, Postgres or browser needed
	@$(PYTEST) -n $(CORES)

test-rest: install ## all other tests: web, browser, daemons, kills, providers, trainings, Postgres
	@REQUIRE_POSTGRES=1 $(PYTEST) -n $$(($(CORES) + 2)) --rest --postgres tests # many of them wait for servers

acceptance: install ## what users rely on: commands, API and annotate page of whole projects
	@$(PYTEST) -n $(CORES) --ignore tests/acceptance/real tests/acceptance

acceptance-real: install ## the same on the real votes in ../shared/data: import, replay, left-out debates
	@$(PYTEST) -n $(CORES) tests/acceptance/real

test-all: test test-rest acceptance ## every test

faults: install ## plant each fault of tests/faults and expect the tests to notice; before and after large changes
	@$(if $(TESTS_IN),TMPDIR=$(TESTS_IN)) $(BIN)/python -m tests.faults

browser: install ## Chromium for the browser tests, from Debian where it is missing
	@$(BIN)/python -m tests.browser.chromium || (apt-get update && apt-get install -y chromium)

lint: install ## ruff and mypy
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test ## ruff, mypy and the fast tests

upgrades: install ## resolve the dependencies without constraints.txt and say what would move
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --report var/upgrades.json torch==2.13.0 '.[dev,docs]'
	$(BIN)/python - <<-'END'
	import json
	found = {p["metadata"]["name"].lower().replace("_", "-"): p["metadata"]["version"].partition("+")[0] for p in json.load(open("var/upgrades.json"))["install"]}
	locked = dict(line.strip().lower().split("==") for line in open("constraints.txt") if "==" in line)
	moved = {name: (locked.get(name, "new"), version) for name, version in sorted(found.items()) if name != "rlhf-pipeline" and version != locked.get(name)}
	print(*(f"{name} {old} -> {new}" for name, (old, new) in moved.items()), f"{len(moved)} of {len(found)} packages would move", sep="\n")
	END

dev: install ## the web app, Dagster's web server and daemon and MLflow's UI on loopback
	@$(BIN)/rlhf dev

graph: install ## draw docs/graph.svg from the real definitions
	@$(BIN)/python docs/draw_graph.py

docs: install ## build the site in var/site, with the reference from the code; make docs SERVE=1 shows it
	@$(BIN)/python -c "import mkdocs, mkdocstrings" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=true PYTHONPATH=. $(BIN)/python -m mkdocs $(if $(SERVE),serve,build --strict --quiet)

bench: install ## every benchmark, one table each
	@broken=0; for script in benchmarks/bench_*.py; do echo; echo "== $$script"; $(BIN)/python "$$script" || broken=1; done; exit $$broken

.PHONY: help install demo test test-rest acceptance acceptance-real test-all faults browser lint check upgrades dev graph docs bench
