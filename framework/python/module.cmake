# SPDX-License-Identifier: Apache-2.0
#
# The extension module _native, on top of gpurx::ingest. CMakeLists.txt here includes it for wheels, and the Debian
# packages include it too. GPURX_NANOBIND_OPTIONS selects how the module gets nanobind's shared part.

nanobind_add_module(_native ${GPURX_NANOBIND_OPTIONS} NB_SUPPRESS_WARNINGS NOMINSIZE
    ${CMAKE_CURRENT_LIST_DIR}/src/conversions.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/dlpack.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/engine.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/http_options.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/module.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/objects.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/operation.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/sender.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/session.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/slice_reads.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/source.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/stream.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/tensor.cpp
    ${CMAKE_CURRENT_LIST_DIR}/src/tensor_file.cpp)
target_compile_features(_native PRIVATE cxx_std_20)
target_link_libraries(_native PRIVATE gpurx::ingest fmt::fmt gpurx_warnings)
# Asio and the library are in other extensions of the process too, in other versions.
target_link_options(_native PRIVATE -Wl,--exclude-libs,ALL)
