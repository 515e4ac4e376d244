#!/usr/bin/env bash
# Makes a self-signed TLS Secret for an instance's server. For trying things out: with cert-manager or OpenShift's
# serving certificates this script is not needed.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: hack/tls-secret.sh --namespace NAMESPACE --instance NAME --ca-out FILE

Creates Secret cli-mcp-NAME-tls with a certificate for the Service cli-mcp-NAME (and for localhost, so that
`kubectl port-forward` works), signed by a new CA whose certificate is written to FILE and stored in the Secret
too, under ca.crt. An existing Secret whose CA is FILE and which is valid for another day is kept.
TEXT
}

die() { # message
    echo "error: $1" >&2
    exit 2
}

namespace='' instance='' ca_out=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help)
            usage
            exit 0
            ;;
        --namespace) namespace=${2:-} ;;
        --instance) instance=${2:-} ;;
        --ca-out) ca_out=${2:-} ;;
        *) die "unknown option $1; see --help" ;;
    esac
    shift 2 || die "$1 needs a value"
done
[ -n "$namespace" ] || die "--namespace is required; see --help"
[ -n "$instance" ] || die "--instance is required; see --help"
[ -n "$ca_out" ] || die "--ca-out is required; see --help"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
secret=cli-mcp-$instance-tls

stored() { # KEY
    kubectl -n "$namespace" get secret "$secret" -o "jsonpath={.data.${1/./\\.}}" 2>/dev/null | base64 -d
}
if [ -s "$ca_out" ] && stored ca.crt | cmp --silent - "$ca_out" && stored tls.crt >"$work/current.crt" &&
    openssl verify -CAfile "$ca_out" "$work/current.crt" >/dev/null 2>&1 &&
    openssl x509 -in "$work/current.crt" -checkend 86400 -noout >/dev/null 2>&1; then
    echo "Secret $namespace/$secret is valid, kept" >&2
    exit 0
fi

name=cli-mcp-$instance
cat >"$work/leaf.ext" <<TEXT
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectAltName=DNS:$name,DNS:$name.$namespace,DNS:$name.$namespace.svc,DNS:$name.$namespace.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:::1
TEXT
key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }
key "$work/ca.key"
openssl req -x509 -new -key "$work/ca.key" -days 365 -subj "/CN=$secret CA" -out "$work/ca.crt" \
    -addext "keyUsage=critical,keyCertSign,cRLSign"
key "$work/tls.key"
openssl req -new -key "$work/tls.key" -subj "/CN=$name" -out "$work/tls.csr"
openssl x509 -req -in "$work/tls.csr" -CA "$work/ca.crt" -CAkey "$work/ca.key" -CAcreateserial -days 365 \
    -extfile "$work/leaf.ext" -out "$work/tls.crt" 2>/dev/null

# As cert-manager has it: the CA beside the certificate, where clients that may read the Secret find it.
kubectl -n "$namespace" create secret generic "$secret" --type=kubernetes.io/tls --from-file="$work/tls.crt" \
    --from-file="$work/tls.key" --from-file="$work/ca.crt" --dry-run=client -o yaml |
    kubectl apply --server-side --force-conflicts --field-manager=tls-secret -f - >&2
mkdir -p "$(dirname "$ca_out")"
cp "$work/ca.crt" "$ca_out"
