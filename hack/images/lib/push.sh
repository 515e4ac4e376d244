# shellcheck shell=bash
# Images for a cluster of one's own: built with the container tool that is there, pushed to a registry.

container_tool() {
  local tool
  for tool in podman docker buildah; do
    # The docker command alone builds nothing.
    if command -v "$tool" >/dev/null && { [ "$tool" != docker ] || docker info >/dev/null 2>&1; }; then
      echo "$tool"
      return
    fi
  done
  die "CLUSTER=current builds and pushes images: install podman or buildah, or docker and start its daemon"
}

push_program() { # PROGRAM BASE-IMAGE
  local name=$IMAGE_REGISTRY/cli-mcp-$1:$tag tool context
  local -a arguments
  tool=$(container_tool)
  context=$(mktemp -d)
  stage_context "$1" "$context"
  mapfile -t arguments < <(prebuilt_arguments "$1" "$2")
  "$tool" build --tag "$name" "${arguments[@]}" "$context"
  rm -rf "$context"
  "$tool" push "$name"
  progress "$name is pushed"
}
