#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compile the Debian packages for the release that this runs on:  build.sh BUILD OUT [CMAKE-OPTION...]
# BUILD is kept for the next time; OUT has the packages of this time and nothing else. What it needs is here already:
# packages.sh, beside this, sees to that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

(($# >= 2)) || { echo "usage: build.sh BUILD OUT [CMAKE-OPTION...]" >&2 && exit 2; }
build=$1
out=$2
shift 2

# As the release builds its own packages, in release mode; no path of this machine is in what is compiled.
flag() { dpkg-buildflags --get "$1" | sed -E 's/(^| )-(g|ffile-prefix-map=[^ ]*|fdebug-prefix-map=[^ ]*)( |$)/\1\3/g'; }
here=$PWD
cmake --preset packages -B "$build" \
    -DPython_EXECUTABLE=/usr/bin/python3 \
    -DCMAKE_CXX_FLAGS="$(flag CPPFLAGS) $(flag CXXFLAGS) -ffile-prefix-map=$here=gpurx -ffile-prefix-map=$(realpath "$build")=build" \
    -DCMAKE_SHARED_LINKER_FLAGS="$(flag LDFLAGS) -Wl,-z,now" \
    -DCMAKE_MODULE_LINKER_FLAGS="$(flag LDFLAGS) -Wl,-z,now" \
    -DCMAKE_EXE_LINKER_FLAGS="$(flag LDFLAGS) -Wl,-z,now" \
    "$@"
cmake --build "$build" --target packages --parallel
rm -rf "$build/cpack" "$out"
mkdir -p "$out"
# File modes are those of the packages' files, whatever the caller's mask.
(umask 022 && cpack --config "$build/CPackConfig.cmake" -B "$build/cpack")
mv "$build"/cpack/*.deb "$out"
rm -r "$build/cpack"
