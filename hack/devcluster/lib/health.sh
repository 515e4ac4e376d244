# shellcheck shell=bash
# Is the cluster healthy, and if not, why?

# Prints a line for each process that is missing; succeeds when none is.
missing_processes() {
  local name found=0
  if ! node_pid >/dev/null; then
    echo "the node does not run"
    return 1
  fi
  for name in $components; do component_runs "$name" || { echo "$name does not run"; found=1; }; done
  return "$found"
}

# Prints a line for each thing that is wrong; succeeds when nothing is.
ailments() {
  local found=0
  missing_processes || return 1
  api_server_ready || { echo "the API server is not ready"; found=1; }
  enforcer_attached || { echo "the NetworkPolicy enforcer is not attached to its queue"; found=1; }
  [ "$found" -eq 0 ] || return 1
  node_ready || { echo "the node is not Ready"; found=1; }
  dns_ready || { echo "CoreDNS is not ready"; found=1; }
  return "$found"
}

# Like ailments, but patient while every process runs: a busy machine makes a cluster slow, which is no reason to remake it.
lasting_ailments() {
  local until=$((SECONDS + 60)) found
  until found=$(ailments); do
    if ! missing_processes >/dev/null || [ "$SECONDS" -ge "$until" ]; then
      printf '%s\n' "$found"
      return 1
    fi
    sleep 1
  done
}
