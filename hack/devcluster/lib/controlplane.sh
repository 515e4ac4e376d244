# shellcheck shell=bash
# etcd, the API server, the controllers and the scheduler.

start_etcd_and_api_server() {
  local pki=$state/pki
  # Without fsync: the cluster is thrown away, not repaired.
  start_component etcd etcd --name "$cluster" --data-dir "$state/etcd" --unsafe-no-fsync --quota-backend-bytes 2147483648 \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster "$cluster=http://127.0.0.1:2380"
  local flags=(
    --etcd-servers=http://127.0.0.1:2379
    --advertise-address="$node_ip"
    --service-cluster-ip-range="$service_cidr"
    --allow-privileged=true
    --authorization-mode="Node,RBAC"
    --enable-admission-plugins=NodeRestriction
    # The first is beta and off by default in this version. The second asks etcd for what Debian's is too old to answer.
    --feature-gates="MutatingAdmissionPolicy=true,SizeBasedListCostEstimate=false"
    --runtime-config=admissionregistration.k8s.io/v1beta1=true
    --client-ca-file="$pki/ca.crt"
    --tls-cert-file="$pki/apiserver.crt"
    --tls-private-key-file="$pki/apiserver.key"
    --service-account-issuer=https://kubernetes.default.svc
    --service-account-key-file="$pki/sa.pub"
    --service-account-signing-key-file="$pki/sa.key"
    # The node's name resolves nowhere, so exec and logs must go by address.
    --kubelet-preferred-address-types=InternalIP
    --kubelet-certificate-authority="$pki/ca.crt"
    --kubelet-client-certificate="$pki/apiserver-kubelet-client.crt"
    --kubelet-client-key="$pki/apiserver-kubelet-client.key"
    --proxy-client-cert-file="$pki/front-proxy.crt"
    --proxy-client-key-file="$pki/front-proxy.key"
    --requestheader-client-ca-file="$pki/ca.crt"
    --requestheader-allowed-names=front-proxy
    --requestheader-username-headers=X-Remote-User
    --requestheader-group-headers=X-Remote-Group
    --requestheader-extra-headers-prefix=X-Remote-Extra-
    # Tests read it: every request, written before it is answered, at most two files of 200 MB.
    --audit-policy-file="$devcluster/manifests/audit-policy.yaml"
    --audit-log-path="$state/log/audit.log"
    --audit-log-format=json
    --audit-log-maxsize=200
    --audit-log-maxbackup=1
  )
  start_component kube-apiserver "$state/bin/kube-apiserver" "${flags[@]}"
}

# GET of a path, as the administrator.
api() { # PATH
  curl --silent --fail --max-time 5 --noproxy '*' --cacert "$state/pki/ca.crt" \
    --cert "$state/pki/admin.crt" --key "$state/pki/admin.key" "$api_server$1"
}

api_server_ready() { [ "$(api /readyz 2>/dev/null)" = ok ]; }

await_api_server() { await_component kube-apiserver 120 readiness api_server_ready; }

start_controllers_and_scheduler() {
  local pki=$state/pki
  # The clients' own throttling is for clusters with many nodes; here it only makes the first seconds slow.
  local unthrottled=(--kube-api-qps=500 --kube-api-burst=1000)
  start_component kube-controller-manager "$state/bin/kube-controller-manager" \
    --kubeconfig="$pki/kube-controller-manager.kubeconfig" \
    --authentication-kubeconfig="$pki/kube-controller-manager.kubeconfig" \
    --authorization-kubeconfig="$pki/kube-controller-manager.kubeconfig" \
    --bind-address=127.0.0.1 --leader-elect=false --use-service-account-credentials=true \
    --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
    --allocate-node-cidrs=true --cluster-cidr="$pod_cidr" --node-cidr-mask-size=24 "${unthrottled[@]}"
  start_component kube-scheduler "$state/bin/kube-scheduler" --kubeconfig="$pki/kube-scheduler.kubeconfig" \
    --bind-address=127.0.0.1 --leader-elect=false "${unthrottled[@]}"
}
