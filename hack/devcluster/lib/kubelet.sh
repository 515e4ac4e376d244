# shellcheck shell=bash
# The kubelet and kube-proxy.

start_kubelet_and_kube_proxy() {
  local pki=$state/pki
  mkdir -p "$state/kubelet"
  # For pods that ask for the node's DNS: no name outside the cluster resolves.
  : >"$state/node/resolv.conf"
  # An image that the kubelet removes to save space could not be pulled again: it never does, and the thresholds of
  # eviction are those of a disk that is nearly full. Processes of a pod are limited as OpenShift does. A pod that writes
  # too much is found out in seconds: the default is a minute. As many pods as the node has addresses for, with some to
  # spare for those that go away.
  cat >"$state/kubelet/config.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $pki/ca.crt}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
clusterDNS: [$dns_service_ip]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://$containerd_socket
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
failCgroupV1: false
failSwapOn: false
imageGCHighThresholdPercent: 100
kubeAPIQPS: 500
kubeAPIBurst: 1000
maxPods: 240
podPidsLimit: 4096
podLogsDir: $state/log/pods
resolvConf: $state/node/resolv.conf
tlsCertFile: $pki/kubelet.crt
tlsPrivateKeyFile: $pki/kubelet.key
volumeStatsAggPeriod: 10s
volumePluginDir: $state/kubelet/volume-plugins
YAML
  start_component kubelet "$state/bin/kubelet" --config="$state/kubelet/config.yaml" --kubeconfig="$pki/kubelet.kubeconfig" \
    --hostname-override="$node" --node-ip="$node_ip" --root-dir="$state/kubelet"
  start_component kube-proxy "$state/bin/kube-proxy" --kubeconfig="$pki/kube-proxy.kubeconfig" --proxy-mode=nftables \
    --cluster-cidr="$pod_cidr" --hostname-override="$node" --conntrack-max-per-core=0
}

node_ready() {
  api "/api/v1/nodes/$node" 2>/dev/null |
    jq --exit-status '.status.conditions | any(.type == "Ready" and .status == "True")' >/dev/null
}

await_node() { await_component kubelet 60 "a Ready node" node_ready; }
