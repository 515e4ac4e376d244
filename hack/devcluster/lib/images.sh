# shellcheck shell=bash
# The images that the cluster itself runs, as archives in the cache: a restart only loads them.

# Prints the path of the archive of localhost/NAME:devcluster, which holds FILE as FOLDER's Containerfile says; builds it
# first when the cache has none for these.
cluster_image() { # NAME FOLDER FILE
  local archive context log=$cache/images/$1.log
  archive=$cache/images/$1-$(cat "$2/Containerfile" "$3" | sha256sum | cut -c -16).tar
  if [ ! -e "$archive" ]; then
    mkdir -p "$cache/images"
    progress "building the image of $1"
    context=$(mktemp -d)
    cp "$3" "$context/$1"
    "$devcluster/../images/archive" "localhost/$1:devcluster" "$2/Containerfile" "$context" "$archive" >"$log" 2>&1 9>&- || {
      tail -n 20 "$log" >&2
      die "building the image of $1 failed; all of the output is in $log"
    }
    rm -rf "$context"
  fi
  printf '%s\n' "$archive"
}

# Prints the path of the static pause program.
pause_program() {
  local folder
  folder=$cache/pause/$(sha256sum "$devcluster/images/pause/pause.c" | cut -c -16)
  if [ ! -x "$folder/pause" ]; then
    mkdir -p "$folder"
    gcc -Os -static -o "$folder/pause.partial" "$devcluster/images/pause/pause.c"
    strip "$folder/pause.partial"
    mv "$folder/pause.partial" "$folder/pause"
  fi
  printf '%s\n' "$folder/pause"
}
