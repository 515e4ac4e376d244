# shellcheck shell=bash
# Keys and certificates: one CA for everything, and one kubeconfig for each client of the API server.

create_pki() {
  local pki=$state/pki
  mkdir -p "$pki"
  issue_ca "$pki"
  openssl ecparam -name prime256v1 -genkey -noout -out "$pki/sa.key"
  openssl ec -in "$pki/sa.key" -pubout -out "$pki/sa.pub" 2>/dev/null
  issue "$pki" apiserver /CN=kube-apiserver \
    "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:$api_service_ip,IP:$node_ip"
  issue "$pki" kubelet "/O=system:nodes/CN=system:node:$node" "DNS:$node,IP:$node_ip"
  issue "$pki" admin /O=system:masters/CN=admin
  issue "$pki" apiserver-kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
  issue "$pki" front-proxy /CN=front-proxy
  issue "$pki" kube-controller-manager /CN=system:kube-controller-manager
  issue "$pki" kube-scheduler /CN=system:kube-scheduler
  issue "$pki" kube-proxy /CN=system:kube-proxy
  issue "$pki" kube-network-policies /O=system:masters/CN=kube-network-policies
  local client
  for client in kubelet kube-controller-manager kube-scheduler kube-proxy kube-network-policies; do
    write_kubeconfig "$pki" "$client" "$pki/$client.kubeconfig"
  done
  write_kubeconfig "$pki" admin "$kubeconfig"
}

# A private key and a certificate request without the defaults of the machine's openssl.cnf.
request() { # PKI NAME SUBJECT
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$1/$2.key" -out "$1/$2.csr" \
    -subj "$3" -config <(printf '[req]\ndistinguished_name=dn\n[dn]\n') 2>/dev/null
}

issue_ca() { # PKI
  request "$1" ca "/CN=cli-mcp-$cluster-ca"
  openssl x509 -req -in "$1/ca.csr" -signkey "$1/ca.key" -days 365 -out "$1/ca.crt" -extfile <(
    printf 'basicConstraints=critical,CA:TRUE\nkeyUsage=critical,digitalSignature,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n'
  ) 2>/dev/null
}

issue() { # PKI NAME SUBJECT [ALTERNATIVE-NAMES]
  request "$1" "$2" "$3"
  openssl x509 -req -in "$1/$2.csr" -CA "$1/ca.crt" -CAkey "$1/ca.key" -CAcreateserial -days 365 -out "$1/$2.crt" -extfile <(
    printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n'
    printf 'extendedKeyUsage=serverAuth,clientAuth\nauthorityKeyIdentifier=keyid\n'
    if [ -n "${4:-}" ]; then printf 'subjectAltName=%s\n' "$4"; fi
  ) 2>/dev/null
}

write_kubeconfig() { # PKI USER FILE
  (umask 077 && cat >"$3.partial") <<YAML
apiVersion: v1
kind: Config
clusters:
- name: cli-mcp-$cluster
  cluster:
    server: $api_server
    certificate-authority-data: $(base64 -w 0 "$1/ca.crt")
users:
- name: $2
  user:
    client-certificate-data: $(base64 -w 0 "$1/$2.crt")
    client-key-data: $(base64 -w 0 "$1/$2.key")
contexts:
- name: cli-mcp-$cluster
  context: {cluster: cli-mcp-$cluster, user: $2}
current-context: cli-mcp-$cluster
YAML
  mv "$3.partial" "$3"
}
