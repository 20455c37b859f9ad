# Everything that a person or CI runs. `make` alone lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

BIN := .venv/bin
TOOLS := build/tools
UV_VERSION := 0.13.8
ifndef UV
UV := $(shell command -v uv || echo $(TOOLS)/bin/uv)
endif
STAMP := .venv/.tidegate-setup
RUN_TESTS := $(BIN)/python tests/run.py
# An option of COSIGN_OPTIONS begins with a hyphen: hence the equals sign.
SIGNING = $(if $(COSIGN_KEY),--cosign-key "$(COSIGN_KEY)") $(if $(COSIGN_OPTIONS),--cosign-options="$(COSIGN_OPTIONS)")
LINTERS := mypy pyright ruff lint-imports vocabulary
# pip runs through uv where the environment has none, and finds uv here.
export PATH := $(PATH):$(CURDIR)/$(TOOLS)/bin
# What mypy knows of a file is told by the file's hash, so that another checkout need not find it out again.
export MYPY_CACHE_DIR ?= $(or $(TIDEGATE_HOME),$(HOME)/.cache/tidegate)/mypy
# Tests start hundreds of Python processes: each would compile what it imports, for two seconds, where this is set.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help:  ## List the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP)  ## Install what is missing and the Python environment in .venv

$(STAMP): pyproject.toml uv.lock | $(UV)
	@.ci/prepare
	@echo "installing the Python environment into .venv (uv $(UV))"
	@UV_PROJECT_ENVIRONMENT=.venv $(UV) sync --frozen --all-extras
	@touch $@

# A uv of our own, for machines that have none.
$(TOOLS)/bin/uv:
	@.ci/prepare
	@echo "installing uv $(UV_VERSION) into $(TOOLS)"
	@python3 -m venv $(TOOLS)
	@$(TOOLS)/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# Where uv comes from PATH (or the caller's UV=…) there is nothing to build.
ifneq ($(UV),$(TOOLS)/bin/uv)
$(UV): ;
endif

.PHONY: demo
demo: setup  ## Cluster, chart, model, predictions, a version swap under load; leaves the cluster running
	@$(BIN)/python -m tidegate_localcluster.demo up $(DEMO_ARGUMENTS)

.PHONY: charts
charts: setup  ## Package the charts for a registry and push them: make charts REGISTRY=registry.example.com/tidegate [TAG=...] [KEY=... KEYRING=...] [COSIGN_KEY=...]
	@test -n "$(REGISTRY)" || { echo "name a registry that your cluster can pull from: make charts REGISTRY=registry.example.com/tidegate" >&2; exit 2; }
	@$(BIN)/python -m tidegate_localcluster.publish_charts $(REGISTRY) $(if $(TAG),--tag $(TAG)) $(if $(KEY),--sign "$(KEY)") $(if $(KEYRING),--keyring $(KEYRING)) $(SIGNING)

.PHONY: images
images: setup  ## Build all images and push them: make images REGISTRY=registry.example.com/tidegate [TAG=...] [KIND=cluster] [COSIGN_KEY=...]
	@test -n "$(REGISTRY)" || { echo "name a registry that your cluster can pull from: make images REGISTRY=registry.example.com/tidegate" >&2; exit 2; }
	@$(BIN)/python -m tidegate_localcluster.publish_images $(REGISTRY) $(if $(TAG),--tag $(TAG)) $(if $(KIND),--kind $(KIND)) $(SIGNING)

.PHONY: plugin
plugin: setup  ## Make one file of the command, build/plugin/tidegate.pyz; with URL=https://... also a krew manifest
	@$(BIN)/python -m tidegate_localcluster.publish_plugin $(URL)

.PHONY: demo-down
demo-down: setup  ## End what `make demo` started
	@$(BIN)/python -m tidegate_localcluster.demo down $(DEMO_ARGUMENTS)

.PHONY: demo-kind
demo-kind: setup  ## The same demo on a kind cluster that it creates; needs Docker and kind
	@$(BIN)/python -m tidegate_localcluster.demo up --on-kind $(DEMO_ARGUMENTS)

.PHONY: demo-kind-down
demo-kind-down: setup  ## Delete the cluster of `make demo-kind`
	@$(BIN)/python -m tidegate_localcluster.demo down --on-kind

.PHONY: demo-fleet
demo-fleet: setup  ## 500 simulated GPU nodes, 1,000 Inferences, a day's load at 200x; no root; leaves it running
	@$(BIN)/python -m tidegate_localcluster.fleet_demo up $(DEMO_ARGUMENTS)

.PHONY: demo-fleet-down
demo-fleet-down: setup  ## End what `make demo-fleet` started
	@$(BIN)/python -m tidegate_localcluster.fleet_demo down $(DEMO_ARGUMENTS)

.PHONY: test
test: setup supplies  ## All tests but most of the slow ones; those that need root or a cluster say so loudly when they cannot run
	@$(RUN_TESTS) $(PYTEST_ARGUMENTS)

.PHONY: test-all
test-all: setup  ## All tests, the slow ones too; writes the result to tests/last-full-run.json, to be committed
	@$(BIN)/python tests/supplies.py --all
	@$(RUN_TESTS) --all $(PYTEST_ARGUMENTS)

.PHONY: supplies
supplies: setup  ## Get or build the programs and images that tests start (minutes, once)
	@$(BIN)/python tests/supplies.py

.PHONY: test-fast
test-fast: setup  ## Tests that need neither a cluster nor a Triton, nor anything that has to be built
	@$(RUN_TESTS) --stage fast $(PYTEST_ARGUMENTS)

.PHONY: e2e
e2e: setup supplies  ## Tests on the whole local cluster (root)
	@$(RUN_TESTS) --stage cluster --stage alone $(PYTEST_ARGUMENTS)

.PHONY: defects
defects: setup  ## Plant defects in a copy of the checkout, one at a time, and fail unless tests see each
	@$(BIN)/python tests/planted_defects.py $(DEFECTS)

.PHONY: lint
lint: setup  ## Style, types and layers
	@$(MAKE) --jobs=2 --output-sync=target $(LINTERS)

.PHONY: $(LINTERS)
ruff:
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
mypy pyright lint-imports:
	@$(BIN)/$@
vocabulary:
	@$(BIN)/python .ci/vocabulary.py

.PHONY: generate
generate: setup  ## Rewrite what is derived from code: CRDs, the chart's copies, roles, Envoy's bootstrap, dashboards, reference pages
	@$(BIN)/python -m tidegate.generate
	@$(BIN)/python -m tidegate_localcluster.image_locks

.PHONY: docs
docs: setup  ## Make a site of docs/ in build/docs; any warning fails
	@$(BIN)/sphinx-build -W --keep-going -n -q -d build/docs-trees docs build/docs
	@echo "open build/docs/README.html"

.PHONY: verify
verify: generate  ## Fail when something generated, the lock or an installed version is out of date
	@git diff --exit-code -- crds charts gitops images docs || { echo "generated files differ: commit what 'make generate' wrote" >&2; exit 1; }
	@test -z "$$(git ls-files --others --exclude-standard -- crds charts gitops images docs/reference)" || { echo "generated files are not committed: see git status" >&2; exit 1; }
	@$(BIN)/python tests/run.py --check-age
	@$(UV) lock --check
	@$(UV) pip check

.PHONY: sbom
sbom: setup  ## Write what each image is made of to build/sbom, in CycloneDX; builds the images where it must
	@$(BIN)/python -m tidegate_localcluster.sbom

.PHONY: screenshots
screenshots: setup  ## Take the pictures of the dashboard for docs/, light and dark
	@$(BIN)/python tests/screenshots.py

.PHONY: bench
bench: setup  ## Print the figures of bench/, one file each
	@shopt -s nullglob; for file in bench/*.py; do echo "== $$file"; $(BIN)/python "$$file"; done

.PHONY: clean
clean:  ## Remove caches and the environment; the cache folder of Tidegate stays
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
