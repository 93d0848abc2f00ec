#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The bundle of `./run gpu-bundle`, carried elsewhere, starts: without a driver, where it skips, and with the fake one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ -z $(cmake/cuda-toolkit.sh) ]]; then
    echo "no CUDA toolkit: there is no bundle to make"
    exit 0
fi
./run gpu-bundle
cmake --build build/gpu --target fake_cuda
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r build/gpu-bundle "$work/bundle"

# run NAME VARIABLE...: in an environment of its own
run() {
    local name=$1
    shift
    mkdir "$work/$name"
    printf -- '---- %s ----\n' "$name"
    env -i PATH="$PATH" OUT="$work/$name" "$@" "$work/bundle/run.sh" --quick
    python3 -m json.tool "$work/$name/results.json" >/dev/null
}

# A GPU's own machine would be slow about it, and its figures are for run.sh.
if python3 tests/gpu/has_gpu.py; then
    echo "there is a GPU here: the bundle without one is not tried"
else
    run no-gpu
fi
mkdir "$work/bin"
printf '#!/bin/sh\necho "nvidia-smi says $*"\n' >"$work/bin/nvidia-smi"
chmod +x "$work/bin/nvidia-smi"
# That python3 has pytest and numpy.
python=$(tests/python/environment.sh)/bin
run fake-driver PATH="$work/bin:$python:$PATH" LD_LIBRARY_PATH="$PWD/build/gpu/tests/fake_cuda"
grep -q '"status": "passed"' "$work/fake-driver/results.json"

# Each claim names results that there are, and says of them what is true.
python3 - "$work/fake-driver/results.json" tests/gpu/claims.txt <<'CHECK'
import json, sys
results = json.load(open(sys.argv[1]))
statuses = {(one["part"], one["name"]): one["status"] for one in results["results"]}
assert statuses["python", "test_a_copy_on_the_gpu"] == "passed", statuses
lines = [line.strip() for line in open(sys.argv[2]) if line.strip() and not line.startswith("#")]
for claim, part, prefix in ([word.strip() for word in line.split("|")] for line in lines):
    found = [name for of, name in statuses if of == part and name.startswith(prefix)]
    # Without the sanitizer both tools are one result.
    assert found or part == "sanitizer", f"claims.txt: no result of part {part} begins with: {prefix}"
verdicts = [one["verdict"] for one in results["claims"]]
assert "confirmed" in verdicts and "NOT CONFIRMED" not in verdicts, verdicts
speed = [one["verdict"] for one in results["claims"] if "within its bars" in one["claim"]]
assert speed == ["not tried"], speed  # --quick judges no bar
assert "attribute 124" in results["facts"], results["facts"]
CHECK
grep -q 'confirmed  *a gather is enqueued' "$work/fake-driver/results.txt"
# What the machine is, its kernel, driver and topology, is with the results.
for line in "$(uname -sr)" 'no NVIDIA driver is loaded|^NVRM version' 'nvidia-smi says topo -m'; do
    grep -qE "$line" "$work/fake-driver/results.txt" || { echo "results.txt does not say: $line" && exit 1; }
done
