# shellcheck shell=bash
# buildah with a store of its own in the cache.

# buildah leaves mounts behind, and keeps count of them in its run-time folder: a script that builds calls this first. It
# runs the script again in a mount namespace, with a run-time folder, that end with it.
enter_builder() { # SCRIPT ARGUMENTS...
  [ -z "${IMAGES_RUN:-}" ] || return 0
  local run status=0
  run=$(mktemp -d)
  IMAGES_RUN=$run unshare --mount -- "$@" || status=$?
  rm -rf "$run"
  exit "$status"
}

builder() {
  mkdir -p "$cache/buildah"
  buildah --root "$cache/buildah" --runroot "$IMAGES_RUN" --storage-driver overlay "$@"
}
