# SPDX-License-Identifier: Apache-2.0
#
# gpurx_warnings: link it PRIVATE, and as $<BUILD_INTERFACE:...> where the target is installed. Users of the library
# never see these flags.

add_library(gpurx_warnings INTERFACE)
# In a unity build a file's own names are in the way of the next file's, and g++ 12 takes the delete of a coroutine's frame
# for a wrong one, and a file's anonymous namespace for a header's; the preset dev sees each file by itself.
target_compile_options(gpurx_warnings INTERFACE
    -Wall -Wextra -Wpedantic -Wconversion
    $<IF:$<BOOL:${CMAKE_UNITY_BUILD}>,-Wno-mismatched-new-delete,-Wshadow>
    $<$<AND:$<BOOL:${CMAKE_UNITY_BUILD}>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>
    # g++ warns of neither in C++; the kernel's headers end structures with [].
    "$<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion;-Wno-zero-length-array>"
    $<$<BOOL:${GPURX_WERROR}>:-Werror>)
