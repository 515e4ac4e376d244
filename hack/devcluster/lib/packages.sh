# shellcheck shell=bash
# The Debian packages that the cluster and the images need: installs those whose programs are missing.

# Prints, a line each, a program (or file) and the package that has it.
needed_for() { # cluster|images
  case $1 in
  cluster)
    cat <<'TABLE'
etcd                            etcd-server
containerd                      containerd
runc                            runc
/usr/lib/cni/bridge             containernetworking-plugins
iptables                        iptables
nft                             nftables
conntrack                       conntrack
ethtool                         ethtool
socat                           socat
ip                              iproute2
sysctl                          procps
nsenter                         util-linux
flock                           util-linux
openssl                         openssl
curl                            curl
jq                              jq
TABLE
    ;;
  images)
    cat <<'TABLE'
buildah                         buildah
/etc/containers/policy.json     golang-github-containers-common
runc                            runc
debootstrap                     debootstrap
gcc                             gcc
/usr/include/stdlib.h           libc6-dev
strip                           binutils
jq                              jq
flock                           util-linux
TABLE
    ;;
  esac
}

install_packages() { # cluster|images ...
  local purpose program package missing=()
  while read -r program package; do
    [ -n "$program" ] || continue
    [[ $program != /* ]] || { [ -e "$program" ] || missing+=("$package"); continue; }
    command -v "$program" >/dev/null || missing+=("$package")
  done < <(for purpose in "$@"; do needed_for "$purpose"; done)
  [ ${#missing[@]} -eq 0 ] || install_now "${missing[@]}"
}

install_now() { # PACKAGE...
  local log=$cache/packages.log
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    die "missing here, and installed only by root on Debian: $* (names of Debian packages)"
  fi
  say "installing Debian packages: $*"
  mkdir -p "$cache"
  # A package list may be absent or too old to be served: then, and only then, it is fetched.
  without_services apt_install "$@" >"$log" 2>&1 && return
  {
    apt-get update -q && without_services apt_install "$@"
  } >>"$log" 2>&1 || {
    tail -n 15 "$log" >&2
    die "could not install $*; all of the output is in $log"
  }
}

apt_install() { DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"; }

# Debian starts a package's service when it is installed; the cluster runs its own etcd and containerd.
without_services() {
  local policy=/usr/sbin/policy-rc.d status=0
  [ ! -e "$policy" ] || { "$@"; return; }
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  "$@" || status=$?
  rm -f "$policy"
  return "$status"
}
