# DSPARK_VENV=DIR  environment to make and use      PORT=N    port of `make serve`
# PYTHON=PATH      Python 3.11 or 3.12 to make it   ARGS=...  further arguments of serve, test, gpu
DSPARK_VENV ?= .venv
PORT ?= 30000
ARGS ?=

usable = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do $$p -c '$(usable)' 2>/dev/null && echo $$p && break; done)
BIN = $(DSPARK_VENV)/bin
GOLDEN = $(sort $(dir $(wildcard tests/golden/*/io.safetensors)))

# What makes ten minutes of a large service bearable for 135 million parameters on one core: every sixteenth request,
# shorter, three times as fast.
LOADTEST = --keep 0.06 --prompt-scale 0.15 --output-scale 0.15 --speed 3 --slo-ttft 5 --slo-tok-s 10

# One thread: on a busy machine more threads than free cores slow every small operation tenfold.
test loadtest soak cluster-demo golden demo-train gpu: export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup serve observe loadtest soak cluster-demo grafana manifests install-systemd test golden demo-train gpu fmt lint type imports check clean

help: ## list these targets
	@echo "usage: make <target> [PORT=30000] [ARGS=...] [DSPARK_VENV=.venv] [PYTHON=python3.11]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

setup: ## make the environment and install everything, unless it is up to date
	@test -n "$(PYTHON)" || { echo "setup: error: no Python 3.11 or 3.12 found; install one or set PYTHON=/path/to/python3.11." >&2; exit 1; }
	@$(PYTHON) tools/setup_env.py --venv "$(DSPARK_VENV)"

serve: setup ## make the demo target and serve it on 127.0.0.1:PORT; Ctrl-C ends it
	@$(BIN)/dspark prepare
	@exec $(BIN)/dspark serve --port $(PORT) $(ARGS)

loadtest: setup ## replay ten minutes of Azure's conversations on the demo pair, report in runs/loadtest
	@$(BIN)/dspark prepare
	$(BIN)/dspark loadtest replay --trace azure-conv $(LOADTEST) --out runs/loadtest $(ARGS)

observe: setup ## serve the demo with a Prometheus beside it and a page that draws; Ctrl-C ends all
	@$(BIN)/dspark prepare
	@PATH="$$(tools/get_prometheus.sh):$$PATH" exec $(BIN)/python tools/observe.py --port $(PORT) $(ARGS)

soak: setup ## serve mixed traffic with faults on for an hour (ARGS="--minutes N") and compare every greedy answer
	$(BIN)/python tools/soak.py $(ARGS)

cluster-demo: setup ## two replicas behind SGLang's gateway: kill one under load, drain the other; report in runs/cluster
	$(BIN)/python tools/cluster_demo.py $(ARGS)

grafana: setup ## make the dashboards and the tables of docs/observability.md from the metric definitions
	$(BIN)/python -m grafana.build
	$(BIN)/python tools/metric_tables.py

manifests: ## make deploy/k8s from the Helm chart
	@PATH="$$(tools/get_deploy_tools.sh):$$PATH" $(PYTHON) deploy/render.py

install-systemd: ## say what installing the service on this host would do; APPLY=1 does it (deploy/README.md)
	@deploy/systemd/install.sh

test: setup ## run the tests
	$(BIN)/python -m pytest $(ARGS)

golden: setup ## replay the reference vectors in tests/golden
	@test -n "$(GOLDEN)" || { echo "golden: error: no io.safetensors below tests/golden." >&2; exit 1; }
	@set -e; for folder in $(GOLDEN); do $(BIN)/dspark golden $$folder; done

demo-train: setup ## make a draft for the test fixture's target from nothing and evaluate it, in runs/demo
	$(BIN)/python tools/make_draft.py fixture --work runs/demo $(ARGS)

gpu: setup ## run the GPU tests; fails if none ran
	$(BIN)/python tools/gpu_tests.py $(ARGS)

fmt: setup ## format the code
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

lint: setup ## check style, formatting, file sizes, what the documentation names, and that generated files are fresh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/check_files.py
	$(BIN)/python tools/check_docs.py
	$(BIN)/python -m grafana.build --check
	$(BIN)/python tools/metric_tables.py --check

type: setup ## check types (strict in sgl_dspark)
	$(BIN)/mypy

imports: setup ## check which package may import which
	$(BIN)/lint-imports

check: lint type imports test ## everything that a change must pass

clean: ## remove caches and build products; the environment stays
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis ./*.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
