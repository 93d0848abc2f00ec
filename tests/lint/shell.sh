#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every shell script of the tree, known by its name or its first line, passes shellcheck.
# SC2317 (unreachable command) does not see functions that are called by a name in a variable.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scripts() {
    git ls-files -z -- '*.sh'
    git grep -lzI -E -e '^#!.*\b(bash|sh)$' -- ':!*.sh' ':!*.md'
}

scripts | sort -zu | xargs -0 shellcheck --exclude=SC2317 --external-sources --source-path=SCRIPTDIR
