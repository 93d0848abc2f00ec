# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
# Sourced by every script of the lab: where things are, and how to talk to the user.

lab_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo_dir=$(cd "$lab_dir/../.." && pwd)
cache_dir=${XDG_CACHE_HOME:-$HOME/.cache}/gpurx
series_dir=$repo_dir/kernel-support/linux-7.3
# The series of the kernel 'branch', each on top of those before it
branch_series='fixes cleanups tokens dmabuf-get shared'
# The scripts that source this file use them.
export lab_dir repo_dir cache_dir series_dir branch_series

note() { printf '%s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit "${failure_status:-1}"; }

sha256_of() { sha256sum -- "$1" | cut -d' ' -f1; }
sha256_of_text() { sha256sum | cut -d' ' -f1; }

# patches_of SERIES...: their patches, in the order in which they apply
patches_of() {
    local name
    for name; do
        sed "/^#/d; s|^|$series_dir/$name/|" "$series_dir/$name/series"
    done
}

# unpack_patched SOURCE TREE [TAR_OPTION...]: SOURCE, an archive or a directory, in the new directory TREE, with the patches
# whose names stdin has
unpack_patched() {
    local source=$1 tree=$2 patch
    mkdir -p "$tree"
    if [[ -d $source ]]; then
        cp -a "$source/." "$tree/"
    else
        tar -xf "$source" -C "$tree" --strip-components=1 "${@:3}"
    fi
    while read -r patch; do
        [[ -z $patch ]] || patch -s -p1 --fuzz=0 -d "$tree" -i "$patch" >&2 || die "${patch##*/} does not apply"
    done
}

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
        die "cannot run without root, and sudo is missing: $*"
    fi
}

os_release() { (. /etc/os-release && printf '%s' "${!1:-}"); }

# apt_uri SUITE: where this machine's apt gets SUITE from; nothing when it does not. Works before any package list was read.
apt_uri() {
    apt-get update --print-uris 2>/dev/null | sed -n "s|^'\(.*\)/dists/$1/InRelease'.*|\1|p" | head -n 1
}

# debian_mirror: print where every suite of Debian is got from: GPURX_DEBIAN_MIRROR, or what this machine's apt uses. Works
# before any package list was read.
debian_mirror() {
    local uri=${GPURX_DEBIAN_MIRROR:-}
    if [[ -z $uri && $(os_release ID) == debian ]]; then
        uri=$(apt_uri "$(os_release VERSION_CODENAME)")
    fi
    [[ -n $uri ]] || die "no Debian mirror in this machine's apt configuration: set GPURX_DEBIAN_MIRROR to the URI of one"
    printf '%s' "$uri"
}

# wait_for LABEL PID: wait for PID to end, and show meanwhile how long that takes; its exit status. On a terminal the line is
# rewritten in place; elsewhere one is printed every ten seconds.
wait_for() {
    local label=$1 pid=$2 start=$SECONDS shown=0
    while kill -0 "$pid" 2>/dev/null; do
        if [[ -t 2 ]]; then
            printf '\r%-58s %4d s ' "$label" $((SECONDS - start)) >&2
        elif ((SECONDS - start >= shown + 10)); then
            shown=$((SECONDS - start))
            note "$label: $shown s so far"
        fi
        sleep 0.2
    done
    [[ ! -t 2 ]] || printf '\r' >&2
    wait "$pid"
}

# progress LABEL TOTAL LOG: copy stdin to LOG and show how far a build of about TOTAL lines of output is.
# On a terminal the line is rewritten in place; elsewhere one is printed every ten seconds.
progress() {
    local label=$1 total=$2 log=$3 lines=0 line start=$SECONDS shown=-10 every=10 end=$'\n' elapsed percent left
    [[ -t 2 ]] && every=1 end=$'\r'
    while IFS= read -r line; do
        printf '%s\n' "$line" >&4
        lines=$((lines + 1))
        elapsed=$((SECONDS - start))
        ((elapsed - shown >= every)) || continue
        shown=$elapsed
        percent=$((100 * lines / total))
        ((percent <= 99)) || percent=99
        left=$((elapsed * (100 - percent) / (percent > 0 ? percent : 1)))
        printf '%s: %3d %%, %d:%02d so far, about %d:%02d to go   %s' "$label" "$percent" \
            $((elapsed / 60)) $((elapsed % 60)) $((left / 60)) $((left % 60)) "$end" >&2
    done 4>"$log"
    elapsed=$((SECONDS - start))
    printf '%s: done, %d:%02d                                        \n' "$label" $((elapsed / 60)) $((elapsed % 60)) >&2
}
