# Everything is installed into .venv and .envs, from hashed locks under envs/.
PYTHON ?= python3
CAMPAIGN ?= smollm2-cpu

VENV := .venv
PYTHON_CODE := workflow tests benchmarks
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes
HARNESSES := llama-benchy-0.4.0 tool-eval-bench-3.0.0 tool-eval-bench-2.8.0
SNAKEMAKE := $(VENV)/bin/snakemake --config campaigns=$(CAMPAIGN)
PLAN := $(VENV)/bin/python -m campaign.plan $(CAMPAIGN)

.PHONY: campaign plan retry again stop setup setup-dev test benchmark-probe check format schemas clean

campaign: ## measure CAMPAIGN and write reports/CAMPAIGN.md
	@$(MAKE) --no-print-directory -j2 setup
	@stale=$$($(PLAN) --targets stale) || exit $$?; \
	$(SNAKEMAKE) $${stale:+--forcerun $$stale}
	@$(PLAN) | head -n 1

plan: setup ## what is measured, failed, stale and missing, and what a run would cost
	@$(PLAN)

retry: setup ## measure every failed or not_run cell of CAMPAIGN again
	@cells=$$($(PLAN) --targets retry) || exit $$?; \
	if [ -z "$$cells" ]; then echo "nothing to retry in $(CAMPAIGN)"; else $(SNAKEMAKE) --forcerun $$cells; fi
	@$(PLAN) | head -n 1

again: setup ## measure one cell of CAMPAIGN again (CELL=results/…/POINT.json)
	$(if $(CELL),,$(error name the cell: make again CAMPAIGN=$(CAMPAIGN) CELL=results/…/POINT.json))
	$(SNAKEMAKE) --forcerun $(CELL)

stop: ## stop an engine that keep_engine left up (VENUE=local)
	@$(VENV)/bin/python -m campaign.engine stop $(or $(VENUE),local)

test: ## every test, on the real engine and on the fake one
	@$(MAKE) --no-print-directory -j2 setup setup-dev
	$(VENV)/bin/python -m pytest -m "(workflow or harness) and not engine" --numprocesses 3 --dist loadgroup
	@# What is exact in time runs alone.
	$(VENV)/bin/python -m pytest -m "engine or not (workflow or harness)"

benchmark-probe: $(VENV)/.ready .envs/llama-benchy-0.4.0/.ready .envs/aiperf-0.13.0/.ready ## our probe and its peers against a known truth (docs/benchmark-probe.md)
	PYTHONPATH=tests:benchmarks $(VENV)/bin/python -m probe

check: setup-dev ## format, lint and types
	$(VENV)/bin/ruff format --check $(PYTHON_CODE)
	$(VENV)/bin/ruff check $(PYTHON_CODE)
	$(VENV)/bin/mypy
	$(VENV)/bin/snakefmt --check Snakefile workflow/rules
	@# Snakemake wants a conda environment in each rule; ours are pinned under envs/ instead.
	@$(VENV)/bin/python tests/lint_workflow.py

format: setup-dev
	$(VENV)/bin/ruff format $(PYTHON_CODE)
	$(VENV)/bin/ruff check --fix $(PYTHON_CODE)
	$(VENV)/bin/snakefmt Snakefile workflow/rules

schemas: setup ## write workflow/schemas and config/README.md from the models
	$(VENV)/bin/python -m campaign.reference

setup: $(VENV)/.ready $(HARNESSES:%=.envs/%/.ready)
setup-dev: $(VENV)/.ready-dev

$(VENV)/.ready: envs/campaign.lock envs/model.lock
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; name one with PYTHON=…" if sys.version_info < (3, 11) else 0)'
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python $(PIP_INSTALL) -r envs/campaign.lock -r envs/model.lock
	@$(VENV)/bin/python -c 'import site, pathlib; pathlib.Path(site.getsitepackages()[0], "campaign.pth").write_text(str(pathlib.Path("workflow").resolve()))'
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready envs/dev.lock
	@echo "setting up the tools of tests and checks"
	@$(VENV)/bin/python $(PIP_INSTALL) -r envs/dev.lock
	@touch $@

.envs/%/.ready: envs/%.lock
	@echo "setting up $*"
	@$(PYTHON) -m venv .envs/$*
	@.envs/$*/bin/python $(PIP_INSTALL) -r $<
	@touch $@

clean: ## remove what setup made; results and reports stay
	rm -rf $(VENV) .envs
