#!/usr/bin/env bash
# Runs the MCP server on this machine, on loopback, without operator and proxy: sandboxes get the named kubeconfig
# Secret itself, so use it with a credential that you would give the agent.
set -euo pipefail

server=${SERVER:?the built server; run make run-server}
namespace=${NAMESPACE:-default}
image=${SANDBOX_IMAGE:?image of the sandbox}
secret=${KUBECONFIG_SECRET:-cli-mcp-local-kubeconfig}
address=${ADDRESS:-localhost:8080}
# Sandboxes outlive a run, and take commands from a server with the same key only.
key=${HMAC_KEY_FILE:-${XDG_STATE_HOME:-$HOME/.local/state}/cli-mcp-operator/hmac-key}

if ! kubectl -n "$namespace" get secret "$secret" >/dev/null; then
    cat >&2 <<TEXT
error: Secret $namespace/$secret not found. Make one with a read-only identity:
  kubectl cli-mcp investigation-kubeconfig --namespace $namespace --instance local     (make install-plugin)
or name another with KUBECONFIG_SECRET=…
TEXT
    exit 1
fi
kubectl -n "$namespace" apply -f - >&2 <<YAML
apiVersion: v1
kind: ServiceAccount
metadata: {name: cli-mcp-local-sandbox, namespace: $namespace}
automountServiceAccountToken: false
YAML
if [[ ! -s $key ]]; then
    mkdir -p "$(dirname "$key")"
    new=$(umask 077 && mktemp "$key.XXXXXX")
    head -c 32 /dev/urandom >"$new"
    # Whole or not at all, and of two runs that begin at once the first one's.
    mv -n "$new" "$key"
    rm -f "$new"
fi

cat <<TEXT
The server listens on http://$address/mcp. Call it from another terminal:

  curl -s http://$address/mcp -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \\
    -H 'X-Session-ID: local' -H 'MCP-Protocol-Version: 2025-11-25' \\
    -d '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash","arguments":{"command":"kubectl get pods -A"}}}'
  curl -s -X DELETE http://$address/sessions/local

Ctrl-C ends it; sandboxes stay until their DELETE, also for the next run: the key of their sessions is kept in
$key

TEXT
exec "$server" --transport=http --stateless --address="$address" --namespace="$namespace" --instance-name=local \
    --sandbox-image="$image" --sandbox-service-account=cli-mcp-local-sandbox --hmac-key-file="$key" \
    --kubeconfig-secret="$secret"
