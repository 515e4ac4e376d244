#!/usr/bin/env bash
# Runs the sandbox agent on this machine, on loopback, with a fresh token, and says how to call it.
set -euo pipefail

agent=${AGENT:?the built agent; run make run-agent}
listen=${SANDBOX_LISTEN:-127.0.0.1:8090}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
token=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')

cat <<TEXT
The agent listens on $listen. Call it from another terminal:

  curl -s http://$listen/exec -H 'Authorization: Bearer $token' \\
    -H 'Content-Type: application/json' -d '{"command":"echo hello from \$\$"}'

Its workspace is $work and goes with it; Ctrl-C ends it.

TEXT
digest=$(printf %s "$token" | sha256sum | cut -d' ' -f1)
HOME=$work SANDBOX_LISTEN=$listen SANDBOX_AUTH_TOKEN_SHA256=$digest "$agent"
