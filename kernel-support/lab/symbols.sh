#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Print the path of a file with the symbols of a kernel of the lab, for gdb and for profiles:
#
#   symbols.sh KERNEL                                 as kernel.sh takes it
#
# The kernels that are compiled here have them in their vmlinux. Debian's has none, and its debug packages are a gigabyte:
# the names and addresses come from the kernel itself, out of a guest that is booted once. They hold where the kernel
# lies where it was linked (nokaslr, which `lab.sh --gdb` passes).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# assembly KALLSYMS: a source with one section in which each symbol is where /proc/kallsyms says; those of modules move, and
# are left out. gdb takes no absolute values for functions.
assembly() {
    local start end
    start=$(awk '$3 == "_text" {print $1}' "$1")
    end=$(awk '$3 == "_end" {print $1}' "$1")
    printf '.section .kernel, "ax", @nobits\nbase:\n.skip 0x%s - 0x%s\n' "$end" "$start"
    awk -v start="$start" -v end="$end" '$4 == "" && $1 >= start && $1 <= end && $3 !~ /[^A-Za-z0-9_.$]/ && !seen[$3]++ {
        if ($2 ~ /[tTwW]/) printf ".type %s, @function\n", $3
        printf ".globl %s\n%s = base + (0x%s - 0x%s)\n", $3, $3, $1, start
    }' "$1"
}

# link KALLSYMS OUTPUT
link() {
    assembly "$1" | gcc -x assembler -c - -o "$2.o" &&
        ld --section-start=.kernel="0x$(awk '$3 == "_text" {print $1}' "$1")" -e 0 "$2.o" -o "$2" && rm "$2.o"
}

main() {
    local directory kernel=${1:-}
    (($# == 1)) || die "usage: symbols.sh KERNEL"
    directory=$("$lab_dir/kernel.sh" "$kernel")
    if [[ $kernel != debian* ]]; then
        printf '%s\n' "$directory/vmlinux"
        return
    fi
    lock "symbols-$kernel"
    if [[ ! -e $directory/symbols ]]; then
        note "reading the symbols of the kernel '$kernel' in a guest ..."
        if ! "$lab_dir/lab.sh" --kernel "$kernel" --no-nic --append nokaslr -- cat /proc/kallsyms >"$directory/kallsyms" ||
            ! link "$directory/kallsyms" "$directory/symbols.new"; then
            die "the symbols of '$kernel' could not be read"
        fi
        rm "$directory/kallsyms"
        mv "$directory/symbols.new" "$directory/symbols"
    fi
    printf '%s\n' "$directory/symbols"
}

main "$@"
