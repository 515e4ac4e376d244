# shellcheck shell=bash
# One invocation at a time. The lock files are in the cache, for the state folder comes and goes.

# Holds the named lock on descriptor 9 until the script ends. What is started in the meantime must not inherit it (9>&-).
take_lock() { # NAME
  mkdir -p "$cache/lock"
  exec 9>"$cache/lock/$1"
  if ! flock --nonblock 9; then
    say "another invocation holds $cache/lock/$1, waiting for it"
    flock 9
  fi
}
