# shellcheck shell=bash
# containerd with its CNI chain, and loading image archives into it.

start_containerd() {
  local plugin
  mkdir -p "$state/containerd" "$state/cni/bin" "$state/cni/conf"
  for plugin in bridge host-local portmap loopback; do ln -sf "/usr/lib/cni/$plugin" "$state/cni/bin/$plugin"; done
  # A copy, so that a cluster goes on when the checkout that started it is gone.
  install -m 0755 "$devcluster/cni/announce" "$state/cni/bin/announce"
  # The leases are kept with the state: elsewhere they would outlive it and use up the addresses.
  cat >"$state/cni/conf/10-bridge.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "$cluster", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$state/cni/leases", "ranges": [[{"subnet": "$pod_cidr"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "announce", "socket": "$announce_socket"}
]}
JSON
  # restrict_oom_score_adj: runc cannot lower the score without CAP_SYS_RESOURCE. The opt plugin would make /opt/containerd.
  cat >"$state/containerd/config.toml" <<TOML
version = 2
root = "$state/containerd/root"
state = "$state/containerd/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "$containerd_socket"
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
sandbox_image = "localhost/pause:devcluster"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$state/cni/bin"
conf_dir = "$state/cni/conf"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
TOML
  start_component containerd containerd --config "$state/containerd/config.toml"
}

container_runtime() { ctr --address "$containerd_socket" --namespace k8s.io "$@"; }

containerd_ready() { container_runtime version >/dev/null 2>&1; }

await_containerd() { await_component containerd 30 "an answer on its socket" containerd_ready; }

# Loads an OCI or Docker archive; its images are known by the names that the archive gives them.
load_archive() { # ARCHIVE
  container_runtime images import "$1"
}
