# shellcheck shell=bash
# shellcheck disable=SC2034  # read by the files that source this one
# Names, addresses and folders of one cluster. All follow from DEVCLUSTER_NAME, so that clusters can stand side by side.

cluster=${DEVCLUSTER_NAME:-dev}
[[ $cluster =~ ^[a-z][a-z0-9]{0,7}$ ]] ||
  die "DEVCLUSTER_NAME is '$cluster': use a lower-case letter, then at most 7 lower-case letters or digits"

# The default cluster has slot 0, and with it the addresses that the documentation names.
slot=0
[ "$cluster" = dev ] || slot=$(($(cksum <<<"$cluster" | cut -d' ' -f1) % 63 + 1))
node_ip=172.31.255.$((4 * slot + 1))
host_ip=172.31.255.$((4 * slot + 2))
pod_cidr=10.244.$slot.0/24
# Service addresses exist only inside the node's network namespace: every cluster has the same.
service_cidr=10.96.0.0/16
api_service_ip=10.96.0.1
dns_service_ip=10.96.0.10
api_server=https://$node_ip:6443

netns=cli-mcp-$cluster
veth=climcp-$cluster
node=$cluster
cgroup=cli-mcp-$cluster
policy_queue=100

if [ -n "${DEVCLUSTER_STATE:-}" ]; then
  state=$DEVCLUSTER_STATE
elif [ "$cluster" = dev ]; then
  state=/var/tmp/cli-mcp-devcluster
else
  state=/var/tmp/cli-mcp-devcluster-$cluster
fi
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cli-mcp-operator
for folder in "$state" "$cache"; do
  [[ $folder == /*/* && $folder != *[[:space:]:]* ]] ||
    die "folder '$folder': give an absolute path below a folder, without spaces or colons (DEVCLUSTER_STATE, XDG_CACHE_HOME)"
  # The node has empty folders of its own in these places, see node-init.
  [[ $folder != /run/* && $folder != /var/run/* && $folder != /var/lib/* && $folder != /var/log/* ]] ||
    die "folder '$folder': choose one that is not under /run, /var/lib or /var/log (DEVCLUSTER_STATE, XDG_CACHE_HOME)"
done

# Marks the state folder as one that may be deleted whole.
state_marker=.cli-mcp-devcluster

kubeconfig=$state/kubeconfig
containerd_socket=$state/containerd/containerd.sock
announce_socket=$state/node/announce.sock
