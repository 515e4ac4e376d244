# Every way to build, test and run cli-mcp-operator. `make help` lists the targets.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Two cores and one cluster: the steps of a target run in their order.
.NOTPARALLEL:

PROGRAMS := operator server agent proxy

# dev: the development cluster of this repository. current: the current kubectl context.
CLUSTER ?= dev
# Cargo profile of what goes into images: dev builds fast, release and prod run fast.
PROFILE ?= dev
# Tag of the images; empty: one made from the programs' content, so that a change is rolled out.
TAG ?=
# Where images are pushed to with CLUSTER=current, such as quay.io/me. The development cluster needs none.
IMAGE_REGISTRY ?=
# Namespace of `make run` and `make run-server`.
NAMESPACE ?= default

CARGO ?= cargo
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
export CARGO_BUILD_TARGET ?= $(HOST)
ifneq (,$(findstring linux-gnu,$(CARGO_BUILD_TARGET)))
# Static programs run in any image, whatever its libc.
export CARGO_TARGET_$(shell echo $(CARGO_BUILD_TARGET) | tr a-z- A-Z_)_RUSTFLAGS := -C target-feature=+crt-static
endif
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
DEV_BIN_DIR := $(TARGET_DIR)/$(CARGO_BUILD_TARGET)/debug
IMAGE_TAG = $(or $(TAG),$$(hack/images/tag $(BIN_DIR)))
BIN_DIR = $(TARGET_DIR)/$(CARGO_BUILD_TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))

ifeq ($(CLUSTER),current)
IMAGE_PREFIX = $(or $(IMAGE_REGISTRY),$(error CLUSTER=current needs IMAGE_REGISTRY, the registry that your cluster pulls from, such as quay.io/me))/cli-mcp-
# Prefix of a command that talks to the cluster.
IN_CLUSTER =
else
IMAGE_PREFIX = localhost/cli-mcp-
IN_CLUSTER = eval "$$(hack/devcluster/env)";
endif

##@ General

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*##"; printf "Usage: make \033[36m<target>\033[0m [CLUSTER=dev|current] [PROFILE=dev|release|prod]\n"} \
	  /^##@/ {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} \
	  /^[a-zA-Z_0-9-]+:.*##/ {printf "  \033[36m%-18s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: cluster-ready images ## Start a cluster, install the operator, hold a real MCP conversation
	@$(IN_CLUSTER) IMAGE_PREFIX=$(IMAGE_PREFIX) TAG=$(IMAGE_TAG) hack/deploy.sh
	@$(IN_CLUSTER) DEMO_PROGRAM=$(DEV_BIN_DIR)/demo hack/demo.sh

.PHONY: test
test: lint test-unit test-conformance $(if $(filter dev,$(CLUSTER)),test-cluster) test-e2e ## Run everything: lint, unit and component tests, then the tests on the cluster

##@ Development

.PHONY: build
build: ## Build the four programs
ifeq ($(PROFILE),dev)
# The whole workspace: the same features as `make test`, so that no dependency is built twice.
	$(CARGO) build --locked --workspace --all-targets
else
	$(CARGO) build --locked --profile $(PROFILE) $(foreach p,$(PROGRAMS),-p cli-mcp-$(p))
endif

.PHONY: build-operator build-server build-agent build-proxy
build-operator: ## Build the operator
build-server: ## Build the MCP server
build-agent: ## Build the sandbox agent
build-proxy: ## Build the credential proxy
build-operator build-server build-agent build-proxy: build-%:
	$(CARGO) build --locked --profile $(PROFILE) -p cli-mcp-$*

.PHONY: build-prod
build-prod: ## Build the programs as they are shipped: optimised, hardened, stripped
	$(MAKE) build PROFILE=prod

.PHONY: manifests
manifests: ## Generate the CRD from the Rust types into config/crd
	$(CARGO) run --locked --quiet -p cli-mcp-api --bin crdgen >config/crd/.generated.yaml
	mv config/crd/.generated.yaml config/crd/bases/cli-mcp.redhat.com_climcpinstances.yaml

.PHONY: fmt
fmt: ## Format the code
	$(CARGO) fmt --all

.PHONY: lint
lint: ## Check formatting, clippy with warnings as errors, scripts, and the dependency tree
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	hack/lint-scripts.sh
	$(MAKE) deny

.PHONY: deny
deny: ## Check licences, duplicate and banned dependencies
	hack/tools/cargo-deny check --hide-inclusion-graph bans licenses sources

.PHONY: deny-advisories
deny-advisories: ## Check the dependencies against the RustSec database (downloads it)
	hack/tools/cargo-deny check advisories

.PHONY: test-unit
test-unit: ## Run unit and component tests: real bash, real TLS, no cluster
	$(CARGO) test --locked --workspace --exclude cli-mcp-e2e --no-fail-fast

.PHONY: test-conformance
test-conformance: build ## Run the official MCP conformance suite against the server (needs npm)
	@if command -v npm >/dev/null; then test/conformance/run.sh $(BIN_DIR)/server; else echo "SKIPPED: npm is not installed, the MCP conformance suite did not run"; fi

.PHONY: test-cluster
test-cluster: dev-cluster images ## Prove that the development cluster enforces policies, and survives every kind of death
	cd hack/devcluster && CGO_ENABLED=0 go test -trimpath -vet=off ./internal/...
	TEST_IMAGE=$(IMAGE_PREFIX)agent:$(IMAGE_TAG) test/cluster/enforcement
	test/cluster/lifecycle

.PHONY: test-e2e
test-e2e: cluster-ready images ## Run the end-to-end tests on the cluster
	@$(IN_CLUSTER) IMAGE_PREFIX=$(IMAGE_PREFIX) TAG=$(IMAGE_TAG) hack/deploy.sh
	$(IN_CLUSTER) E2E_CLUSTER=$(CLUSTER) E2E_IMAGE_PREFIX=$(IMAGE_PREFIX) E2E_TAG=$(IMAGE_TAG) E2E_BIN_DIR=$(abspath $(BIN_DIR)) \
	  $(CARGO) test --locked --workspace --test on-cluster -- --test-threads=4

##@ Figures

.PHONY: bench bench-agent bench-proxy
bench: bench-agent bench-proxy ## Measure every part against a floor of the same run
bench-agent: ## Measure the agent: latency, throughput, memory, timeouts; a table and JSON
	$(CARGO) build --locked --profile prod -p cli-mcp-agent
	$(CARGO) run --locked --release -p cli-mcp-agent --example bench -- $(TARGET_DIR)/$(CARGO_BUILD_TARGET)/prod/agent
bench-proxy: ## Measure the proxy against direct TLS; a table and JSON
	$(CARGO) build --locked --profile prod -p cli-mcp-proxy
	$(CARGO) run --locked --release -p cli-mcp-proxy --example bench -- $(TARGET_DIR)/$(CARGO_BUILD_TARGET)/prod/proxy

##@ Run on this machine

.PHONY: run
run: build-operator ## Run the operator here against the current context, for instances in NAMESPACE
	WATCH_NAMESPACE=$(NAMESPACE) RELATED_IMAGE_SERVER=$(IMAGE_PREFIX)server:$(IMAGE_TAG) RELATED_IMAGE_PROXY=$(IMAGE_PREFIX)proxy:$(IMAGE_TAG) \
	  RELATED_IMAGE_SANDBOX=$(IMAGE_PREFIX)agent:$(IMAGE_TAG) $(BIN_DIR)/operator run

.PHONY: run-server
run-server: build-server ## Run the MCP server alone here, on loopback, with sandboxes in NAMESPACE
	SERVER=$(BIN_DIR)/server SANDBOX_IMAGE=$(IMAGE_PREFIX)agent:$(IMAGE_TAG) NAMESPACE=$(NAMESPACE) hack/run-server.sh

.PHONY: run-agent
run-agent: build-agent ## Run the sandbox agent here, on loopback
	AGENT=$(BIN_DIR)/agent hack/run-agent.sh

##@ Cluster

.PHONY: dev-cluster
dev-cluster: ## Start the development cluster: a real single-node Kubernetes with enforced NetworkPolicies (root, Debian)
	hack/devcluster/up

.PHONY: dev-cluster-down
dev-cluster-down: ## Stop the development cluster and remove everything it left
	hack/devcluster/down

.PHONY: cluster-ready
ifeq ($(CLUSTER),current)
cluster-ready:
	@kubectl version >/dev/null || { echo "error: the current kubectl context does not answer; see kubectl config current-context" >&2; exit 1; }
else
cluster-ready: dev-cluster
endif

.PHONY: images
images: build ## Build the four images, and load them into the development cluster or push them to IMAGE_REGISTRY
	CLUSTER=$(CLUSTER) IMAGE_REGISTRY=$(IMAGE_REGISTRY) BIN_DIR=$(BIN_DIR) TAG=$(IMAGE_TAG) hack/images/build

.PHONY: install
install: ## Install the CRD
	$(IN_CLUSTER) kubectl apply --server-side -k config/crd

.PHONY: uninstall
uninstall: ## Remove the CRD, and with it every instance
	$(IN_CLUSTER) kubectl delete --ignore-not-found -k config/crd

.PHONY: deploy
deploy: ## Install CRD, RBAC and operator from config/all-namespaces, with images that `make images` made
	$(IN_CLUSTER) IMAGE_PREFIX=$(IMAGE_PREFIX) TAG=$(IMAGE_TAG) hack/deploy.sh

.PHONY: undeploy
undeploy: ## Remove every instance, then the operator
	$(IN_CLUSTER) hack/undeploy.sh
