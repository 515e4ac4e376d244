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

remove_cluster() {
  local pids mountpoint
  [ ! -d "$state" ] || [ -e "$state/$state_marker" ] || [ -z "$(ls -A "$state")" ] ||
    die "$state holds something else than a development cluster (no $state_marker in it): choose another DEVCLUSTER_STATE"
  mapfile -t pids < <(node_processes | sort -u)
  if [ ${#pids[@]} -gt 0 ]; then
    kill -KILL "${pids[@]}" 2>/dev/null || true
    wait_for 20 node_processes_gone "${pids[@]}" || die "processes of the cluster do not end: ${pids[*]}"
  fi
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
