# Everything happens in .venv under this checkout; nothing here needs root.

.DELETE_ON_ERROR:
.PHONY: help run test coverage check compile docs mutants soak fuzz siege bench venv clean

BIN := .venv/bin
# What the program needs, and beside it what its tests need.
STAMP := .venv/.installed
TOOLS := .venv/.installed-tools

# The first of these that runs and is new enough; override with `make PYTHON=/path/to/python3.12 …`.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; done)
# Passed to pytest: make test PYTEST_ARGS='-x -k claim'. Without it all tests run, but those that look the same on every
# broker on one kind of it only; PYTEST_ARGS=tests runs each on every kind.
PYTEST_ARGS ?=

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*  ## /  make \1\t/p' Makefile | expand -t 16

run: $(STAMP)  ## set up, then process the files dropped into ./data
	@mkdir -p data
	@$(BIN)/fileq all ./data

# More processes than cores: the integration tests mostly wait. `make test PYTEST_ARGS='-n 0'` uses none.
TEST_PROCESSES ?= 4
TEST_PYTHON = $(BIN)/python -X dev -W error
# Development mode without its debug hooks in the memory allocator, which make every test slower.
test coverage compile: export PYTHONMALLOC = default
# The bytecode is written also where the environment forbids it. Otherwise every test process would compile all tests
# again, and each of the thousands of programs that tests start would compile fileq.
test coverage compile: export PYTHONDONTWRITEBYTECODE =
COMPILE = $(BIN)/python -m compileall -q fileq tests/support
PYTEST = $(TEST_PYTHON) -m pytest --dist loadscope --no-loadscope-reorder --tx '$(TEST_PROCESSES)*popen//python=$(TEST_PYTHON)'

test: $(TOOLS)  ## all tests, warnings as errors
	@$(COMPILE)
	$(PYTEST) $(or $(strip $(PYTEST_ARGS)),--one-kind)

# Not in CI: measuring makes the tests a third slower.
coverage: $(TOOLS)  ## all tests, and which lines they run
	@rm -f .coverage .coverage.*
	@$(COMPILE)
	$(PYTEST) --measure-coverage --one-kind
	@$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

# For CI, beside `make check`, which uses one core. The test processes of `make test` then find all tests compiled.
compile: $(TOOLS)
	@$(COMPILE)
	@$(TEST_PYTHON) -m pytest -n 0 --collect-only --quiet --quiet >/dev/null

check: $(TOOLS)  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(TOOLS)  ## write what is generated: commands, API, settings, events, metrics, guarantees
	$(BIN)/python -c 'from fileq.config.show import example_yaml; print(example_yaml(), end="")' > config.example.yaml
	$(BIN)/python -m tests.support.reference_tables docs/cli.md docs/openapi.json docs/api.md docs/events.md docs/metrics.md docs/settings.md
	$(BIN)/python -m tests.mutants --table

# Minutes; not in CI. `make mutants MUTANTS=reaper` tries those whose guarantee, file or test contains the word;
# `make mutants MUTANTS=--continue` leaves out what the last run, which was interrupted, has killed.
MUTANTS ?=
mutants: $(TOOLS)  ## break each guard of docs/guarantees.md once: its test must notice
	$(BIN)/python -m tests.mutants $(MUTANTS)

# Not in CI. SOAK_MINUTES=30 for half an hour; CHAOS_SEED=… for the faults of an earlier run; SOAK=network for one of three.
soak: $(TOOLS)  ## random faults for minutes: in the end nothing is lost and nothing ended twice
	$(BIN)/python -m tests.soak

# Not in CI, which sends a few hundred requests. FUZZ_MINUTES=30 for half an hour.
fuzz: $(TOOLS)  ## requests made from docs/openapi.json for minutes: no answer is a 500
	$(BIN)/python -m tests.fuzz

# Not in CI, which does it for seconds. SIEGE_MINUTES=1 for a minute; SIEGE=Redis for one of two.
siege: $(TOOLS)  ## one client does its worst for minutes: probes are answered within a second and jobs go on
	$(BIN)/python -m tests.siege

# Half an hour; not in CI. BENCH='drain "fileq thread" huey' chooses measures and systems, BENCH=--quick tries all of them
# in small sizes, BENCH=--list lists them, BENCH=--continue resumes an interrupted run. docs/benchmarks.md explains it.
BENCH ?=
bench: $(TOOLS)  ## fileq beside other queues on a private server: a table with ratios
	$(BIN)/python -m benchmarks $(BENCH)

venv: $(TOOLS)  ## only the set-up, with the tools of the tests

clean:  ## remove the virtual environment, caches and reports
	rm -rf .venv build dist ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
	find fileq tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --no-build-isolation: so that constraints.txt pins what builds the package too.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "fileq needs Python 3.11 or later; found $$(python3 --version 2>&1)." \
		"Install one or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) can't make virtual environments;" \
		"on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(INSTALL) -e .
	@touch $(STAMP)

$(TOOLS): $(STAMP)
	$(INSTALL) -e '.[test]'
	@touch $(TOOLS)
