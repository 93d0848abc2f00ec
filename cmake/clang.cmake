# SPDX-License-Identifier: Apache-2.0
#
# Toolchain of the presets `test`, `asan` and `fuzz`: clang 16 or later. Clang 14 does not compile the coroutines.
function(gpurx_is_new_enough result program)
    execute_process(COMMAND ${program} -dumpversion OUTPUT_VARIABLE version ERROR_QUIET)
    if(version VERSION_LESS 16)
        set(${result} FALSE PARENT_SCOPE)
    endif()
endfunction()
find_program(CMAKE_CXX_COMPILER NAMES clang++-16 clang++ VALIDATOR gpurx_is_new_enough REQUIRED)
