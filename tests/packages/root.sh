# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2016,SC2154
# Sourced after lib.sh and debian-packages.sh: root directories of Debian releases. What debootstrap has made, and what was
# installed on top of it, layer by layer, is kept in the cache; what a test does is in a layer of its own, and goes with it.
# For a script that runs as root in a mount namespace of its own, where no mount outlives it.

roots=$cache_dir/roots

# why_no_roots RELEASE: print why none can be made or entered here; nothing if they can.
why_no_roots() {
    local at
    at=$(mktemp -d)
    if (($(id -u) != 0)); then
        echo "debootstrap and chroot need root"
    elif ! mount -t tmpfs none "$at" 2>/dev/null; then
        echo "nothing can be mounted here"
    elif ! mkdir "$at/lower" "$at/upper" "$at/work" "$at/root" || ! mount -t overlay overlay \
        -o "lowerdir=$at/lower,upperdir=$at/upper,workdir=$at/work" "$at/root" 2>/dev/null; then
        echo "this kernel, or this container, has no overlay file system"
    elif ! mknod "$at/null" c 1 3 2>/dev/null || ! true 2>/dev/null >"$at/null"; then
        echo "no device nodes can be made here, which debootstrap needs"
    elif ! wget -q --tries 1 --timeout 20 -O /dev/null "$(debian_mirror)/dists/$1/InRelease" 2>/dev/null; then
        echo "the Debian mirror does not answer"
    fi
    umount -R "$at" 2>/dev/null || true
    rmdir "$at" 2>/dev/null || true
}

# sources_of RELEASE MIRROR: for its apt. Debian 12 has its newer Boost in the backports only.
sources_of() {
    local part
    for part in "$1" "$1-updates" $([[ $1 != bookworm ]] || echo "$1-backports"); do
        printf 'deb %s %s main\n' "$2" "$part"
    done
}

# base_root RELEASE: print where it is: what debootstrap makes, with a package list.
base_root() (
    local suite=$1 at=$roots/$1/base from tool log=$roots/$1/debootstrap.log
    lock "root-$suite"
    if [[ ! -e $at.complete ]]; then
        note "making a root of Debian's $suite (100 MB) ..."
        from=$(debian_mirror)
        rm -rf "$at"
        mkdir -p "$at"
        tool=$(mktemp -d)
        read_index trixie
        unpack_packages trixie "$tool" debootstrap
        DEBOOTSTRAP_DIR=$tool/usr/share/debootstrap "$tool/usr/sbin/debootstrap" --variant=minbase \
            --include=ca-certificates "$suite" "$at" "$from" >"$log" 2>&1 ||
            die "$(tail -n 3 "$log"); the whole log is $log"
        rm -r "$tool"
        sources_of "$suite" "$from" >"$at/etc/apt/sources.list"
        # How this machine's apt gets there, proxies and all.
        apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries|ForceIPv)' >"$at/etc/apt/apt.conf.d/as-outside" || true
        printf '#!/bin/sh\nexit 101\n' >"$at/usr/sbin/policy-rc.d"
        chmod +x "$at/usr/sbin/policy-rc.d"
        touch "$at.complete"
    fi
    printf '%s\n' "$at"
)

# assemble AT UPPER LOWER...: a root at AT, of the layers LOWER, the topmost first; what is written goes to UPPER.
assemble() {
    local at=$1 upper=$2 lower archives
    shift 2
    lower=$(IFS=: && echo "$*")
    mkdir -p "$at" "$upper" "$upper.work"
    mount -t overlay overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$upper.work" "$at"
    mount -t proc proc "$at/proc"
    mount -t tmpfs none "$at/tmp"
    mount -t devpts none "$at/dev/pts"
    # What apt has fetched once is there the next time. The last of the layers is the release's base.
    archives=${*: -1}
    archives=${archives%/*}/archives
    mkdir -p "$archives/partial"
    mount --bind "$archives" "$at/var/cache/apt/archives"
    cat /etc/resolv.conf >"$at/etc/resolv.conf"
    cat /etc/hosts >"$at/etc/hosts"
}

# A terminal that apt has opened for dpkg is closed a moment after both have ended.
disassemble() { umount -R "$1" 2>/dev/null || umount -R --lazy "$1"; }

# share WHAT AT [ro]: WHAT of this machine is at AT.
share() {
    mkdir -p "$2"
    mount --bind "$1" "$2"
    [[ ${3:-} != ro ]] || mount -o remount,bind,ro "$2"
}

clean_environment=(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive)

# inside AT COMMAND...: in that root.
inside() {
    local at=$1
    shift
    "${clean_environment[@]}" chroot "$at" "$@"
}

# alone AT COMMAND...: likewise, with a loopback interface and no other.
alone() {
    local at=$1
    shift
    "${clean_environment[@]}" unshare --mount --net sh -c '
        ip link set lo up
        mount -t sysfs sysfs "$0/sys"
        exec chroot "$0" "$@"' "$at" "$@"
}

# add_packages AT PACKAGE...: by apt, in that root.
add_packages() {
    inside "$1" apt-get -qq update
    inside "$1" apt-get -q -y --no-install-recommends install "${@:2}"
}

# layer RELEASE NAME COMMAND... -- LOWER...: print where the layer is that `COMMAND ROOT` makes on top of LOWER, once.
layer() (
    local suite=$1 name=$2 at upper log
    local -a command=()
    shift 2
    while [[ $1 != -- ]]; do
        command+=("$1")
        shift
    done
    shift
    upper=$roots/$suite/$name log=$roots/$suite/$name.log
    lock "root-$suite-$name"
    if [[ ! -e $upper.complete ]]; then
        note "installing what $suite needs for: $name ..."
        rm -rf "$upper" "$upper.work"
        at=$(mktemp -d)
        assemble "$at" "$upper" "$@"
        "${command[0]}" "$at" "${command[@]:1}" >"$log" 2>&1 || die "$(tail -n 5 "$log"); the whole log is $log"
        disassemble "$at"
        rmdir "$at"
        rm -rf "$upper.work"
        touch "$upper.complete"
    fi
    printf '%s\n' "$upper"
)
