# Everything happens in .venv under this checkout; nothing here needs root.

.DELETE_ON_ERROR:
.PHONY: help run test check docs venv clean

BIN := .venv/bin
STAMP := .venv/.installed

# The first of these that runs and is new enough; override with `make PYTHON=/path/to/python3.12 …`.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; done)
# Given to pytest as they are: make test PYTEST_ARGS='-x -k claim'
PYTEST_ARGS ?=

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*  ## /  make \1\t/p' Makefile | expand -t 16

run: $(STAMP)  ## set up, then process the files dropped into ./data
	@mkdir -p data
	@$(BIN)/fileq all ./data

# Three runs side by side: the integration tests mostly wait, the others mostly compute.
TESTS = $(BIN)/python -X dev -W error -m coverage run -m pytest
test: $(STAMP)  ## all tests with coverage, warnings as errors
	@rm -f .coverage .coverage.*
ifeq ($(strip $(PYTEST_ARGS)),)
	@logs=$$(mktemp -d); trap 'rm -rf "$$logs"' EXIT; \
	$(TESTS) tests/unit tests/conformance tests/chaos tests/integration/test_r*.py >"$$logs/computing" 2>&1 & computing=$$!; \
	$(TESTS) tests/integration/test_[a-ost]*.py >"$$logs/waiting" 2>&1 & waiting=$$!; \
	$(TESTS) tests/integration/test_[pqu-z]*.py; failed=$$?; \
	wait $$waiting || failed=1; cat "$$logs/waiting"; \
	wait $$computing || failed=1; cat "$$logs/computing"; \
	exit $$failed
else
	$(TESTS) $(PYTEST_ARGS)
endif
	@$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

check: $(STAMP)  ## lint and types
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(STAMP)  ## write docs/cli.md and the tables of docs/events.md and docs/metrics.md
	$(BIN)/python -m fileq.cli.reference > docs/cli.md
	$(BIN)/python -m fileq.observe.reference_tables docs/events.md docs/metrics.md

venv: $(STAMP)  ## only the set-up

clean:  ## remove the virtual environment, caches and reports
	rm -rf .venv build dist ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
	find fileq tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --no-build-isolation: so that constraints.txt pins what builds the package too.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "fileq needs Python 3.11 or later; found $$(python3 --version 2>&1)." \
		"Install one or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) can't make virtual environments;" \
		"on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[test]'
	@touch $(STAMP)
