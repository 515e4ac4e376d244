# shellcheck shell=bash
# Starting a component inside the node, and telling whether it still runs.

components='etcd kube-apiserver kube-controller-manager kube-scheduler containerd kube-network-policies kubelet kube-proxy'

start_component() { # NAME COMMAND...
  local name=$1
  shift
  # shellcheck disable=SC2016  # expanded by the inner shell
  in_node bash -c 'log=$1 pidfile=$2; shift 2; setsid "$@" >"$log" 2>&1 </dev/null & echo $! >"$pidfile"' \
    start "$state/log/$name.log" "$state/node/$name.pid" "$@" 9>&-
}

# A component's pid is one of the node's pid namespace, so it is looked up in the node's own /proc.
component_runs() { # NAME
  local init pid command
  init=$(node_pid) || return 1
  read -r pid 2>/dev/null <"$state/node/$1.pid" || return 1
  command=$(tr '\0' '\n' 2>/dev/null <"/proc/$init/root/proc/$pid/cmdline" | head -n 1) || return 1
  [ "${command##*/}" = "$1" ]
}

# Waits until the command succeeds. Ends the run when time is up, with the log of the component that was waited for, or
# when any component that was started has died, with that one's: it is the likelier cause.
await_component() { # NAME SECONDS WHAT COMMAND...
  local name=$1 until=$((SECONDS + $2)) what=$3 pidfile started
  shift 3
  until "$@"; do
    for pidfile in "$state"/node/*.pid; do
      started=${pidfile##*/}
      component_runs "${started%.pid}" || component_failed "${started%.pid}" "it has ended, while $what of $name was waited for"
    done
    [ "$SECONDS" -lt "$until" ] || component_failed "$name" "$what did not come in time"
    sleep 0.1
  done
}
