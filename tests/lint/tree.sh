#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every file says its licence; no file names a host that the project does not mean to name, nor a path of one machine. Each
# row of SECURITY.md's table names tests, and those that it names are there. Tests that hold a stream say so. No header of all
# tests has another's name. No public header asserts: its arguments may come from a network, and release builds assert nothing.
# Programs include no header of detail/. words.py counts sentences that are hard to read; figures.py compares figures of pages
# with kept results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Licence texts, formats without comments, and test inputs, which are bytes.
without_licence_line=(':!LICENSE' ':!kernel-support/COPYING' ':!*.json' ':!*.patch' ':!tests/fuzz/corpus')
# The licences' publishers, the kernel's home, and names reserved for examples. No mirror or registry: where packages
# come from is for each machine's own configuration to say.
hosts='apache\.org|gnu\.org|fsf\.org|spdx\.org|kernel\.org|example\.(com|org)|github\.com|[a-z-]+\.invalid'
# Hugging Face, whose tokens are for itself alone.
hosts+='|huggingface\.co'
# AWS, which is S3, and its services next to a machine.
hosts+='|amazonaws\.com(\.cn)?|169\.254\.[0-9]+\.[0-9]+'
# The storage of Google and Azure, and the scopes of both clouds' tokens.
hosts+='|googleapis\.com|storage\.azure\.com|core\.windows\.net'
# Where one who suggested a part of the kernel series has an address.
hosts+='|meta\.com'
# The W3C, by whose address an SVG says that it is one. Nothing is fetched there.
hosts+='|w3\.org'
# Loopback, what stands for a name, and what a program puts in. With or without a port.
no_hosts='(\[[0-9a-f:]*\]?|127\.0\.0\.1|10\.77\.0\.[0-9]+|[A-Za-z@]+|\{[A-Za-z_.]*\})(\[?[:?][^:]*)?'

failed=0
complain() {
    printf '%s:\n%s\n' "$1" "$2"
    failed=1
}

found=$(git ls-files -z -- "${without_licence_line[@]}" | xargs -0 awk '
    FNR == 1 { if (file != "" && !said) print file; file = FILENAME; said = 0 }
    FNR <= 5 && /SPDX-License-Identifier: / { said = 1 }
    END { if (file != "" && !said) print file }')
[[ -z $found ]] || complain "no SPDX-License-Identifier in the first five lines" "$found"

found=$(git ls-files -z | xargs -0 -I{} find {} -prune -type f -empty)
[[ -z $found ]] || complain "empty file" "$found"

found=$(git grep -InoE -e 'https?://[^/ "<>)]+' -e '\b([a-z0-9-]+\.)+(org|com)\b' | grep -vE ":((https?://)?([a-z0-9-]+\.)*($hosts)|https?://$no_hosts)$" || true)
[[ -z $found ]] || complain "a host that the project does not mean to name" "$found"

found=$(git grep -InE -e '(^|[^A-Za-z0-9_.$}])/(work|home|root|tmp/brief)/' || true)
[[ -z $found ]] || complain "a path of one machine" "$found"

# All tests see these headers, and before those of the tool or the part that they test.
found=$(git ls-files 'tests/support/*.hpp' | xargs -n 1 basename | while read -r name; do
    git ls-files "framework/src/**$name" "framework/ingest/src/**$name" "framework/tools/**$name" "tests/**$name" |
        grep -v '^tests/support/' | grep "/$name\$" || true
done)
[[ -z $found ]] || complain "a header by the name of one of tests/support" "$found"

found=$(git grep -nE '(^|[^_[:alnum:]])assert\(|<cassert>|<assert\.h>' -- 'framework/include/*.hpp' 'framework/ingest/include/*.hpp' || true)
[[ -z $found ]] || complain "a public header asserts, which a release build does not: throw" "$found"

found=$(git grep -nE '#include [<"](gpurx|gpurx/ingest)/detail/' -- samples framework/tools framework/python tests || true)
[[ -z $found ]] || complain "a program includes a header that is no part of the manual" "$found"

# A folder of the sources includes those that includes.txt permits it, and uses each permission. They have no circle.
found=$(for root in framework/src framework/ingest/src; do
    mapfile -t files < <(git ls-files "$root/*.hpp" "$root/*.cpp" "$root/*.cu")
    awk -F '"' -v root="$root/" '
        FILENAME == ARGV[1] && /^[^#]/ {
            count = split($0, word, /:? /)
            sub(/:$/, "", word[1])
            known[word[1]]
            for (each = 2; each <= count; ++each) {
                line[word[1] " may include " word[each]] = FNR
                if (!(word[each] in known))
                    print FILENAME ":" FNR ": " word[each] " has no line above"
            }
        }
        FNR == 1 {
            from = substr(FILENAME, length(root) + 1)
            if (!sub(/\/[^\/]*$/, "", from))
                from = "."
            if (FILENAME != ARGV[1] && !(from in known))
                print FILENAME ":1: its folder has no line in " ARGV[1]
        }
        /^#include "/ && $2 ~ /\// {
            to = $2
            sub(/\/[^\/]*$/, "", to)
            sub(/^\.\.\//, "", to)
            permission = from " may include " (to == ".." ? "." : to)
            if (!(permission in line))
                print FILENAME ":" FNR ": " ARGV[1] " does not say: " permission
            used[permission]
        }
        END {
            for (permission in line)
                if (!(permission in used))
                    print ARGV[1] ":" line[permission] ": none uses: " permission
        }' "$root/includes.txt" "${files[@]}"
done)
[[ -z $found ]] || complain "a folder includes another without permission" "$found"

# A file of the software NIC calls those above it in Kbuild, and none below.
found=$(cd kernel-support/devmemsim && mapfile -t files < <(grep -oE '[a-z_]+\.o' Kbuild | sed '1d; s/o$/c/') && awk '
    FNR == 1 { ++part }
    { line = $0; tail = "" }
    part <= count && /^[a-z][^=;]*dms_[a-z0-9_]+(\(| =|;$)/ && !/^static|^extern/ {
        match(line, /dms_[a-z0-9_]+(\(| =|;$)/)
        name = substr(line, RSTART, RLENGTH)
        sub(/[( ;].*/, "", name)
        place[name] = part
    }
    part > count {
        while (match(line, /[A-Za-z0-9_]+/)) {
            name = substr(line, RSTART, RLENGTH)
            line = substr(line, RSTART + RLENGTH)
            if (place[name] > part - count)
                print FILENAME ":" FNR ": " name " is of " ARGV[1 + place[name]]
        }
    }' count="${#files[@]}" "${files[@]}" "${files[@]}")
[[ -z $found ]] || complain "a file of devmemsim calls one that Kbuild has below it" "$found"

# Of what stops whom, SECURITY.md names the tests.
found=$(grep '^| ' SECURITY.md | grep -oE '"[^["][^"]*"' | tr -d '"' | while read -r name; do
    git grep -qF -e "$name" -- tests || printf '%s\n' "$name"
done)
# Or a tag of them, or some with commas: "[one],[other]".
found+=$(grep -oE '"\[[^"]+"' SECURITY.md | tr -d '[]"' | tr , '\n' | while read -r tag; do
    git grep -qE -e "\"(\[[^]]+\])*\[$tag\](\[[^]]+\])*\"[,)]" -- 'tests/*.cpp' || printf '[%s]\n' "$tag"
done)
found+=$(grep -oE 'tests/[A-Za-z0-9_./-]+' SECURITY.md | sort -u | while read -r path; do
    [[ -e ${path%.} ]] || printf '%s\n' "$path"
done)
# shellcheck disable=SC2016
found+=$(grep -oE 'fuzzers? (`[a-z0-9_]+`(, )?)+' SECURITY.md | grep -oE '`[^`]+`' | tr -d '`' | sort -u | while read -r name; do
    [[ -e tests/fuzz/$name.cpp ]] || printf 'fuzzer %s\n' "$name"
done)
[[ -z $found ]] || complain "SECURITY.md names tests that are not there" "$found"

found=$(grep '^| ' SECURITY.md | tail -n +2 | awk -F '|' 'NF != 6 || $5 !~ /"|tests\/|fuzzer/')
[[ -z $found ]] || complain "a row of SECURITY.md has no test" "$found"

# Under compute-sanitizer a stream that stands still may hold up all: the bundle leaves such tests out, by their tag.
found=$(git ls-files -z -- ':(glob)tests/gpu/*.cpp' ':!tests/gpu/bed.cpp' | xargs -0 awk '
    FNR == 1 || /^}/ { tagged = 0 }
    /^TEST_CASE/ { test = FNR }
    /\[hold\]/ && test { tagged = 1 }
    /^\{/ { test = 0 }
    /\.hold\(\)|GPURX_DRIVER\(cuStreamWaitValue32/ && !tagged { print FILENAME ":" FNR }')
[[ -z $found ]] || complain "a stream is held outside of a test with the tag [hold]" "$found"

python3 tests/lint/words.py || failed=1
python3 tests/lint/figures.py || failed=1

exit "$failed"
