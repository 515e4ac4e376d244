# shellcheck shell=bash
# Removing a cluster, in whatever condition it is: running, killed, half made, or from before a reboot.

# Pids of the node as the host sees them: its recorded first process, and all in its network namespace (which finds a
# node that has not recorded itself). The kernel ends every other process of a pid namespace with its first.
node_processes() {
  node_pid || true
  ip netns pids "$netns" 2>/dev/null || true
}

# A process that has ended and was not waited for by its parent yet (a zombie) counts as gone: nothing of it runs.
node_processes_gone() {
  local pid stat
  for pid in "$@"; do
    stat=$(cat "/proc/$pid/stat" 2>/dev/null) || continue
    [[ ${stat##*) } == Z* ]] || return 1
  done
}

# Ends all that there are now: a fork bomb makes others meanwhile.
end_node_processes() {
  local pids
  mapfile -t pids < <(node_processes | sort -u)
  [ ${#pids[@]} -gt 0 ] || return 0
  kill -KILL "${pids[@]}" 2>/dev/null || true
  node_processes_gone "${pids[@]}"
}

# A process needs processor time to die, and a thousand of them in one pod share that of the pod's limit.
lift_cpu_limits() {
  local hierarchy
  while read -r hierarchy; do
    [ -d "$hierarchy/$cgroup" ] || continue
    find "$hierarchy/$cgroup" -name cpu.cfs_quota_us -exec sh -c 'echo -1 >"$1"' _ {} \; 2>/dev/null || true
    find "$hierarchy/$cgroup" -name cpu.max -exec sh -c 'echo max >"$1"' _ {} \; 2>/dev/null || true
  done < <(cgroup_hierarchies)
}

remove_cluster() {
  local mountpoint
  [ ! -d "$state" ] || [ -e "$state/$state_marker" ] || [ -z "$(ls -A "$state")" ] ||
    die "$state holds something else than a development cluster (no $state_marker in it): choose another DEVCLUSTER_STATE"
  lift_cpu_limits
  wait_for 60 end_node_processes || die "processes of the cluster do not end: $(node_processes | sort -u | xargs)"
  ip netns delete "$netns" 2>/dev/null || true
  # iproute2 mounts this folder onto itself for its first namespace, and leaves it so after the last.
  if [ -d /run/netns ] && [ -z "$(ls -A /run/netns)" ]; then
    umount /run/netns 2>/dev/null || true
    rmdir /run/netns
  fi
  ip link delete "$veth" 2>/dev/null || true
  wait_for 20 remove_cgroups || die "cgroups of the cluster cannot be removed: find /sys/fs/cgroup -name '$cgroup'"
  # The node's mounts ended with its mount namespace; these could only be of something else, and must not be deleted through.
  while read -r mountpoint; do umount --lazy "$mountpoint"; done < <(awk -v state="$state/" 'index($2, state) == 1 { print $2 }' /proc/mounts | sort -r)
  rm -rf --one-file-system "$state"
}

# A cgroup can be removed once its last process is gone from it, children first.
remove_cgroups() {
  local hierarchy
  while read -r hierarchy; do
    [ -d "$hierarchy/$cgroup" ] || continue
    find "$hierarchy/$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || return 1
  done < <(cgroup_hierarchies)
}
