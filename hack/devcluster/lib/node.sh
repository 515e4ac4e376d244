# shellcheck shell=bash
# The node: network, mount and process namespaces of its own. All of it lives and dies with one process, its first, so
# that ending that process ends every component, shim and container, and unmounts what they mounted.

boot_id() { cat /proc/sys/kernel/random/boot_id; }

# Prints the pid of the node's first process, if the record is of a process that still runs. With its start time (field
# 22 of /proc/PID/stat) and the boot, another process that was given the same pid is told apart.
node_pid() {
  local pid start boot stat fields
  read -r pid start boot 2>/dev/null <"$state/node/init" || return 1
  [ "$boot" = "$(boot_id)" ] || return 1
  stat=$(cat "/proc/$pid/stat" 2>/dev/null) || return 1
  # The second field, the command in parentheses, may hold anything; what is behind it starts with the state.
  read -r -a fields <<<"${stat##*) }"
  [ "${fields[0]}" != Z ] && [ "${fields[19]}" = "$start" ] || return 1
  printf '%s\n' "$pid"
}

in_node() {
  local pid
  pid=$(node_pid) || die "the node of cluster '$cluster' does not run: start it with hack/devcluster/up"
  nsenter --target "$pid" --mount --net --pid -- "$@"
}

create_node() {
  # Built into some kernels, and loaded on others by whoever needs them first; what is missing all the same, shows below.
  modprobe --all --quiet overlay br_netfilter nfnetlink_queue 2>/dev/null || true
  ip netns add "$netns"
  ip link add "$veth" type veth peer name eth0 netns "$netns"
  ip addr add "$host_ip/30" dev "$veth"
  ip link set "$veth" up
  ip -n "$netns" link set lo up
  ip -n "$netns" addr add "$node_ip/30" dev eth0
  ip -n "$netns" link set eth0 up
  ip -n "$netns" route add default via "$host_ip"
  ip route add "$pod_cidr" via "$node_ip"
  create_cgroups

  mkdir -p "$state/node"
  setsid nsenter --net="/var/run/netns/$netns" unshare --mount --pid --fork \
    "$devcluster/lib/node-init" "$state" >"$state/log/node.log" 2>&1 </dev/null 9>&- &
  wait_for 10 node_pid >/dev/null || component_failed node "its first process did not start"
  # Packets that the bridge forwards between pods must pass the policies too.
  in_node sysctl -q -w net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1
}

# Prints the mount point of every cgroup hierarchy: one with cgroup v2, one a controller with v1.
cgroup_hierarchies() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts; }

create_cgroups() {
  local hierarchy setting
  while read -r hierarchy; do
    mkdir -p "$hierarchy/$cgroup"
    # A new cpuset of v1 is empty, and nothing can run in it.
    for setting in cpuset.cpus cpuset.mems; do
      if [ -f "$hierarchy/$setting" ]; then cat "$hierarchy/$setting" >"$hierarchy/$cgroup/$setting"; fi
    done
    # By default all pods together weigh as much as one process of the host: a busy machine would cost the operator its
    # Lease. The share of four leaves the control plane its own.
    if [ -f "$hierarchy/$cgroup/cpu.shares" ]; then echo 4096 >"$hierarchy/$cgroup/cpu.shares"; fi
    if [ -f "$hierarchy/$cgroup/cpu.weight" ]; then echo 400 >"$hierarchy/$cgroup/cpu.weight"; fi
  done < <(cgroup_hierarchies)
}

# Runs the command every 50 ms until it succeeds; fails after SECONDS.
wait_for() { # SECONDS COMMAND...
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || return 1
    sleep 0.05
  done
}
