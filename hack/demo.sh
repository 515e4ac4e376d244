#!/usr/bin/env bash
# From a cluster with the operator in it to a printed MCP conversation; `make demo` prepares what comes before.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
namespace=${DEMO_NAMESPACE:-cli-mcp-demo}
instance=${DEMO_INSTANCE:-demo}
port=${DEMO_PORT:-18443}
program=${DEMO_PROGRAM:?the built demo program; run make demo}
plugin=${KUBECTL_PLUGIN:?the built kubectl plugin, kubectl-cli_mcp; run make demo}
state=${XDG_STATE_HOME:-$HOME/.local/state}/cli-mcp-operator/demo

say() { printf '==> %s\n' "$*"; }

mkdir -p "$state"
chmod 700 "$state"

say "Namespace $namespace, which enforces the restricted Pod Security Standard"
kubectl apply -f - <<YAML
apiVersion: v1
kind: Namespace
metadata:
  name: $namespace
  labels: {pod-security.kubernetes.io/enforce: restricted}
YAML

say "A read-only investigation identity and its kubeconfig (kubectl cli-mcp investigation-kubeconfig)"
"$plugin" investigation-kubeconfig --namespace "$namespace" --instance "$instance"

say "A TLS certificate for the server (hack/tls-secret.sh)"
"$here/tls-secret.sh" --namespace "$namespace" --instance "$instance" --ca-out "$state/ca.crt"

say "The instance"
kubectl apply -f - <<YAML
apiVersion: cli-mcp.redhat.com/v1alpha1
kind: CliMcpInstance
metadata: {name: $instance, namespace: $namespace}
spec:
  sandbox: {warmPoolSize: 1}
  proxy:
    targets:
    - type: kubernetes
      access: ReadOnly
YAML

say "Waiting until it is Ready"
if ! kubectl -n "$namespace" wait --for=condition=Ready "climcpinstance/$instance" --timeout=180s; then
    kubectl -n "$namespace" get climcpinstance "$instance" -o wide || true
    kubectl -n "$namespace" describe climcpinstance "$instance" | sed -n '/^Status:/,$p' || true
    kubectl -n "$namespace" get pods -o wide || true
    exit 1
fi
kubectl -n "$namespace" get climcpinstance,pods

say "A client's token, good for an hour, and a way in from here"
(umask 077 && kubectl -n "$namespace" create token "cli-mcp-$instance-client" --duration=1h >"$state/token")
kubectl -n "$namespace" port-forward "service/cli-mcp-$instance" "$port:8443" >"$state/port-forward.log" 2>&1 &
forward=$!
trap 'kill "$forward" 2>/dev/null || true' EXIT
for _ in $(seq 100); do
    grep -q Forwarding "$state/port-forward.log" && break
    kill -0 "$forward" 2>/dev/null || { cat "$state/port-forward.log" >&2; exit 1; }
    sleep 0.1
done

exec_pod=$(kubectl -n "$namespace" get pods -l "cli-mcp.redhat.com/instance=$instance,cli-mcp.redhat.com/component=proxy" \
    -o jsonpath='{.items[0].metadata.namespace}/{.items[0].metadata.name}')
api_server=$(kubectl get service kubernetes -n default -o jsonpath='{.spec.clusterIP}:{.spec.ports[0].port}')

say "The conversation"
"$program" --url "https://localhost:$port" --ca-file "$state/ca.crt" --token-file "$state/token" \
    --session "demo-$(date +%s)" --api-server "$api_server" --exec-pod "$exec_pod"

cat <<TEXT

It works. To connect your own MCP client:

  kubectl -n $namespace port-forward service/cli-mcp-$instance 8443:8443
  kubectl -n $namespace create token cli-mcp-$instance-client

  URL      https://localhost:8443/mcp
  headers  Authorization: Bearer <the token>
           X-Session-ID: <a name of your choice; one shell for each>
  CA       $state/ca.crt

docs/clients.md has the settings of the usual clients.

To clean up:

  # the instance and its sandboxes, and the investigation identity's right
  kubectl delete namespace $namespace
  kubectl delete clusterrolebinding cli-mcp-investigator-$namespace-view
  # the operator
  make undeploy
  # the development cluster
  make dev-cluster-down
TEXT
