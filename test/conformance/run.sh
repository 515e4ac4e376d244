#!/usr/bin/env bash
# Runs the official MCP conformance suite against the server, for both revisions of the protocol that it serves.
#
# usage: test/conformance/run.sh SERVER_BINARY
#
# No cluster is needed: the scenarios that apply to a server of one tool never reach a sandbox. Those that do not apply, or
# need fixture tools of the suite, are listed in expected-failures-REVISION.yml; the suite fails when one of them starts to pass.
# CONFORMANCE_CACHE keeps the npm packages between runs (default: ${XDG_CACHE_HOME:-~/.cache}/cli-mcp-operator/conformance).
set -euo pipefail

server=${1:?usage: $0 SERVER_BINARY}
here=$(cd "$(dirname "$0")" && pwd)
cache=${CONFORMANCE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cli-mcp-operator/conformance}
version=0.2.0-alpha.12
suite=$cache/node_modules/@modelcontextprotocol/conformance
node=$cache/node_modules/node/bin/node

if [[ ! -x $node || $(sed -n 's/.*"version": *"\([^"]*\)".*/\1/p' "$suite/package.json" 2>/dev/null | head -1) != "$version" ]]; then
  command -v npm >/dev/null || { echo "error: npm is not installed: install Node.js 20 or later" >&2; exit 2; }
  echo "Installing the conformance suite $version into $cache"
  mkdir -p "$cache"
  npm install --silent --no-audit --no-fund --prefix "$cache" node@22.23.0 "@modelcontextprotocol/conformance@$version"
fi

work=$(mktemp -d)
trap 'kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
pid=
head -c 32 /dev/urandom > "$work/key"
cat > "$work/kubeconfig" <<'KUBECONFIG'
{"apiVersion": "v1", "kind": "Config", "current-context": "none",
 "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}], "users": [{"name": "none", "user": {}}],
 "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}]}
KUBECONFIG
"$server" --transport=http --stateless --address=127.0.0.1:0 --namespace=conformance --instance-name=conformance \
  --sandbox-image=none --sandbox-service-account=none --hmac-key-file="$work/key" --kubeconfig-secret=none \
  --kubeconfig="$work/kubeconfig" > "$work/log" &
pid=$!
url=
for _ in $(seq 100); do
  url=$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' "$work/log" | head -1)
  [[ -n $url ]] && break
  kill -0 "$pid" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
  sleep 0.1
done
[[ -n $url ]] || { echo "error: the server did not listen" >&2; exit 1; }

# The suite counts the scenarios that its baseline excludes as failed; what decides is its exit code.
failed=0
for revision in 2025-11-25 2026-07-28; do
  baseline=$here/expected-failures-$revision.yml
  if "$node" "$suite/dist/index.js" server --url "$url" --spec-version "$revision" --suite all \
    --expected-failures "$baseline" -o "$work/out-$revision" >"$work/suite.log" 2>&1; then
    echo "MCP $revision: every scenario that applies passes ($(grep -c '^ *- ' "$baseline") are excluded, each with its reason)"
  else
    cat "$work/suite.log"
    echo "MCP $revision: not as test/conformance/$(basename "$baseline") says"
    failed=1
  fi
done
exit "$failed"
