# SPDX-License-Identifier: Apache-2.0
#
# Toolchain of the presets `test` and `fuzz`: clang 16 or later. Clang 14 does not compile the coroutines.
find_program(CMAKE_CXX_COMPILER NAMES clang++-16 clang++ REQUIRED)
