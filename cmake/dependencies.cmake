# SPDX-License-Identifier: Apache-2.0
#
# What the project needs from outside, and the only place where versions are named; gpurxConfig.cmake.in asks for the
# library's part of it again. (CUDA, which is optional, has cuda.cmake and cuda-toolkit.txt.) Targets are GLOBAL so that
# a project that takes gpurx by add_subdirectory can link it.

# For extension modules: the process may have another OpenSSL, and the machine none of this version.
option(GPURX_STATIC_OPENSSL "Link OpenSSL as archives: what is built carries it" OFF)
if(GPURX_STATIC_OPENSSL)
    set(OPENSSL_USE_STATIC_LIBS ON)
endif()

set(GPURX_BOOST_MINIMUM 1.83)
find_package(Boost ${GPURX_BOOST_MINIMUM} REQUIRED CONFIG GLOBAL)  # headers only: Asio, System
if(GPURX_INGEST OR GPURX_BUILD_TOOLS OR GPURX_BUILD_SAMPLES OR GPURX_FUZZ)
    find_package(Boost ${GPURX_BOOST_MINIMUM} REQUIRED CONFIG COMPONENTS json url GLOBAL)
endif()
if(GPURX_INGEST OR GPURX_BUILD_SAMPLES OR GPURX_FUZZ)
    find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
endif()
find_package(Threads REQUIRED GLOBAL)
find_package(fmt REQUIRED GLOBAL)
find_package(PkgConfig REQUIRED)
pkg_check_modules(GPURX_LIBISAL REQUIRED IMPORTED_TARGET GLOBAL libisal)
pkg_check_modules(GPURX_LIBMNL REQUIRED IMPORTED_TARGET GLOBAL libmnl)

if(GPURX_BUILD_TESTS)
    find_package(Catch2 3 REQUIRED)
endif()
if(GPURX_BUILD_TOOLS OR GPURX_BUILD_SAMPLES)
    find_package(CLI11 REQUIRED)
endif()
