#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Run apt for one Debian suite with a state of its own: nothing under /etc/apt or /var/lib/apt is touched.
# Signatures are checked with Debian's archive keyring as usual.
#
#   isolated-apt.sh SUITE apt-get|apt-cache ARGS...
#
# The mirror is the one that this machine's apt uses; GPURX_DEBIAN_MIRROR overrides it, and is needed where the
# machine is not a Debian. GPURX_DEBIAN_COMPONENT: of the archive, instead of main. GPURX_DEBIAN_ARCHITECTURE: instead of
# amd64.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

(($# >= 3)) || die "usage: isolated-apt.sh SUITE apt-get|apt-cache ARGS..."
suite=$1
tool=$2
shift 2
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[[ -e $keyring ]] || die "$keyring is missing: install the package debian-archive-keyring"
mirror=$(debian_mirror)
component=${GPURX_DEBIAN_COMPONENT:-main}
architecture=${GPURX_DEBIAN_ARCHITECTURE:-amd64}

root=$cache_dir/apt/$suite
[[ $component == main ]] || root+=-$component
[[ $architecture == amd64 ]] || root+=-$architecture
mkdir -p "$root"/state/lists/partial "$root"/cache/archives/partial "$root"/etc
: >"$root/state/status"
printf 'deb%s [arch=%s signed-by=%s] %s %s %s\n' '' "$architecture" "$keyring" "$mirror" "$suite" "$component" \
    -src "$architecture" "$keyring" "$mirror" "$suite" "$component" >"$root/etc/sources.list"

exec "$tool" -q \
    -o Dir::State="$root/state" -o Dir::State::status="$root/state/status" -o Dir::Cache="$root/cache" \
    -o Dir::Etc::sourcelist="$root/etc/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
    -o APT::Sandbox::User=root -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" -o Acquire::Languages=none \
    -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false "$@"
