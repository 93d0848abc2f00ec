#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Is all C++ and CUDA (and the C outside kernel-support/) formatted as .clang-format says, and no line too long?
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

formatter=$(command -v clang-format-14 || command -v clang-format || true)
if [[ $("${formatter:-false}" --version 2>/dev/null) != *'version 14.'* ]]; then
    echo "SKIP format: clang-format 14 is not on this machine, and other versions format differently"
    exit 0
fi

sources() { git ls-files -z -- '*.cpp' '*.hpp' '*.cu' '*.c' '*.h' ':!kernel-support'; }

sources | xargs -0 --no-run-if-empty "$formatter" --dry-run --Werror
# It does not break comments: where it did, it left single words on lines of their own.
if sources | xargs -0 --no-run-if-empty grep -nP '^(?=\s*\/\/).{121,}' -- /dev/null; then
    echo "wrap these comments at 120 columns by hand" >&2
    exit 1
fi
