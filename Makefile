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
	@$(IN_CLUSTER) DEMO_PROGRAM=$(DEV_BIN_DIR)/demo KUBECTL_PLUGIN=$(BIN_DIR)/kubectl-cli_mcp hack/demo.sh

GATE := lint test-unit test-conformance test-mcp-clients $(if $(filter dev,$(CLUSTER)),test-cluster) test-e2e test-attack \
  $(if $(filter dev,$(CLUSTER)),soak-short)

.PHONY: test
test: $(GATE) ## Run the gate: lint, unit and component tests, other MCP clients, the cluster's own, end-to-end tests, attacks, a minute of load

##@ Development

.PHONY: workspace
# Everything, as `make test` has it: one set of features, so that no dependency is built twice.
workspace:
	$(CARGO) build --locked --workspace --all-targets

.PHONY: build
ifeq ($(PROFILE),dev)
build: workspace ## Build the programs and the kubectl plugin
else
build: ## Build the programs and the kubectl plugin
	$(CARGO) build --locked --profile $(PROFILE) $(foreach p,$(PROGRAMS) kubectl-plugin,-p cli-mcp-$(p))
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
manifests: workspace ## Generate the CRD and the operator's roles from the code into config/
	crd=$$($(DEV_BIN_DIR)/crdgen) && printf '%s\n' "$$crd" >config/crd/bases/cli-mcp.redhat.com_climcpinstances.yaml
	$(DEV_BIN_DIR)/rolegen config

.PHONY: bundle
bundle: cluster-ready workspace ## Generate the OLM bundle, its Dockerfile and the catalog template from config/
	$(IN_CLUSTER) BUNDLE_PROGRAM=$(DEV_BIN_DIR)/bundle hack/bundle.sh

.PHONY: sbom
sbom: ## Write a software bill of materials of each program to dist/ (CycloneDX)
	hack/sbom --target $(CARGO_BUILD_TARGET) $(PROGRAMS)

.PHONY: docs
docs: workspace ## Write docs/reference and the lists of docs/troubleshoot.md from the code
	$(DEV_BIN_DIR)/docs generate

.PHONY: rustdoc
rustdoc: ## Build the documentation of the crates, with warnings as errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps

# Where `make install-plugin` puts the kubectl plugin; kubectl finds it in PATH.
PLUGIN_DIR ?= $(HOME)/.local/bin
.PHONY: install-plugin
install-plugin: ## Build the kubectl plugin and put it into PLUGIN_DIR (~/.local/bin)
	$(CARGO) build --locked --profile $(PROFILE) -p cli-mcp-kubectl-plugin
	install -D -m 755 -t $(PLUGIN_DIR) $(BIN_DIR)/kubectl-cli_mcp cmd/kubectl-plugin/kubectl_complete-cli_mcp
	@case ":$$PATH:" in *":$(PLUGIN_DIR):"*) ;; *) echo "kubectl finds it when $(PLUGIN_DIR) is in PATH: export PATH=$(PLUGIN_DIR):\$$PATH" >&2 ;; esac

.PHONY: fmt
fmt: ## Format the code
	$(CARGO) fmt --all

.PHONY: lint
lint: ## Check formatting, clippy and rustdoc with warnings as errors, scripts, and the dependency tree
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	hack/lint-scripts.sh
	$(MAKE) unused deny rustdoc

.PHONY: unused
unused: ## Check that every dependency is used, those of the workspace too
	hack/tools/cargo-tool cargo-shear --locked

.PHONY: deny
deny: ## Check licences, duplicate and banned dependencies
	hack/tools/cargo-tool cargo-deny check --hide-inclusion-graph bans licenses sources

.PHONY: deny-advisories
deny-advisories: ## Check the dependencies against the RustSec database (downloads it)
	hack/tools/cargo-tool cargo-deny check advisories

# Tests that need a cluster, each with a target of its own. test-unit has every other one, whatever crate it is in: cargo can
# leave crates out, and no single test.
CLUSTER_TESTS := attack chaos cluster-soak on-cluster
UNIT_TESTS = $(filter-out $(CLUSTER_TESTS),$(sort $(shell $(CARGO) metadata --locked --no-deps --format-version 1 | \
  grep -o '"kind":\["test"\],"crate_types":\["bin"\],"name":"[^"]*"' | cut -d '"' -f 12)))

.PHONY: test-unit
test-unit: ## Run unit and component tests: real bash, real TLS, no cluster
	$(CARGO) test --locked --workspace --lib --bins --examples \
	  $(addprefix --test=,$(or $(UNIT_TESTS),$(error cargo metadata names no tests))) --no-fail-fast

# Built apart, so that what is instrumented and what is not do not replace each other.
.PHONY: coverage
coverage: ## Measure what the unit and component tests run: a table here, lines under TARGET_DIR/coverage/html (fetches cargo-llvm-cov)
	hack/coverage $(TARGET_DIR)/coverage

.PHONY: test-agent-bash
test-agent-bash: ## Run the agent's tests with bash 5.1, 5.2 and 5.3 (fetches them, pinned, with apt)
	@set -e; for bash in $$(cmd/agent/tests/fetch-bash $(TARGET_DIR)/bash); do echo "== $$bash"; \
	  AGENT_TEST_BASH=$$(realpath $$bash) $(CARGO) test --locked -p cli-mcp-agent --no-fail-fast; done

.PHONY: fuzz-agent
fuzz-agent: ## Fuzz agents with random bodies and command bytes against a real bash, for half an hour of processor time
	AGENT_FUZZ_SECONDS=1800 AGENT_FUZZ_AGENTS=8 AGENT_FUZZ_SEED=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ') \
	  $(CARGO) test --locked -p cli-mcp-agent --test fuzz -- --nocapture

.PHONY: soak-agent
soak-agent: ## Run 10,000 mixed calls through one agent: descriptors, zombies, memory and time stay flat
	$(CARGO) test --locked -p cli-mcp-agent --test soak -- --ignored --nocapture

.PHONY: test-conformance
test-conformance: build ## Run the official MCP conformance suite against the server (needs npm)
	@if command -v npm >/dev/null; then test/conformance/run.sh $(BIN_DIR)/server; else echo "SKIPPED: npm is not installed, the MCP conformance suite did not run"; fi

.PHONY: test-mcp-clients
test-mcp-clients: ## Run other MCP clients against the server: Inspector, TypeScript and Python SDKs (needs npm and Python)
	CARGO="$(CARGO)" test/mcp-clients/run.sh

.PHONY: test-cluster
test-cluster: dev-cluster images ## Prove that the development cluster enforces policies, and survives every kind of death
	cd hack/devcluster && CGO_ENABLED=0 go test -trimpath -vet=off ./internal/...
	TEST_IMAGE=$(IMAGE_PREFIX)agent:$(IMAGE_TAG) test/cluster/enforcement
	test/cluster/lifecycle

.PHONY: test-e2e test-races
test-races: ## Run the races of two replicas in full: 50 sessions at once over a pool of 10
	E2E_SESSIONS=50 E2E_POOL=10 $(MAKE) test-e2e E2E_FILTER=server_replicas
test-e2e: cluster-ready images ## Run the end-to-end tests on the cluster; E2E_FILTER=server_gate chooses
	@$(IN_CLUSTER) IMAGE_PREFIX=$(IMAGE_PREFIX) TAG=$(IMAGE_TAG) hack/deploy.sh
	$(IN_CLUSTER) E2E_CLUSTER=$(CLUSTER) E2E_IMAGE_PREFIX=$(IMAGE_PREFIX) E2E_TAG=$(IMAGE_TAG) E2E_BIN_DIR=$(abspath $(BIN_DIR)) \
	  $(CARGO) test --locked --workspace --test on-cluster -- --test-threads=4 $(E2E_FILTER)

.PHONY: test-attack
test-attack: cluster-ready images ## Attack the product from inside its sandboxes, on the cluster
	@$(IN_CLUSTER) IMAGE_PREFIX=$(IMAGE_PREFIX) TAG=$(IMAGE_TAG) hack/deploy.sh
	$(IN_CLUSTER) E2E_CLUSTER=$(CLUSTER) E2E_IMAGE_PREFIX=$(IMAGE_PREFIX) E2E_TAG=$(IMAGE_TAG) E2E_BIN_DIR=$(abspath $(BIN_DIR)) \
	  $(CARGO) test --locked --workspace --test attack -- --test-threads=4

.PHONY: test-chaos test-chaos-short
test-chaos-short: ## Run the first faults of make test-chaos
	$(MAKE) test-chaos CHAOS_FAULTS=$(or $(CHAOS_FAULTS),8)
test-chaos: dev-cluster images ## Kill, stop, cut off and delete every part under load; CHAOS_PASSES=20 CHAOS_SEED=7 runs on, CHAOS_FAULTS=Lease,kubelet chooses
	@$(IN_CLUSTER) IMAGE_PREFIX=$(IMAGE_PREFIX) TAG=$(IMAGE_TAG) hack/deploy.sh
	$(IN_CLUSTER) E2E_CLUSTER=$(CLUSTER) E2E_IMAGE_PREFIX=$(IMAGE_PREFIX) E2E_TAG=$(IMAGE_TAG) E2E_BIN_DIR=$(abspath $(BIN_DIR)) \
	  $(CARGO) test --locked --workspace --test chaos -- --nocapture

.PHONY: soak soak-short
soak-short: ## Run one minute of make soak: what grows slowly does not show
	$(MAKE) soak SOAK_SECONDS=$(or $(SOAK_SECONDS),60)
soak: dev-cluster images ## Run an hour of mixed load on the cluster: memory, descriptors, threads, zombies, API requests stay flat
	@$(IN_CLUSTER) IMAGE_PREFIX=$(IMAGE_PREFIX) TAG=$(IMAGE_TAG) hack/deploy.sh
	$(IN_CLUSTER) E2E_CLUSTER=$(CLUSTER) E2E_IMAGE_PREFIX=$(IMAGE_PREFIX) E2E_TAG=$(IMAGE_TAG) E2E_BIN_DIR=$(abspath $(BIN_DIR)) \
	  SOAK_SECONDS=$(or $(SOAK_SECONDS),3600) $(CARGO) test --locked --workspace --test cluster-soak -- --nocapture

.PHONY: test-operator
test-operator: cluster-ready images ## Kill the operator, cut it off, let another lead: it always converges (E2E_IDLE_SECONDS, E2E_SEED)
	@$(IN_CLUSTER) IMAGE_PREFIX=$(IMAGE_PREFIX) TAG=$(IMAGE_TAG) hack/deploy.sh
	$(IN_CLUSTER) E2E_CLUSTER=$(CLUSTER) E2E_IMAGE_PREFIX=$(IMAGE_PREFIX) E2E_TAG=$(IMAGE_TAG) E2E_BIN_DIR=$(abspath $(BIN_DIR)) \
	  $(CARGO) test --locked --workspace --test on-cluster -- --ignored --test-threads=1 operator_alone

.PHONY: test-bundle
test-bundle: ## Check the OLM bundle with operator-verify, opm and the scorecard, and the alerts with promtool (needs Go)
	test/bundle/check
	hack/monitoring-check.sh

.PHONY: test-bundle-install
test-bundle-install: cluster-ready images workspace ## Install what the bundle says in each of OLM's install modes, hold the demo there; scorecard in pods
	$(IN_CLUSTER) IMAGE_PREFIX=$(IMAGE_PREFIX) TAG=$(IMAGE_TAG) BUNDLE_PROGRAM=$(DEV_BIN_DIR)/bundle DEMO_PROGRAM=$(DEV_BIN_DIR)/demo \
	  KUBECTL_PLUGIN=$(BIN_DIR)/kubectl-cli_mcp test/bundle/install-modes
	$(if $(filter dev,$(CLUSTER)),test/bundle/scorecard)

.PHONY: test-upgrade
test-upgrade: cluster-ready images ## Install the first recorded manifests, start sessions, upgrade to the current ones, find them alive (OLD_BIN_DIR=programs of a release)
	CLUSTER=$(CLUSTER) IMAGE_REGISTRY=$(IMAGE_REGISTRY) BIN_DIR=$(or $(OLD_BIN_DIR),$(BIN_DIR)) TAG=upgrade-from hack/images/build
	$(IN_CLUSTER) IMAGE_PREFIX=$(IMAGE_PREFIX) OLD_TAG=upgrade-from TAG=$(IMAGE_TAG) \
	  OLD_BIN_DIR=$(or $(OLD_BIN_DIR),$(BIN_DIR)) BIN_DIR=$(BIN_DIR) KUBECTL_PLUGIN=$(BIN_DIR)/kubectl-cli_mcp test/upgrade/run

.PHONY: test-images
test-images: build ## Build each image twice, compare the digests and look inside (root, Debian)
	test/images/reproducible $(BIN_DIR)

.PHONY: test-hardened
test-hardened: build-prod ## Read from the shipped binaries that they are hardened and stripped
	test/images/hardened $(TARGET_DIR)/$(CARGO_BUILD_TARGET)/prod

.PHONY: test-docs
test-docs: dev-cluster workspace ## Run the commands of the pages, as printed, then config/default as it is, on the development cluster
	CARGO="$(CARGO)" DOCS_PROGRAM=$(DEV_BIN_DIR)/docs BIN_DIR=$(BIN_DIR) hack/docs/run-pages
	$(IN_CLUSTER) BIN_DIR=$(BIN_DIR) DEMO_PROGRAM=$(DEV_BIN_DIR)/demo KUBECTL_PLUGIN=$(BIN_DIR)/kubectl-cli_mcp test/install/default

.PHONY: test-clients
test-clients: cluster-ready build ## List and watch through the proxy with the Python, JavaScript, Go and Java clients of Kubernetes
	$(IN_CLUSTER) test/clients/run.sh $(BIN_DIR)

.PHONY: fuzz-proxy
fuzz-proxy: ## Fuzz what reads CONNECT, heads, paths, chunks and kubeconfigs, FUZZ_SECONDS each (default 60)
	FUZZ_SECONDS=$(or $(FUZZ_SECONDS),60) $(CARGO) test --locked --release -p cli-mcp-proxy --test fuzz -- --nocapture --test-threads=2

##@ Figures

.PHONY: bench bench-agent bench-proxy
bench: ## Measure every part against a floor of the same run; one report, a table and JSON (BENCH="agent proxy server operator")
	hack/bench $(TARGET_DIR)/bench $(TARGET_DIR)/bench-operator.json $(BENCH)
bench-agent: build-prod ## Measure the agent: latency, throughput, memory, timeouts; a table and JSON
	$(CARGO) run --locked --release -p cli-mcp-agent --example bench-agent -- $(TARGET_DIR)/$(CARGO_BUILD_TARGET)/prod/agent
bench-proxy: build-prod ## Measure the proxy against direct TLS; a table and JSON
	$(CARGO) run --locked --release -p cli-mcp-proxy --example bench-proxy -- $(TARGET_DIR)/$(CARGO_BUILD_TARGET)/prod/proxy
.PHONY: bench-server
bench-server: dev-cluster ## Measure the server on the development cluster; a table and JSON
	$(MAKE) images deploy PROFILE=prod
	$(CARGO) build --locked --release -p cli-mcp-server --example bench-server
	$(IN_CLUSTER) KUBECTL_PLUGIN=$(abspath $(TARGET_DIR))/$(CARGO_BUILD_TARGET)/prod/kubectl-cli_mcp \
	  hack/devcluster/enter $(abspath $(TARGET_DIR))/$(CARGO_BUILD_TARGET)/release/examples/bench-server $(CURDIR)

.PHONY: bench-operator
bench-operator: build-prod dev-cluster ## Measure the operator with 200 instances and 5,000 sandboxes on fake nodes; a table and JSON
	$(IN_CLUSTER) hack/bench-operator $(TARGET_DIR)/$(CARGO_BUILD_TARGET)/prod/operator $(TARGET_DIR)/bench-operator.json

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
