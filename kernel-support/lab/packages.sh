#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Install the Debian or Ubuntu packages that a part of the project needs: only those that are absent, after saying which and why.
#
#   packages.sh [--list] GROUP...
#   packages.sh --versions GROUP...     what is installed of them, and in which versions
#
# Groups: build tests cuda lint python wheel debian plot docs browser downloaders module kernel kernel-debs lab selftests trace systemd
#
# Where the release's own packages are too old (Debian 12), the newer ones come from its backports, through a list of
# our own: /etc/apt stays as it is.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# One entry a line: PACKAGE[|ALTERNATIVE...][ >=MINIMUM]. The first alternative that apt knows is taken.
declare -A packages
packages[build]='
g++
cmake
ninja-build
pkg-config
ccache
libboost1.83-dev|libboost-dev
libboost-json1.83-dev|libboost-json-dev
libboost-url1.83-dev|libboost-url-dev
libfmt-dev
libisal-dev
libmnl-dev
libcli11-dev
libssl-dev
'
packages[tests]='
catch2 >=3
clang-16|clang >=1:16
lld-16|lld >=1:16
libclang-rt-16-dev|libclang-rt-dev >=1:16
python3
'
packages[cuda]='
python3
python3-pip
'
packages[lint]='
clang-format-14|clang-format
clang-tidy-14|clang-tidy
shellcheck
'
packages[python]='
python3
python3-dev
python3-pip
python3-torch
python3-venv
'
packages[wheel]='
unzip
'
packages[debian]='
python3-dev
dpkg-dev
file
'
packages[plot]='
python3
python3-munkres
python3-matplotlib
'
packages[docs]='
python3
python3-venv
doxygen
mandoc
'
packages[browser]='
chromium
fonts-dejavu-core
'
packages[downloaders]='
curl
aria2
wget
openssl
'
packages[module]='
gcc
make
ccache
zstd
rsync
kmod
debian-archive-keyring
'
packages[kernel]='
gcc
make
ccache
flex
bison
bc
libelf-dev
libssl-dev
zlib1g-dev
cpio
xz-utils
zstd
rsync
kmod
patch
perl
debian-archive-keyring
'
packages[kernel-debs]='
debhelper
libdw-dev
dpkg-dev
'
packages[lab]='
qemu-system-x86
libcap-ng0
libseccomp2
debian-archive-keyring
iproute2
ethtool
socat
iputils-ping
kmod
procps
util-linux
'
packages[trace]='
bpftrace
'
packages[systemd]='
systemd
'
packages[selftests]='
gcc
g++
make
rsync
clang-14|clang
llvm-14|llvm
libelf-dev
zlib1g-dev
libmnl0
python3
python3-yaml
python3-jsonschema
socat
iputils-ping
iproute2
iperf3
bpftool
kmod
debian-archive-keyring
'
declare -A why=(
    [build]="to compile the library and its samples"
    [tests]="to compile its tests and run them"
    [cuda]="to fetch the CUDA compiler"
    [lint]="to check format and style"
    [python]="to build the Python package and test it"
    [wheel]="to look into the Python package that is made"
    [debian]="to make Debian packages"
    [plot]="to draw what was measured"
    [docs]="to make the site"
    [browser]="to look at the site as a reader does"
    [downloaders]="to compare gpurx-fetch with them"
    [module]="to build the software NIC for the lab's kernel"
    [kernel]="to build a kernel for the lab"
    [kernel-debs]="to make Debian packages of a kernel"
    [lab]="to boot the lab's guest and talk to its network"
    [trace]="to watch the kernel with bpftrace"
    [systemd]="to boot it in the lab's guest"
    [selftests]="to build and run the kernel tree's own tests"
)

entries_of() {
    [[ -v packages[$1] ]] || die "no package group '$1' (there are: ${!packages[*]})"
    printf '%s' "${packages[$1]}"
}

# installed PACKAGE [MINIMUM]
installed() {
    local version
    version=$(dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$1" 2>/dev/null | sed -n 's/^installed //p' | head -n 1)
    [[ -n $version ]] && { [[ -z ${2:-} ]] || dpkg --compare-versions "$version" ge "$2"; }
}

# missing_of ENTRY: print the name to install, or nothing when one of the alternatives is there.
missing_of() {
    local names=${1%% *} minimum='' name
    [[ $1 == *'>='* ]] && minimum=${1##*>=}
    local -a alternatives
    IFS='|' read -ra alternatives <<<"$names"
    for name in "${alternatives[@]}"; do
        if installed "$name" "$minimum"; then return; fi
    done
    printf '%s\n' "$names|$minimum"
}

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
apt_options=()
log=$cache_dir/apt/install.log
lock_minutes=10

# On Debian 12 add backports; elsewhere the release itself is new enough and apt is used as it stands.
prepare_apt() {
    [[ $(os_release ID)$(os_release VERSION_ID) == debian12 ]] || return 0
    local root=$cache_dir/apt/system+backports suite uri
    mkdir -p "$root"/lists/partial
    : >"$root/sources.list"
    for suite in bookworm bookworm-updates bookworm-security bookworm-backports; do
        # The mirror of the release has its backports too.
        uri=$(apt_uri "${suite/%-backports/}")
        [[ -z $uri ]] || printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$uri" "$suite" >>"$root/sources.list"
    done
    [[ -s $root/sources.list ]] || die "this machine's apt configuration has no source for bookworm"
    apt_options=(-o "Dir::State::lists=$root/lists" -o "Dir::Etc::sourcelist=$root/sources.list"
        -o Dir::Etc::sourceparts=/dev/null -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
}

# candidate NAMES MINIMUM: the first of NAMES (a|b) that apt can install in at least MINIMUM, as NAME or NAME=VERSION.
candidate() {
    local name version
    local -a alternatives
    IFS='|' read -ra alternatives <<<"$1"
    for name in "${alternatives[@]}"; do
        version=$(apt-cache "${apt_options[@]}" madison "$name" 2>/dev/null | awk -F' *[|] *' '{print $2}' | sort -V | tail -n 1)
        [[ -n $version ]] || continue
        if [[ -z $2 ]]; then
            # No minimum: the release's own package, except where only backports have it.
            printf '%s\n' "$name"
            return
        elif dpkg --compare-versions "$version" ge "$2"; then
            printf '%s=%s\n' "$name" "$version"
            return
        fi
    done
    die "apt has no package for '$1'${2:+ in version $2 or later}"
}

# versions_of GROUP...: the installed packages of the groups
versions_of() {
    local group
    for group; do
        entries_of "$group"
    done | sed 's/ .*//; s/|/\n/g' | sort -u | sed '/^$/d' | xargs dpkg-query -W 2>/dev/null || true
}

# apt_get ARGUMENTS...: apt-get as root, its output in $log. The system's own timers hold apt's locks for minutes after a
# boot, and apt waits for one of them only: this waits for each.
apt_get() {
    local end=$((SECONDS + lock_minutes * 60)) said=''
    until as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get "${apt_options[@]}" -q -y "$@" >"$log" 2>&1; do
        grep -q '^E: Could not get lock' "$log" && ((SECONDS < end)) || return 1
        [[ -n $said ]] || note "apt is locked, perhaps by the system's own update; waiting for up to $lock_minutes minutes:" \
            "$(sed -n 's/^E: //p' "$log" | head -n 1)"
        said=1
        sleep 1
    done
}

# apt_or_die FAILURE ARGUMENTS...: with the end of apt's output where it fails.
apt_or_die() {
    local failure=$1
    shift
    apt_get "$@" || {
        tail -n 40 "$log" >&2
        die "$failure; the whole log is $log"
    }
}

# install PACKAGE...
install() {
    local start=$SECONDS
    note "installing: $*"
    apt_or_die "apt could not install them" --no-install-recommends install "$@" &
    wait_for installing $! || exit 1
    note "$(printf '%-58s %4d s' installed $((SECONDS - start)))"
}

main() {
    local list_only=0 group entry line
    if [[ ${1:-} == --versions ]]; then
        shift
        versions_of "$@"
        return
    fi
    [[ ${1:-} == --list ]] && list_only=1 && shift
    (($# > 0)) || die "usage: packages.sh [--list] GROUP...  (groups: ${!packages[*]})"
    command -v apt-get >/dev/null || die "no apt on this machine. Install the packages of these entries by hand: $(for group; do entries_of "$group"; done | xargs)"

    local -a missing=() wanted=()
    local -A seen=()
    for group; do
        entries_of "$group" >/dev/null
        while read -r entry; do
            [[ -n $entry ]] || continue
            line=$(missing_of "$entry")
            [[ -n $line && ! -v seen[$line] ]] && seen[$line]=1 && missing+=("$line") && note "missing: ${line%|*} (${why[$group]})"
        done < <(entries_of "$group")
    done
    ((${#missing[@]} == 0)) && return
    ((list_only)) && return 1

    prepare_apt
    lock packages
    mkdir -p "${log%/*}"
    note "reading the package lists ..."
    apt_or_die "the package lists cannot be read" update
    for line in "${missing[@]}"; do
        wanted+=("$(candidate "${line%|*}" "${line##*|}")")
    done
    install "${wanted[@]}"
}

main "$@"
