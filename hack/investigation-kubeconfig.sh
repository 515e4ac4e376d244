#!/usr/bin/env bash
# Creates a read-only investigation identity and the Secret with its kubeconfig that an instance's proxy injects.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: hack/investigation-kubeconfig.sh --namespace NAMESPACE --instance NAME [options]

Creates, in the current kubectl context:
  * ServiceAccount cli-mcp-investigator in NAMESPACE, bound to a ClusterRole (default: view, which
    reads everything but Secrets and RBAC);
  * a token of it, in a Secret that lives as long as the ServiceAccount;
  * Secret cli-mcp-NAME-kubeconfig with a kubeconfig for the proxy under the key "kubeconfig".

Options:
  --namespace NAMESPACE   namespace of the instance (required)
  --instance NAME         name of the CliMcpInstance (required)
  --cluster-role ROLE     what the identity may do (default: view)
  --server URL            API server as the proxy's pods reach it (default: https://kubernetes.default.svc)
  --print                 print the kubeconfig instead of storing it in the Secret
  -h, --help              this text

Run it again to renew the Secret: the proxy takes the new file within seconds.
TEXT
}

die() { # message
    echo "error: $1" >&2
    exit 2
}

namespace='' instance='' role=view server=https://kubernetes.default.svc print=''
while [ $# -gt 0 ]; do
    case $1 in
        --namespace | --instance | --cluster-role | --server)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in
                --namespace) namespace=$2 ;;
                --instance) instance=$2 ;;
                --cluster-role) role=$2 ;;
                --server) server=$2 ;;
            esac
            shift 2
            ;;
        --print)
            print=yes
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) die "unknown option $1; see --help" ;;
    esac
done
[ -n "$namespace" ] || die "--namespace is required; see --help"
[ -n "$instance" ] || die "--instance is required; see --help"

kubectl apply -f - >&2 <<YAML
apiVersion: v1
kind: ServiceAccount
metadata: {name: cli-mcp-investigator, namespace: $namespace}
---
apiVersion: v1
kind: Secret
metadata:
  name: cli-mcp-investigator-token
  namespace: $namespace
  annotations: {kubernetes.io/service-account.name: cli-mcp-investigator}
type: kubernetes.io/service-account-token
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: cli-mcp-investigator-$namespace-$role}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: $role}
subjects: [{kind: ServiceAccount, name: cli-mcp-investigator, namespace: $namespace}]
YAML

field() { # jsonpath
    kubectl -n "$namespace" get secret cli-mcp-investigator-token -o jsonpath="$1"
}
for _ in $(seq 50); do
    [ -n "$(field '{.data.token}')" ] && break
    sleep 0.2
done
token=$(field '{.data.token}' | base64 -d)
ca=$(field '{.data.ca\.crt}')
if [ -z "$token" ]; then
    echo "error: no token appeared in Secret $namespace/cli-mcp-investigator-token within 10 s; is the token controller running?" >&2
    exit 1
fi

kubeconfig() {
    cat <<YAML
apiVersion: v1
kind: Config
clusters:
- name: investigated
  cluster:
    server: $server
    certificate-authority-data: $ca
users:
- name: investigator
  user:
    token: $token
contexts:
- name: investigated
  context: {cluster: investigated, user: investigator, namespace: default}
current-context: investigated
YAML
}

if [ -n "$print" ]; then
    kubeconfig
else
    # Through a pipe: the credential is never an argument of a process.
    kubeconfig | kubectl -n "$namespace" create secret generic "cli-mcp-$instance-kubeconfig" \
        --from-file=kubeconfig=/dev/stdin --dry-run=client -o yaml |
        kubectl apply --server-side --force-conflicts --field-manager=investigation-kubeconfig -f - >&2
fi
