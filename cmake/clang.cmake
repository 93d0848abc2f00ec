# SPDX-License-Identifier: Apache-2.0
#
# Toolchain of the preset `fuzz`: clang under whatever name it has here. 14 is what the project is tested with.
find_program(CMAKE_CXX_COMPILER NAMES clang++-14 clang++ REQUIRED)
