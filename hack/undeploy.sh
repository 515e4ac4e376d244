#!/usr/bin/env bash
# Removes every instance while the operator can still clean up after it, then the operator and the CRD.
set -euo pipefail

cd "$(dirname "$0")/.."
if kubectl get crd climcpinstances.cli-mcp.redhat.com >/dev/null 2>&1; then
    kubectl delete climcpinstances --all --all-namespaces --timeout=120s
fi
kubectl delete --ignore-not-found -k config/all-namespaces
# The operator makes it, and may not delete it.
kubectl delete --ignore-not-found clusterrolebinding cli-mcp-auth-delegator
