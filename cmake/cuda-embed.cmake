# SPDX-License-Identifier: Apache-2.0
#
# cmake -DFILE=... -DSYMBOL=... -DOUTPUT=... -P cuda-embed.cmake: write a C++ source that carries FILE as SYMBOL.
# A C++ source rather than one for the assembler, so that it is compiled with the flags that the whole library has to
# agree in. The hash is there for compiler caches, which may not look behind .incbin.
file(SHA256 ${FILE} hash)
file(WRITE ${OUTPUT} "// SHA-256 ${hash}
asm(R\"(
    .pushsection .rodata
    .balign 16
    .global ${SYMBOL}
    .hidden ${SYMBOL}
    .type ${SYMBOL}, %object
${SYMBOL}:
    .incbin \"${FILE}\"
1:
    .size ${SYMBOL}, . - ${SYMBOL}
    .balign 8
    .global ${SYMBOL}_size
    .hidden ${SYMBOL}_size
    .type ${SYMBOL}_size, %object
${SYMBOL}_size:
    .8byte 1b - ${SYMBOL}
    .size ${SYMBOL}_size, 8
    .popsection
)\");
")
