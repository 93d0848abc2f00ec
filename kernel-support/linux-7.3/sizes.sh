#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Print the sizes that figures.md has under Memory, in bytes, as they are in an object built for a kernel with the tokens.
#
#   sizes.sh [BUILD]       the build directory of such a kernel; by default the one of the lab's kernel 'branch'
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../lab/lib.sh"

build=${1:-$("$lab_dir/kernel.sh" branch)/build}
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

cat >"$work/sizes.c" <<'END'
#include "../net/core/devmem_token.c"

#define SIZE_OF(type) char size_of_##type[sizeof(struct type)]

SIZE_OF(net_iov);
SIZE_OF(net_devmem_chunk);
SIZE_OF(net_devmem_dmabuf_binding);
SIZE_OF(net_devmem_tokens_out);
SIZE_OF(net_devmem_sk);
SIZE_OF(net_devmem_user);
SIZE_OF(xa_node);
END
# shellcheck disable=SC2016  # make expands it
printf '%s\n' 'obj-m := sizes.o' 'ccflags-y := -I$(srctree)/net/core -Wno-missing-declarations' >"$work/Kbuild"
make -s -C "$build" M="$work" sizes.o >"$work/log" 2>&1 || { cat "$work/log" >&2 && die "does not build for $build"; }
nm -S "$work/sizes.o" | while read -r _ size _ name; do
    [[ $name != size_of_* ]] || printf '%6d  struct %s\n' "$((16#$size))" "${name#size_of_}"
done
