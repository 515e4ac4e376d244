#!/usr/bin/env bash
# Checks every shell script of the repository with shellcheck, which it installs where it may.
set -euo pipefail

cd "$(dirname "$0")/.."
if ! command -v shellcheck >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        hack/devcluster/packages shellcheck
    else
        echo "error: shellcheck is not installed; install it with your package manager" >&2
        exit 1
    fi
fi
git ls-files -z --cached --others --exclude-standard |
    xargs -0 awk 'FNR == 1 { if (/^#!.*bash/) printf "%s%c", FILENAME, 0; nextfile }' |
    xargs -0 shellcheck --check-sourced --external-sources
