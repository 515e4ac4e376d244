#!/usr/bin/env bash
# Installs config/all-namespaces into the current context with images of one's own, and waits until the operator runs.
set -euo pipefail

cd "$(dirname "$0")/.."
prefix=${IMAGE_PREFIX:?such as localhost/cli-mcp-}
tag=${TAG:?tag of the images}
overlay=.local/deploy

mkdir -p "$overlay"
cat >"$overlay/kustomization.yaml" <<YAML
resources: [../../config/all-namespaces]
patches:
- target: {kind: Deployment, name: cli-mcp-operator-controller-manager}
  patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: cli-mcp-operator-controller-manager}
    spec:
      template:
        spec:
          containers:
          - name: manager
            image: ${prefix}operator:${tag}
            env:
            - {name: RELATED_IMAGE_SERVER, value: "${prefix}server:${tag}"}
            - {name: RELATED_IMAGE_PROXY, value: "${prefix}proxy:${tag}"}
            - {name: RELATED_IMAGE_SANDBOX, value: "${prefix}agent:${tag}"}
YAML

echo "==> Installing the operator (config/all-namespaces)"
kubectl apply --server-side --force-conflicts -k "$overlay"
kubectl wait --for=condition=Established crd/climcpinstances.cli-mcp.redhat.com --timeout=30s
if ! kubectl -n cli-mcp-operator-system rollout status deployment/cli-mcp-operator-controller-manager --timeout=120s; then
    kubectl -n cli-mcp-operator-system describe pods >&2
    kubectl -n cli-mcp-operator-system logs deployment/cli-mcp-operator-controller-manager --tail=50 >&2 || true
    exit 1
fi
