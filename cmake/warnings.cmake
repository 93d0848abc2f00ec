# SPDX-License-Identifier: Apache-2.0
#
# gpurx_warnings: link it PRIVATE, and as $<BUILD_INTERFACE:...> where the target is installed. Users of the library
# never see these flags.

add_library(gpurx_warnings INTERFACE)
# In a unity build a file's own names are in the way of the next file's, and g++ takes a file's anonymous namespace for a
# header's; the preset dev sees each file by itself. g++ 12 takes the delete of a coroutine's frame for a wrong one.
target_compile_options(gpurx_warnings INTERFACE
    -Wall -Wextra -Wpedantic -Wconversion
    $<$<NOT:$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wshadow>
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-mismatched-new-delete>
    $<$<AND:$<BOOL:${CMAKE_UNITY_BUILD}>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>
    # g++ warns of neither in C++; the kernel's headers end structures with [].
    "$<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion;-Wno-zero-length-array>"
    $<$<BOOL:${GPURX_WERROR}>:-Werror>)
