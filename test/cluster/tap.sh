# shellcheck shell=bash
# Results in the Test Anything Protocol, and the closing line with the counts.

passed=0
failed=0

ok() {
  passed=$((passed + 1))
  printf 'ok %d - %s\n' $((passed + failed)) "$*"
}

not_ok() {
  failed=$((failed + 1))
  printf 'not ok %d - %s\n' $((passed + failed)) "$*"
}

# Runs a command and records whether it succeeded; its output is shown only when it did not. Not as a condition: there, and
# in every function that is called there, bash ignores `set -e`, and a step that fails before the last would go unnoticed.
check() { # DESCRIPTION COMMAND...
  local description=$1 output status
  shift
  set +e
  output=$(
    set -e
    "$@" 2>&1
  )
  status=$?
  set -e
  if [ "$status" -eq 0 ]; then
    ok "$description"
  else
    not_ok "$description"
    printf '%s\n' "$output" | tail -n 30 | sed 's/^/# /'
  fi
}

# Succeeds when the command fails.
fails() { ! "$@"; }

# Runs the command until it succeeds; fails after SECONDS.
eventually() { # SECONDS COMMAND...
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || return 1
    sleep 0.2
  done
}

# Prints the plan and the counts; fails when a test did, or when none ran.
finish() {
  printf '1..%d\n%d passed, %d failed\n' $((passed + failed)) "$passed" "$failed"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}
