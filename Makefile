# Every target makes its own .venv the first time; PYTHON chooses the interpreter (3.11 to 3.14).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(shell cat requirements-dev.lock pyproject.toml | cksum | cut -d" " -f1)
# Only the libraries that the agent runs with.
RUNTIME := build/runtime/.installed-$(shell cksum < requirements.lock | cut -d" " -f1)

# What plays the tests: .ci/run plays the few that have failed once more, with PYTEST=tests.retry_failed.
PYTEST := pytest

# The tests start hundreds of processes; each would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-scheduler picture test test-stability fuzz mutants lint docs docs-version types chart manifests random-plans random-cluster claim-kills simulate small-worlds e2e e2e-long image sbom bench density soak gpu-check mps-check limits-check inspect-onefile release-files generate lock clean

help:  ## show the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

# The pinned libraries are for these versions: pip would say so a minute later, in words about one of them.
SUPPORTED := import sys; v = sys.version_info; (3, 11) <= v[:2] <= (3, 14) or \
  sys.exit("Python 3.11, 3.12, 3.13 or 3.14 is needed, and $(PYTHON) is %d.%d: add PYTHON=python3.12, for example" % v[:2])

$(STAMP):
	@$(PYTHON) -c '$(SUPPORTED)'
	@echo "Making a virtual environment in $(VENV), once (about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@echo "  installing the tools and libraries of requirements-dev.lock"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@echo "  installing gpuagent itself"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)  ## walk through the agent on a simulated 8-GPU box (ONCE=1: end by itself; LONG=1: everything; PORT=9446)
	$(BIN)/python -m demo $(if $(ONCE),--once) $(if $(LONG),--long) $(if $(PORT),--port $(PORT))

demo-scheduler: $(STAMP)  ## walk through the scheduler on twenty simulated nodes (ONCE=1: without pauses)
	$(BIN)/python -m demo.scheduler $(if $(ONCE),--once)

picture: $(STAMP)  ## the screenshots in docs/img, from the page of simulated nodes (needs Chromium)
	$(BIN)/python -m demo.picture

test: $(STAMP)  ## every test that needs no cluster
	@echo "Running the tests in six processes (about four minutes on two quiet cores)"
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m $(PYTEST) -q -n 6 --dist worksteal

test-stability: $(STAMP)  ## make test 20 times, the second half beside a build of Kubernetes (RUNS=4, BESIDE='a load', ARGS=--help)
	$(BIN)/python -m bench.stability $(if $(RUNS),--runs $(RUNS)) $(if $(BESIDE),--beside '$(BESIDE)') $(ARGS)

fuzz: $(STAMP)  ## readers of schedulers' annotations, 100,000 inputs each, and 2,000 lives of a random cluster for gpuscheduler
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -q -n auto --dist worksteal --timeout 0 --durations 0 --durations-min 5 \
	  tests/unit/domain/pods/test_annotations.py tests/unit/domain/scheduling/test_decision.py tests/unit/domain/deviceplugin/test_job.py \
	  tests/unit/domain/pods/test_pod.py tests/unit/domain/pods/test_quantity.py tests/unit/domain/pods/test_exchange.py tests/unit/domain/pods/test_written_and_read.py \
	  tests/unit/inspectcgpu/test_written.py tests/unit/gpuscheduler/core/test_random_cluster.py

mutants: $(STAMP)  ## faults in deciding code that no test finds (MINUTES=60, ONLY="gpuscheduler.core.jobs*"); goes on where it was
	ln -sfn scheduler src
	HYPOTHESIS_PROFILE=mutants timeout $(or $(MINUTES),60)m $(BIN)/mutmut run $(ONLY) || test $$? = 124
	$(BIN)/mutmut results

lint: $(STAMP)  ## formatting, lint, import contracts, the Dockerfile, the spelling of documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/flake8 gpuagent installer kubectl scheduler/gpuscheduler
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile
	$(BIN)/codespell --dictionary=- --dictionary=docsite/words.txt

docs: $(STAMP)  ## the documentation site in build/site; fails on a link that leads nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-version: $(STAMP)  ## the site as a version of its own, such as 0.1, committed to the branch gh-pages (ARGS=--push)
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 mike deploy $(ARGS) --update-aliases \
	  "$$($(BIN)/python -c 'import gpuagent; print(gpuagent.__version__.rpartition(".")[0])')" latest
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 mike set-default $(ARGS) latest

types: $(STAMP)  ## strict typing
	$(BIN)/mypy gpuagent installer kubectl scheduler standin demo bench image manifests docsite release simworld tests/chart tests/e2e

chart: $(STAMP)  ## the chart, rendered and held against the schemas of Kubernetes 1.18 to 1.37 (needs Go, which builds Helm)
	$(BIN)/python tests/e2e/build.py helm
	test -d build/schemas-1.18 || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --require-hashes --target build/schemas-1.18 -r tests/chart/requirements-1.18.txt
	$(BIN)/python -m pytest -q tests/chart -m chart -n 4

manifests: $(STAMP)  ## the chart's schema of settings, and plain YAML from the chart (needs Go)
	$(BIN)/python -m manifests.render "$$($(BIN)/python tests/e2e/build.py helm | tail -1)"

# Processes that share the end-to-end tests out by file. Each has a cluster, and for it a machine of its own.
WORKERS ?= 2
APART := $(CURDIR)/$(BIN)/python $(CURDIR)/tests/e2e/apart.py $(CURDIR)/$(BIN)/python
e2e: $(STAMP) inspect-onefile  ## the agent on a real kubelet, the scheduler on a real control plane (builds it the first time: about 20 minutes)
	$(BIN)/python tests/e2e/build.py
	$(BIN)/python -m $(PYTEST) -v tests/e2e -m e2e --timeout 600 --dist loadfile --tx "$(WORKERS)*popen//python=$(APART)" --durations 30

e2e-long: $(STAMP) inspect-onefile  ## make e2e with hundreds of kills and pods, everything on both kubelets, for a night (SEED=2)
	$(BIN)/python tests/e2e/build.py
	E2E_LONG=1 E2E_SEED=$(or $(SEED),$(shell date +%Y%m%d)) $(APART) -m pytest -v -s tests/e2e -m e2e --timeout 7200 -p no:xdist --durations 30

image:  ## the container image, with Docker or buildah (IMAGE=name:tag, ARGS: see python -m image --help)
	$(PYTHON) -m image $(if $(IMAGE),--tag $(IMAGE)) --revision "$$(git rev-parse HEAD 2>/dev/null)" $(ARGS)

release-files: $(STAMP)  ## wheel, chart, kubectl plugin and krew manifest in build/release (ARGS: see python -m release --help; needs Go)
	$(BIN)/python -m release --helm "$$($(BIN)/python tests/e2e/build.py helm | tail -1)" $(ARGS)

sbom: $(STAMP)  ## image/sbom.cdx.json, the bill of materials, from requirements-scheduler.lock
	$(BIN)/python -m image.sbom

$(RUNTIME):
	$(PYTHON) -m venv build/runtime
	build/runtime/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	touch $@

bench: $(STAMP) $(RUNTIME)  ## measure, as a table and build/bench.json (ARGS: see python -m bench --help)
	AGENT_PYTHON=$(CURDIR)/build/runtime/bin/python $(BIN)/python -m bench $(ARGS)

density: $(STAMP)  ## how much there is to read in the code, and how much of it at once
	$(BIN)/python -m bench.density

MINUTES ?= 30
soak: $(STAMP) $(RUNTIME)  ## hostile pods, broken watches, restarts of kubelet: does anything grow? (MINUTES=30)
	AGENT_PYTHON=$(CURDIR)/build/runtime/bin/python $(BIN)/python -m bench.soak --minutes $(MINUTES)

gpu-check: $(STAMP)  ## inventory, links, health watch and one round with the stand-in kubelet on the real driver
	$(BIN)/python -m bench.gpu_check

mps-check: $(STAMP)  ## MPS's limits, its death and its cost on the real driver
	$(BIN)/python -m bench.mps_check

limits-check: $(STAMP)  ## memory limits of the real driver (615 or later), as root (ARGS=--change-persistence, or --help)
	$(BIN)/python -m bench.limits_check $(ARGS)

inspect-onefile: $(STAMP)  ## build/kubectl-inspect-cgpu: the kubectl plugin as one file, every library inside
	$(BIN)/python kubectl/onefile.py build/kubectl-inspect-cgpu
	cp kubectl/kubectl_complete-inspect-cgpu build/

random-plans: $(STAMP)  ## plans of 2,000 random jobs of each kind that fit, against an exact solver
	RANDOM_JOBS=2000 $(BIN)/python -m pytest -q -p no:xdist tests/unit/gpuscheduler/core/test_random_plans.py

random-cluster: $(STAMP)  ## 200,000 steps of random clusters for gpuscheduler, counted (STEPS=50000, SEED=7)
	$(BIN)/python -m tests.unit.gpuscheduler.core.long_random_cluster $(if $(STEPS),--steps $(STEPS)) $(if $(SEED),--seed $(SEED))

simulate: $(STAMP)  ## a whole cluster in one process, in virtual time, with faults, from new seeds (MINUTES=10, or SEEDS=100; SEED=7: one, told; KEEP=name: as a test)
	$(BIN)/python -m simworld $(if $(SEED),--seed $(SEED),$(if $(SEEDS),--seeds $(SEEDS),--minutes $(MINUTES))) $(if $(KEEP),--keep $(KEEP)) $(ARGS)

small-worlds: $(STAMP)  ## every order of events of a small cluster to a depth, states counted (DEPTH=10; ARGS="--begins running")
	$(BIN)/python -m simworld.small --depth $(or $(DEPTH),9) $(ARGS)

claim-kills: $(STAMP)  ## 1,000 kills of the agent at random moments in mode dra: nothing lost, given twice, or waited for (KILLS=100, SEED=7)
	$(BIN)/python -m tests.contract.claim_kills $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))

generate: $(STAMP)  ## regenerate gpuagent/_pb from proto/, docs/reference/, docs/problems.md, the chart's README
	PATH="$(CURDIR)/$(BIN):$$PATH" proto/generate.sh .
	$(BIN)/python -m docsite
	$(BIN)/python -m tests.contract.contract_page docs/reference/contract.md

LOCK := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $(if $(UPGRADE),--upgrade)
lock: $(STAMP)  ## resolve the dependencies again (needs uv; UPGRADE=1: to the newest that pyproject.toml allows)
	$(LOCK) --extra scheduler --group dev -o requirements-dev.lock pyproject.toml
	$(LOCK) -c requirements-dev.lock -o requirements.lock pyproject.toml
	$(LOCK) -c requirements-dev.lock --extra scheduler -o requirements-scheduler.lock pyproject.toml
	$(LOCK) -c requirements-dev.lock --group build -o requirements-build.lock

clean:  ## remove what the targets made in the tree
	rm -rf $(VENV) build mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis
