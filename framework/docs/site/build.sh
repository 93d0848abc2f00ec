#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `./run docs`: the site, in build/docs. Its pages are gathered in build/docs-source: guides, the two references, man
# pages and plots; Sphinx makes HTML of them. A warning is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

readonly site=framework/docs/site source=build/docs-source output=build/docs
export PYTHONDONTWRITEBYTECODE=1

main() {
    local python
    kernel-support/lab/packages.sh docs plot
    python=$("$site/environment.sh")/bin/python
    rm -rf "$source"
    mkdir -p "$source"
    cp -r "$site"/index.md "$site"/pictures "$source"
    { cat "$site/Doxyfile" && echo "OUTPUT_DIRECTORY = $source"; } | doxygen - >/dev/null
    "$python" "$site/floors.py" "$source/pictures/floors.svg"
    "$python" "$site/guides.py" "$source"
    "$python" "$site/cpp_reference.py" "$source/xml" "$source/reference/cpp"
    "$python" "$site/python_reference.py" "$source/reference/python"
    "$python" "$site/man_pages.py" "$source/man"
    "$python" "$site/figures.py" "$source"
    # What was made before may be of pages that are gone.
    rm -rf "$output"
    "$python" -m sphinx -q -W --keep-going -j auto -c "$site" -d "$source/doctrees" "$source" "$output"
    echo "$PWD/$output/index.html"
}

main "$@"
