# shellcheck shell=bash
# What the scripts tell the person who runs them. Standard output is left to data.

say() { printf '%s\n' "$*" >&2; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Prints the seconds since the shell started with the message: for steps that take a while.
progress() { printf '[%3ds] %s\n' "$SECONDS" "$*" >&2; }

# Ends the run because a component failed: says which, what was waited for, and what its log says last.
component_failed() { # NAME WHAT
  local log=$state/log/$1.log
  printf 'error: %s: %s. The end of its log, %s:\n' "$1" "$2" "$log" >&2
  tail -n 20 "$log" 2>/dev/null | cut -c -400 | sed 's/^/  | /' >&2 || true
  exit 1
}
