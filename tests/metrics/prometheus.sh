#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print the directory of prometheus and promtool: the machine's, else those of Debian's package, unpacked in the cache.
# Installing that package would start a server on this machine; this one runs only while a test does.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../kernel-support/lab/lib.sh"

isolated() { "$lab_dir/isolated-apt.sh" "$suite" "$@"; }

# fetch DIRECTORY: unpack the newest package of the suite there.
fetch() {
    local out=$1 version expected deb
    note "fetching prometheus from Debian's $suite, some 50 MB, to have it read our metrics (it is unpacked in the cache, not installed) ..."
    isolated apt-get -qq update >&2
    version=$(isolated apt-cache madison prometheus | awk -F' *[|] *' '$3 !~ /Sources/ {print $2}' | sort -V | tail -n 1)
    [[ -n $version ]] || die "$suite has no package prometheus"
    # apt checks what it downloads against the signed index; that is checked once more, as others do here
    expected=$(isolated apt-cache show "prometheus=$version" | sed -n 's/^SHA256: //p' | head -n 1)
    mkdir -p "$out"
    (cd "$out" && isolated apt-get -qq download "prometheus=$version" >&2)
    deb=("$out"/prometheus_*.deb)
    [[ $(sha256_of "${deb[0]}") == "$expected" ]] || die "checksum of ${deb[0]##*/}: got $(sha256_of "${deb[0]}"), want $expected"
    dpkg -x "${deb[0]}" "$out"
    rm "${deb[0]}"
    "$out/usr/bin/prometheus" --version >/dev/null 2>&1 || die "the prometheus of Debian's $suite does not run here; install the package prometheus"
}

main() {
    local out
    if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
        dirname "$(command -v promtool)"
        return
    fi
    suite=bookworm
    [[ $(os_release ID) != debian ]] || suite=$(os_release VERSION_CODENAME)
    out=$cache_dir/prometheus/$suite
    if [[ ! -x $out/usr/bin/promtool ]]; then
        command -v dpkg >/dev/null || die "no prometheus on this machine, and no dpkg to unpack Debian's with: install prometheus"
        lock prometheus
        # Another run may have fetched it while this one waited.
        if [[ ! -x $out/usr/bin/promtool ]]; then
            rm -rf "$out" "$out.new"
            fetch "$out.new"
            mv "$out.new" "$out"
        fi
    fi
    printf '%s\n' "$out/usr/bin"
}

main
