# shellcheck shell=bash
# Cluster DNS, an ordinary Deployment of the cluster.

deploy_dns() {
  KUBECONFIG=$kubeconfig "$state/bin/kubectl" apply --server-side -f "$devcluster/manifests/coredns.yaml" >"$state/log/coredns.log" 2>&1 ||
    component_failed coredns "its manifests were refused"
}

dns_ready() {
  api /apis/apps/v1/namespaces/kube-system/deployments/coredns 2>/dev/null |
    jq --exit-status '.status.readyReplicas == 1' >/dev/null
}

await_dns() {
  wait_for 80 dns_ready && return
  {
    KUBECONFIG=$kubeconfig "$state/bin/kubectl" --namespace kube-system get pods --selector k8s-app=kube-dns --output wide
    KUBECONFIG=$kubeconfig "$state/bin/kubectl" --namespace kube-system events --types Warning | tail -n 6
    KUBECONFIG=$kubeconfig "$state/bin/kubectl" --namespace kube-system logs deployment/coredns --tail=10
  } >>"$state/log/coredns.log" 2>&1 || true
  component_failed coredns "it did not become ready in time"
}
