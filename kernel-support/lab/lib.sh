# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
# Sourced by every script of the lab: where things are, and how to talk to the user.

lab_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo_dir=$(cd "$lab_dir/../.." && pwd)
cache_dir=${XDG_CACHE_HOME:-$HOME/.cache}/gpurx
# The scripts that source this file use them.
export lab_dir repo_dir cache_dir

note() { printf '%s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

sha256_of() { sha256sum -- "$1" | cut -d' ' -f1; }
sha256_of_text() { sha256sum | cut -d' ' -f1; }

# lock NAME: hold an exclusive lock on NAME until this shell ends. Whoever comes second waits and says so.
lock() {
    local file=$cache_dir/locks/$1 fd
    mkdir -p "${file%/*}"
    exec {fd}>"$file"
    if ! flock -n "$fd"; then
        note "waiting for another run that holds the lock '$1' ..."
        flock "$fd"
    fi
}

# as_root CMD...: run CMD as root, through sudo where we are not.
as_root() {
    if (($(id -u) == 0)); then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo -- "$@"
    else
        die "root is needed for: $* (and there is no sudo)"
    fi
}

os_release() { (. /etc/os-release && printf '%s' "${!1:-}"); }
