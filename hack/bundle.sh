#!/usr/bin/env bash
# Generates the OLM bundle, its Dockerfile and the catalog template from config/: into the repository, or into the folder given.
set -euo pipefail

cd "$(dirname "$0")/.."
program=${BUNDLE_PROGRAM:?the built bundle program; run make bundle}
command -v kubectl >/dev/null || {
    echo "error: kubectl is not installed: it is needed for kustomize, no cluster is" >&2
    exit 1
}
kubectl kustomize config/manifests | "$program" generate --out "${1:-.}"
