# shellcheck shell=bash
# Images for the development cluster: built with buildah on local bases, loaded into the cluster's containerd.

# Builds and loads the image of one program, unless the cluster has it already.
load_program() { # PROGRAM BASE-IMAGE
  local name=localhost/cli-mcp-$1:$tag record=$state/images/$1-$tag hash id context log=$cache/images/$1.log
  local -a arguments
  hash=$(inputs_hash "$1" "$2")
  if [ "$(cat "$record" 2>/dev/null)" = "$hash $(loaded_digest "$name")" ]; then
    touch "$record"
    progress "$name is loaded already"
    return
  fi
  if tag_twin "$1" "$name" "$hash"; then
    printf '%s %s\n' "$hash" "$(loaded_digest "$name")" >"$record"
    progress "$name is loaded already under another tag"
    return
  fi
  # The store keeps an image under the hash of its inputs: after a restart of the cluster it is only loaded again.
  if ! builder inspect --type image "localhost/cli-mcp-$1:$hash" >/dev/null 2>&1; then
    context=$(mktemp -d)
    stage_context "$1" "$context"
    mapfile -t arguments < <(prebuilt_arguments "$1" "$2")
    # chroot: the commands of a Containerfile run without a container runtime of their own, and without its set-up time.
    builder build --quiet --isolation chroot --tag "localhost/cli-mcp-$1:$hash" "${arguments[@]}" "$context" >"$log" 2>&1 || {
      tail -n 20 "$log" >&2
      die "building $name failed; all of the output is in $log"
    }
    rm -rf "$context"
    built=yes
  fi
  # Uncompressed, and in the one format that buildah leaves uncompressed: most of an agent's image is its base. By its id,
  # for by its name the archive would name the store's tag too.
  id=$(builder inspect --type image --format '{{.FromImageID}}' "localhost/cli-mcp-$1:$hash")
  builder push --quiet "$id" "docker-archive:/dev/stdout:$name" | load_archive - >>"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "loading $name failed; all of the output is in $log"
  }
  printf '%s %s\n' "$hash" "$(loaded_digest "$name")" >"$record"
  progress "$name is loaded"
}

# Gives the name to an image of the program that the cluster has under another tag, made from the same inputs, if it has one.
tag_twin() { # PROGRAM NAME HASH
  local record twin digest hash
  for record in "$state/images/$1"-*; do
    [ -e "$record" ] || continue
    read -r hash digest <"$record"
    twin=localhost/cli-mcp-$1:${record#"$state/images/$1-"}
    if [ "$hash" = "$3" ] && [ -n "$digest" ] && [ "$(loaded_digest "$twin")" = "$digest" ]; then
      container_runtime images tag --force "$twin" "$2" >/dev/null
      return
    fi
  done
  return 1
}

# Prints the digest of an image that the cluster has.
loaded_digest() { # NAME
  container_runtime images ls "name==$1" | awk -v name="$1" '$1 == name { print $3 }'
}

# Removes images of earlier builds from the cluster: of each program, those that were not asked for lately, and those that
# no name is left of. Containers that run one keep its files until they end.
prune_cluster() {
  local program record kept=10
  for program in $programs; do
    find "$state/images" -name "$program-*" -printf '%T@ %p\n' | sort -rn | tail -n "+$((kept + 1))" | cut -d' ' -f2 |
      while read -r record; do
        container_runtime images rm "localhost/cli-mcp-$program:${record#"$state/images/$program-"}" >/dev/null 2>&1 || true
        rm -f "$record"
      done
  done
  container_runtime images ls |
    awk 'NR > 1 { if ($1 ~ /^sha256:/) nameless[$1] = $3; else named[$3] = 1 }
         END { for (image in nameless) if (!(nameless[image] in named)) print image }' |
    xargs --no-run-if-empty ctr --address "$containerd_socket" --namespace k8s.io images rm >/dev/null
}

# Removes what earlier builds left in the store: of each the newest few stay.
prune_store() {
  local repository name kept=3
  # buildah keeps the working containers of the stages, and with them their images.
  builder rm --all >/dev/null
  for repository in $programs sandbox-base; do
    builder images --json --filter "reference=localhost/cli-mcp-$repository" |
      jq --raw-output --argjson kept "$kept" 'sort_by(.createdatraw) | reverse | .[$kept:] | .[].names[]' |
      while read -r name; do builder rmi "$name" >/dev/null; done
  done
  builder rmi --prune >/dev/null
}
