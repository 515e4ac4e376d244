# shellcheck shell=bash
# The base image of the sandbox where nothing can be pulled: made with debootstrap, once, and kept in buildah's store.

# Prints the name of the base image; builds it first when the store has none for these files.
sandbox_base() { # KUBECTL
  local hash image log=$cache/images/sandbox-base.log
  hash=$(cat "$images/base/packages" "$images/base/Containerfile" "$images/base/build" "$1" | sha256sum | cut -c -16)
  image=localhost/cli-mcp-sandbox-base:$hash
  if ! builder inspect --type image "$image" >/dev/null 2>&1; then
    mkdir -p "$cache/images"
    progress "building the sandbox's base image from Debian packages: one to two minutes, then kept in $cache"
    "$images/base/build" "$image" "$1" >"$log" 2>&1 || {
      tail -n 20 "$log" >&2
      die "building the base image failed; all of the output is in $log"
    }
    progress "built the sandbox's base image"
  fi
  printf '%s\n' "$image"
}
