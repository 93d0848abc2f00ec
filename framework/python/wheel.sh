#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python package for other machines, under build/wheel: a manylinux wheel for CPython from 3.10 on, and the
# source distribution. The wheel carries the libraries that not every machine has.
#
#   wheel.sh
#
# tests/python/run.sh builds and tests the same package in the same directory. After it has run, this script only packs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh

# Libraries that are linked into the extension or packed beside it. Those of Boost stand for its headers, too.
libraries=(libssl.a libboost_json.so libboost_url.so libboost_container.so libfmt.so libisal.so libmnl.so)

package_of() { dpkg-query -S "$(realpath "$(g++ -print-file-name="$1")")" | cut -d: -f1; }

# licences ENVIRONMENT INTO: writes the licences of everything that the wheel carries, and prints its sources: a library,
# the kind of package, and the package with its version.
licences() {
    local library package source
    command -v dpkg-query >/dev/null || die "build the wheel on Debian or Ubuntu: it carries the licences of their packages"
    mkdir -p "$2"
    for library in "${libraries[@]}"; do
        package=$(package_of "$library")
        source=$(dpkg-query -W -f '${source:Package}' "$package")
        cp "/usr/share/doc/$package/copyright" "$2/$source.txt"
        dpkg-query -W -f "$library deb/$(os_release ID) $source \${source:Version}\n" "$package"
    done
    cp /usr/share/common-licenses/LGPL-2.1 "$2/LGPL-2.1.txt"
    cp "$("$1/bin/python" -c 'import importlib.metadata as m; print(next(f.locate() for f in m.files("nanobind") if f.name == "LICENSE"))')" "$2/nanobind.txt"
    "$1/bin/python" -c 'import importlib.metadata as m; print("nanobind pypi nanobind", m.version("nanobind"))'
}

# add WHEEL LICENCES SOURCES: adds the licences, and an SBOM by CycloneDX (PEP 770). auditwheel later writes the list of
# files again, and an SBOM of the Debian packages of its own.
add() {
    python3 - "$@" <<'PYTHON'
import json, sys, zipfile
from pathlib import Path
from urllib.parse import quote

def component(ref, name, version, **more):
    return {"type": "library", "bom-ref": ref, "name": name, "version": version, "purl": ref, **more}

carried = {}
for line in Path(sys.argv[3]).read_text().splitlines():
    library, kind, name, version = line.split()
    ref = f"pkg:{kind}/{name}@{quote(version)}" + ("?arch=source" if kind != "pypi" else "")
    licence = {"license": {"name": f"licenses/carried/{name}.txt"}}
    one = carried.setdefault(ref, component(ref, name, version, licenses=[licence], properties=[]))
    one["properties"].append({"name": "gpurx:library", "value": library})

with zipfile.ZipFile(sys.argv[1], "a", zipfile.ZIP_DEFLATED) as wheel:
    information = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")).rpartition("/")[0]
    for path in sorted(Path(sys.argv[2]).iterdir()):
        wheel.write(path, f"{information}/licenses/carried/{path.name}")
    name, version = information.removesuffix(".dist-info").split("-")
    own = component(f"pkg:pypi/{name}@{version}", name, version)
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": own},
            "components": [*carried.values()], "dependencies": [{"ref": own["purl"], "dependsOn": [*carried]}]}
    wheel.writestr(f"{information}/sboms/gpurx.cdx.json", json.dumps(bill, indent=1))
PYTHON
}

mebibytes() { awk "BEGIN { printf \"%.1f MiB\", $(stat -c %s "$1") / 1048576 }"; }

report() {
    local wheel=$1 sdist=$2 cuda=$3
    printf '%s: %s\n' "$wheel" "$(mebibytes "$wheel")"
    printf '  for CPython from 3.10 on (abi3), %s\n' "$(basename "$wheel" .whl | sed 's/.*-//; s/\./, /g')"
    printf '  carries%s, and OpenSSL inside the extension\n' "$(unzip -Z1 "$wheel" | sed -n 's|^gpurx.libs/\(.\)|\1|p' | sed 's/^/ /' | tr -d '\n')"
    printf '  code for GPUs: %s\n' "$([[ $cuda == ON ]] && echo yes || echo 'no, there is no CUDA toolkit here')"
    printf '%s: %s\n' "$sdist" "$(mebibytes "$sdist")"
}

main() {
    local environment work raw wheel sdist cuda=AUTO out=build/wheel
    (($# == 0)) || die "usage: wheel.sh"
    "$lab_dir/packages.sh" build wheel
    [[ -z $(cmake/cuda-toolkit.sh) ]] || cuda=ON
    environment=$(tests/python/environment.sh)
    PATH=$environment/bin:$PATH
    work=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    lock "wheel$(printf '%s' "$PWD" | tr / -)"

    note "building the extension ..."
    python -m pip wheel --quiet --no-input --disable-pip-version-check --no-index --no-deps --no-build-isolation \
        -Ccmake.define.GPURX_WERROR=ON -Ccmake.define.GPURX_CUDA="$cuda" -Ccmake.define.GPURX_STATIC_OPENSSL=ON \
        -w "$work/raw" .
    raw=$(echo "$work"/raw/gpurx-*.whl)
    licences "$environment" "$work/licences" >"$work/sources"
    add "$raw" "$work/licences" "$work/sources"
    python -m auditwheel repair -w "$work/repaired" "$raw" >"$work/log" 2>&1 || die "$(<"$work/log")"
    sdist=$(python -c 'import sys, scikit_build_core.build as b; print(b.build_sdist(sys.argv[1]))' "$work" 2>"$work/log" |
        tail -n 1) || die "$(<"$work/log")"

    wheel=$(basename "$work"/repaired/gpurx-*.whl)
    rm -rf "$out"
    mkdir -p "$out"
    mv "$work/repaired/$wheel" "$work/$sdist" "$out"
    report "$out/$wheel" "$out/$sdist" "$cuda"
}

main "$@"
