#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Is all C++ and CUDA (and the C outside kernel-support/) formatted as .clang-format says?
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

formatter=$(command -v clang-format-14 || command -v clang-format || true)
if [[ $("${formatter:-false}" --version 2>/dev/null) != *'version 14.'* ]]; then
    echo "SKIP format: clang-format 14 is not on this machine, and other versions format differently"
    exit 0
fi

git ls-files -z -- '*.cpp' '*.hpp' '*.cu' '*.c' '*.h' ':!kernel-support' | xargs -0 --no-run-if-empty "$formatter" --dry-run --Werror
