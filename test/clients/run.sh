#!/usr/bin/env bash
# Lists and watches with the Kubernetes project's Python, JavaScript, Go and Java clients through the credential proxy, with
# the kubeconfig and the environment of a sandbox, against the current cluster.
#
# usage: test/clients/run.sh BIN_DIR   (the folder with `proxy`, `operator` and `kubectl-cli_mcp`)
#
# The clients come from their registries, with pinned versions. A client whose tools are missing is skipped, and said so.
# CLIENTS_CACHE keeps them between runs (default: ${XDG_CACHE_HOME:-~/.cache}/cli-mcp-operator/clients).
set -euo pipefail

bin=$(cd "${1:?usage: $0 BIN_DIR}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
cache=${CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cli-mcp-operator/clients}
namespace='proxy-clients'
work=$(mktemp -d)
proxy=
# shellcheck disable=SC2317  # the trap calls it
cleanup() {
  [[ -z $proxy ]] || { kill "$proxy" && wait "$proxy"; } 2>/dev/null || true
  kubectl delete namespace "$namespace" --ignore-not-found --wait=false >/dev/null 2>&1 || true
  kubectl delete clusterrolebinding "cli-mcp-investigator-$namespace-edit" --ignore-not-found >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap cleanup EXIT

server=$(kubectl config view --minify -o jsonpath='{.clusters[0].cluster.server}')
kubectl delete namespace "$namespace" --ignore-not-found >/dev/null
kubectl create namespace "$namespace" >/dev/null
mkdir "$work/ca" "$work/kubeconfig"
"$bin/kubectl-cli_mcp" investigation-kubeconfig --namespace "$namespace" --instance clients --cluster-role edit \
  --server "$server" --print >"$work/kubeconfig/kubeconfig"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj '/CN=credential proxy of a test' \
  -addext 'basicConstraints=critical,CA:TRUE,pathlen:0' -addext 'keyUsage=critical,keyCertSign,cRLSign' \
  -keyout "$work/ca/ca.key" -out "$work/ca/ca.crt" 2>/dev/null
cat >"$work/instance.yaml" <<YAML
apiVersion: cli-mcp.redhat.com/v1alpha1
kind: CliMcpInstance
metadata: {name: clients, namespace: $namespace}
spec: {proxy: {targets: [{type: kubernetes}]}}
YAML
"$bin/operator" kubeconfig render "$work/kubeconfig/kubeconfig" --instance "$work/instance.yaml" --ca "$work/ca/ca.crt" \
  --out "$work/routes" >/dev/null
"$bin/proxy" --listen 127.0.0.1:0 --health-listen 127.0.0.1:0 --routes-dir "$work/routes" \
  --kubeconfig-dir "$work/kubeconfig" --ca-dir "$work/ca" >"$work/proxy.log" 2>&1 &
proxy=$!
address=
for _ in $(seq 100); do
  address=$(sed -n 's/.*"listen":"\([^"]*\)".*/\1/p' "$work/proxy.log" | head -1)
  [[ -n $address ]] && break
  kill -0 "$proxy" 2>/dev/null || { cat "$work/proxy.log" >&2; exit 1; }
  sleep 0.1
done
[[ -n $address ]] || { echo "error: the proxy did not listen" >&2; exit 1; }
# Outside a cluster the Service's name does not resolve; everything else is as a sandbox has it.
sed "s|proxy-url: .*|proxy-url: http://$address|" "$work/routes/kubeconfig" >"$work/dummy"

as_in_a_sandbox() { # command
  env -u KUBERNETES_SERVICE_HOST KUBECONFIG="$work/dummy" HTTPS_PROXY="http://$address" HTTP_PROXY="http://$address" \
    https_proxy="http://$address" http_proxy="http://$address" NO_PROXY=127.0.0.1,localhost,::1 \
    no_proxy=127.0.0.1,localhost,::1 SSL_CERT_FILE="$work/ca/ca.crt" REQUESTS_CA_BUNDLE="$work/ca/ca.crt" \
    NODE_EXTRA_CA_CERTS="$work/ca/ca.crt" "$@"
}

failed=0
try() { # language, command
  local language=$1 log=$work/$1.log client
  shift
  as_in_a_sandbox "$@" "$namespace" "seen-by-$language" >"$log" 2>&1 &
  client=$!
  # Against hanging only: a busy machine takes long to start a JVM.
  for _ in $(seq 3000); do
    grep -q '^watching' "$log" && break
    kill -0 "$client" 2>/dev/null || break
    sleep 0.1
  done
  kubectl -n "$namespace" create configmap "seen-by-$language" >/dev/null || true
  if wait "$client"; then
    echo "$language: list and watch through the proxy: $(grep '^listed' "$log"), $(grep ADDED "$log" | tail -1)"
  else
    echo "$language: FAILED"
    cat "$log"
    tail -5 "$work/proxy.log"
    failed=1
  fi
}

missing() { # language, tool
  echo "SKIPPED: $2 is not installed, the $1 client did not run"
}

mkdir -p "$cache"
if command -v python3 >/dev/null && python3 -c 'import venv, ensurepip' 2>/dev/null; then
  if ! cmp -s "$here/python/requirements.txt" "$cache/python/requirements.txt"; then
    rm -rf "$cache/python"
    python3 -m venv "$cache/python"
    "$cache/python/bin/pip" install --quiet --disable-pip-version-check -r "$here/python/requirements.txt"
    cp "$here/python/requirements.txt" "$cache/python/"
  fi
  try python "$cache/python/bin/python" "$here/python/client.py"
else
  missing Python "python3 with venv"
fi

if command -v npm >/dev/null; then
  mkdir -p "$cache/node"
  cp "$here"/node/*.js* "$cache/node/"
  if ! cmp -s "$here/node/package-lock.json" "$cache/node/installed.json"; then
    (cd "$cache/node" && npm ci --silent --no-audit --no-fund)
    cp "$here/node/package-lock.json" "$cache/node/installed.json"
  fi
  # The client needs Node.js 22; the package `node` brings it.
  try node "$cache/node/node_modules/.bin/node" "$cache/node/client.js"
else
  missing JavaScript npm
fi

if command -v go >/dev/null; then
  (cd "$here/go" && CGO_ENABLED=0 nice -n 10 go build -p 1 -trimpath -o "$cache/go-client" .)
  try go "$cache/go-client"
else
  missing Go go
fi

if command -v mvn >/dev/null && command -v javac >/dev/null; then
  if ! cmp -s "$here/java/pom.xml" "$cache/java/pom.xml"; then
    rm -rf "$cache/java"
    # -C: a checksum that does not fit ends the build.
    mvn -q -B -C -f "$here/java/pom.xml" dependency:copy-dependencies -DoutputDirectory="$cache/java/libraries"
    cp "$here/java/pom.xml" "$cache/java/"
  fi
  # The JVM reads no proxy variables: it is told by properties, as docs/proxy.md says.
  try java java "-Dhttps.proxyHost=${address%:*}" "-Dhttps.proxyPort=${address##*:}" -Dhttp.nonProxyHosts= \
    -cp "$cache/java/libraries/*" "$here/java/Client.java"
else
  missing Java "a JDK with mvn"
fi

grep '"log":"audit"' "$work/proxy.log" | grep -q '"decision":"deny"' && { echo "a request was refused:"; grep '"deny"' "$work/proxy.log"; failed=1; }
exit "$failed"
