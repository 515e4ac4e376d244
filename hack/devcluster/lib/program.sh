# shellcheck shell=bash
# The Go program with every component: built once per content of its module, and kept in the cache.

# Prints the path of the program; builds it first when the cache has none for this content and this Go version.
program() {
  local module=$1 sources hash folder
  command -v go >/dev/null || die "go is missing: building the cluster's components needs the Go that $module/go.mod names"
  mapfile -t sources < <(cd "$module" && find . '(' -name '*.go' ! -name '*_test.go' ')' -o -name go.mod -o -name go.sum | LC_ALL=C sort)
  hash=$({
    cd "$module"
    go env GOVERSION GOARCH
    sha256sum "${sources[@]}"
  } | sha256sum | cut -c -16)
  folder=$cache/devcluster/$hash
  if [ ! -x "$folder/devcluster" ]; then
    (
      take_lock build
      [ -x "$folder/devcluster" ] || build_program "$module" "$folder"
    )
  fi
  printf '%s\n' "$folder/devcluster"
}

build_program() { # MODULE FOLDER
  local module=$1 folder=$2 version major minor variables builder elapsed=0 status=0
  version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' "$module/go.mod")
  IFS=. read -r major minor _ <<<"${version#v}"
  variables=k8s.io/component-base/version
  mkdir -p "$folder"
  progress "building Kubernetes $version and the other components: some 8 minutes on 2 cores the first time, then kept in $folder"
  # GOFLAGS is set so that a person's own flags build the same program.
  (
    cd "$module"
    CGO_ENABLED=0 GOFLAGS='-mod=readonly -trimpath -buildvcs=false' exec go build -o "$folder/devcluster.$$" \
      -ldflags "-s -w -X $variables.gitVersion=$version -X $variables.gitMajor=$major -X $variables.gitMinor=$minor" .
  ) >"$folder/build.log" 2>&1 9>&- &
  builder=$!
  while kill -0 "$builder" 2>/dev/null; do
    sleep 1
    elapsed=$((elapsed + 1))
    [ $((elapsed % 30)) -ne 0 ] || progress "still building, for $elapsed s now"
  done
  wait "$builder" || status=$?
  [ "$status" -eq 0 ] || {
    tail -n 20 "$folder/build.log" >&2
    die "building the components failed with exit code $status; all of the output is in $folder/build.log"
  }
  mv "$folder/devcluster.$$" "$folder/devcluster"
  progress "built the components"
}

# Prints a hash of all that makes the cluster what it is: the scripts, the manifests and the program's source.
recipe_hash() {
  (
    cd "$devcluster"
    find . -type f ! -name '*.md' ! -name '*_test.go' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c -16
  )
}
