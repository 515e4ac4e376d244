# shellcheck shell=bash
# NetworkPolicy: new connections of pods wait in a netfilter queue for the enforcer's verdict; with no enforcer they are
# dropped.

start_enforcer() {
  start_component kube-network-policies "$state/bin/kube-network-policies" \
    --kubeconfig="$state/pki/kube-network-policies.kubeconfig" --hostname-override="$node" --queue-id="$policy_queue" \
    --announce-socket="$announce_socket"
  queue_new_connections
}

# The enforcer's own rules need nftables' queue expression, which not every kernel has (it says so in its log, and goes
# on). These do the same through iptables, and cover INPUT too: traffic of a pod to the API server or the kubelet on
# this node passes only there. The node's own traffic (probes, exec, webhooks) is root's, and is not judged.
queue_new_connections() {
  in_node iptables-restore --noflush <<RULES
*mangle
:POLICY-POSTROUTING - [0:0]
:POLICY-INPUT - [0:0]
-A POLICY-POSTROUTING -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN
-A POLICY-POSTROUTING -m owner --uid-owner 0 -j RETURN
-A POLICY-POSTROUTING -s $pod_cidr -j NFQUEUE --queue-num $policy_queue
-A POLICY-POSTROUTING -d $pod_cidr -j NFQUEUE --queue-num $policy_queue
-A POLICY-INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN
-A POLICY-INPUT -s $pod_cidr -j NFQUEUE --queue-num $policy_queue
-A POSTROUTING -j POLICY-POSTROUTING
-A INPUT -j POLICY-INPUT
COMMIT
RULES
  # Pods have IPv4 addresses only, but the kernel gives every interface a link-local one of IPv6: no way around the rules.
  in_node ip6tables-restore --noflush <<RULES
*mangle
-A POSTROUTING ! -o lo -j DROP
-A INPUT ! -i lo -j DROP
-A FORWARD -j DROP
COMMIT
RULES
}

# Is a process bound to the queue? The first field of each line is a queue's number.
enforcer_attached() {
  local init
  init=$(node_pid) || return 1
  awk -v queue="$policy_queue" '$1 == queue { found = 1 } END { exit !found }' \
    "/proc/$init/net/netfilter/nfnetlink_queue" 2>/dev/null && [ -S "$announce_socket" ]
}

await_enforcer() { await_component kube-network-policies 60 "its queue and socket" enforcer_attached; }
