#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print the path of an nginx, the file server that gpurx-fetch is tested with: the machine's, else the one of Debian's
# package, unpacked in the cache. Installing that package would start a web server on this machine; this one runs only
# while a test does, with the test's own configuration.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../kernel-support/lab/lib.sh"

# It takes -e (nginx 1.19.5 and later), without which it would begin by opening /var/log/nginx/error.log.
usable() { [[ -x $1 && $("$1" -h 2>&1) == *'-e filename'* ]]; }

isolated() { "$lab_dir/isolated-apt.sh" "$suite" "$@"; }

# fetch DIRECTORY: unpack the newest package of the suite there.
fetch() {
    local out=$1 version expected deb
    note "fetching nginx from Debian's $suite, about 1 MB, to test HTTP with (it is unpacked in the cache, not installed) ..."
    isolated apt-get -qq update >&2
    version=$(isolated apt-cache madison nginx | awk -F' *[|] *' '$3 !~ /Sources/ {print $2}' | sort -V | tail -n 1)
    [[ -n $version ]] || die "$suite has no package nginx"
    # apt checks what it downloads against the signed index; that is checked once more, as others do here
    expected=$(isolated apt-cache show "nginx=$version" | sed -n 's/^SHA256: //p' | head -n 1)
    mkdir -p "$out"
    (cd "$out" && isolated apt-get -qq download "nginx=$version" >&2)
    deb=("$out"/nginx_*.deb)
    [[ $(sha256_of "${deb[0]}") == "$expected" ]] || die "checksum of ${deb[0]##*/}: got $(sha256_of "${deb[0]}"), want $expected"
    dpkg -x "${deb[0]}" "$out"
    rm "${deb[0]}"
    "$out/usr/sbin/nginx" -v 2>/dev/null || die "the nginx of Debian's $suite does not run here: $("$out/usr/sbin/nginx" -v 2>&1); install the package nginx"
}

main() {
    local program out
    for program in "$(command -v nginx || true)" /usr/sbin/nginx; do
        if usable "$program"; then
            printf '%s\n' "$program"
            return
        fi
    done
    suite=bookworm
    [[ $(os_release ID) != debian ]] || suite=$(os_release VERSION_CODENAME)
    out=$cache_dir/nginx/$suite
    if [[ ! -x $out/usr/sbin/nginx ]]; then
        command -v dpkg >/dev/null || die "no nginx on this machine, and no dpkg to unpack Debian's with: install nginx"
        lock nginx
        # Another run may have fetched it while this one waited.
        if [[ ! -x $out/usr/sbin/nginx ]]; then
            rm -rf "$out" "$out.new"
            fetch "$out.new"
            mv "$out.new" "$out"
        fi
    fi
    printf '%s\n' "$out/usr/sbin/nginx"
}

main
