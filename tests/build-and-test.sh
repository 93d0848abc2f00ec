#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configure and build a preset, then run its tests:  build-and-test.sh PRESET [CTEST-ARGUMENT...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=$1
shift
build=build/$preset
results=$PWD/$build/results.xml
jobs=$(nproc)

# A toolkit that does not work here is a failure, where AUTO would go on without. GPURX_CUDA=OFF leaves it alone.
cuda=AUTO
[[ -z $(cmake/cuda-toolkit.sh --path) ]] || cuda=ON
cmake --preset "$preset" "-DGPURX_CUDA=$cuda"
cmake --build "$build" --parallel "$jobs"

# ThreadSanitizer's memory map does not survive the address randomisation that some kernels are set to.
fixed_addresses=()
if setarch --addr-no-randomize true 2>/dev/null; then
    fixed_addresses=(setarch --addr-no-randomize)
fi
export TSAN_OPTIONS="suppressions=$PWD/tests/support/tsan.txt${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
rm -f "$results"
status=0
# One more than there are cores: many wait for something most of the time.
"${fixed_addresses[@]}" ctest --test-dir "$build" --parallel "$((jobs + 1))" --no-tests=error --output-on-failure \
    --output-junit "$results" "$@" || status=$?
echo "results: $results"
exit "$status"
