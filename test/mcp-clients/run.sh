#!/usr/bin/env bash
# Runs MCP clients of others against the server, over HTTP and stdio: the MCP Inspector's command line, and the official
# TypeScript and Python SDKs. The server is the real program; cluster and sandboxes are those of its component tests.
#
# usage: test/mcp-clients/run.sh
#
# The packages come from npm and PyPI, with the versions and checksums of package-lock.json and requirements.txt.
# MCP_CLIENTS_CACHE keeps them between runs (default: ${XDG_CACHE_HOME:-~/.cache}/cli-mcp-operator/mcp-clients).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${MCP_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cli-mcp-operator/mcp-clients}
python=${PYTHON:-python3}

skip() { # reason
  echo "SKIPPED: $1, the tests with other MCP clients did not run"
  exit 0
}
command -v npm >/dev/null || skip "npm is not installed"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || skip "Python 3.10 or later is not installed"
"$python" -c 'import ensurepip, venv' 2>/dev/null || skip "Python's venv module is not installed"

mkdir -p "$cache"
if ! cmp -s "$here/package-lock.json" "$cache/installed-lock.json"; then
  echo "Installing the npm packages into $cache"
  cp "$here/package.json" "$here/package-lock.json" "$cache/"
  # Not `npm ci`: it insists on an optional package for Windows that is not published.
  npm install --silent --no-save --no-audit --no-fund --prefix "$cache"
  cp "$here/package-lock.json" "$cache/installed-lock.json"
fi
if ! cmp -s "$here/requirements.txt" "$cache/installed-requirements.txt"; then
  echo "Installing the Python packages into $cache"
  "$python" -m venv --clear "$cache/venv"
  "$cache/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$cache/installed-requirements.txt"
fi
# A module is looked up from where the script is.
cp "$here/typescript.mjs" "$here/python.py" "$cache/"

# shellcheck disable=SC2086 # CARGO may be a command with arguments.
MCP_CLIENTS=$cache ${CARGO:-cargo} test --locked --workspace --test component -- --ignored clients::
