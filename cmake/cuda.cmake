# SPDX-License-Identifier: Apache-2.0
#
# CUDA, where this machine has a toolkit: GPURX_HAVE_CUDA, the target gpurx_cuda_headers and gpurx_embed_cuda() below.
# The library is neither linked with CUDA nor is CUDA enabled as a language: it finds the driver at run time, and
# carries the code for the GPU as data.

set(GPURX_CUDA AUTO CACHE STRING "Build the parts for NVIDIA's GPUs: ON, OFF, or AUTO, if a CUDA toolkit is found")
set_property(CACHE GPURX_CUDA PROPERTY STRINGS AUTO ON OFF)
set(GPURX_CUDA_ROOT "" CACHE PATH
    "CUDA toolkit to use; empty: the environment variable of this name, or what cmake/cuda-toolkit.sh fetched or finds")
# Machine code also runs on later GPUs of its generation: 86 and 89 could do with that for 80, but have registers and
# caches of other sizes. For every other GPU from the lowest on, future ones too, the driver compiles the intermediate
# code of the lowest; one for a higher GPU would gain nothing, as the code uses nothing that came later.
set(GPURX_CUDA_ARCHITECTURES 80 86 89 90 100 120 CACHE STRING "GPUs to compile for, as far as nvcc knows them")
mark_as_advanced(GPURX_CUDA_ROOT GPURX_CUDA_ARCHITECTURES)

set(gpurx_cuda_toolkit ${CMAKE_CURRENT_LIST_DIR}/cuda-toolkit.sh)
set(gpurx_cuda_embed ${CMAKE_CURRENT_LIST_DIR}/cuda-embed.cmake)
# Without the build's own flags: what runs on the GPU is the same in every preset.
# Uncompressed, as the intermediate code else needs a driver that knows the compression (and tests read it).
set(gpurx_nvcc_flags -std=c++20 --expt-relaxed-constexpr -O3 -fatbin --no-compress)

# The toolkit's root, or nothing and why.
function(gpurx_find_cuda root why)
    set(named "${GPURX_CUDA_ROOT}")
    if(named STREQUAL "")
        set(named "$ENV{GPURX_CUDA_ROOT}")
    endif()
    execute_process(
        COMMAND ${CMAKE_COMMAND} -E env "GPURX_CUDA_ROOT=${named}" ${gpurx_cuda_toolkit} --path
        OUTPUT_VARIABLE found ERROR_VARIABLE complaint RESULT_VARIABLE status
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
    if(NOT named STREQUAL "" AND NOT status EQUAL 0)
        string(REGEX REPLACE "^error: " "" complaint "${complaint}")
        message(FATAL_ERROR "${complaint}")
    endif()
    if(NOT status EQUAL 0)
        set(found "")
    endif()
    set(${root} "${found}" PARENT_SCOPE)
    set(${why} "there is no CUDA toolkit: cmake/cuda-toolkit.sh fetches one, GPURX_CUDA_ROOT can name one" PARENT_SCOPE)
endfunction()

# The compiler that nvcc is to preprocess with: the project's, or where nvcc does not accept that, what it takes by
# itself. Tried once per build directory.
function(gpurx_check_nvcc works why)
    set(key "${GPURX_NVCC} ${CMAKE_CXX_COMPILER} ${CMAKE_CXX_COMPILER_VERSION}")
    if(NOT GPURX_CUDA_CHECKED STREQUAL key)
        set(directory ${CMAKE_BINARY_DIR}/CMakeFiles/gpurx_cuda)
        file(WRITE ${directory}/check.cu
            "#include <cstddef>\n#include <cstdint>\n#include <span>\n__global__ void f(std::uint32_t* p) { *p = 1; }\n")
        foreach(flags "-ccbin=${CMAKE_CXX_COMPILER}" "")
            execute_process(
                COMMAND ${GPURX_NVCC} ${gpurx_nvcc_flags} ${flags} ${directory}/check.cu -o ${directory}/check.fatbin
                OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
            if(status EQUAL 0)
                set(GPURX_CUDA_CHECKED "${key}" CACHE INTERNAL "Compilers that were tried")
                set(GPURX_NVCC_HOST_FLAGS "${flags}" CACHE INTERNAL "What makes nvcc take a compiler it accepts")
                break()
            endif()
        endforeach()
        if(NOT status EQUAL 0)
            unset(GPURX_CUDA_CHECKED CACHE)
            set(${works} OFF PARENT_SCOPE)
            set(${why} "${GPURX_NVCC} does not compile here:\n${output}" PARENT_SCOPE)
            return()
        endif()
    endif()
    set(${works} ON PARENT_SCOPE)
endfunction()

# The -gencode options for those of GPURX_CUDA_ARCHITECTURES that nvcc knows.
function(gpurx_nvcc_targets options)
    execute_process(COMMAND ${GPURX_NVCC} --list-gpu-arch OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
    set(chosen "")
    foreach(architecture IN LISTS GPURX_CUDA_ARCHITECTURES)
        if(known MATCHES "compute_${architecture}\n")
            list(APPEND chosen ${architecture})
        endif()
    endforeach()
    if(NOT chosen)
        message(FATAL_ERROR "${GPURX_NVCC} knows none of GPURX_CUDA_ARCHITECTURES (${GPURX_CUDA_ARCHITECTURES})")
    endif()
    list(SORT chosen COMPARE NATURAL)
    # As text as well, for GPUs of the future: of the lowest, and of the first that differs in what the source makes of it.
    list(GET chosen 0 texts)
    foreach(architecture IN LISTS chosen)
        if(architecture GREATER_EQUAL 100 AND NOT texts MATCHES ";")
            list(APPEND texts ${architecture})
        endif()
    endforeach()
    list(TRANSFORM chosen REPLACE "(.+)" "-gencode=arch=compute_\\1,code=sm_\\1")
    list(TRANSFORM texts REPLACE "(.+)" "-gencode=arch=compute_\\1,code=compute_\\1")
    set(${options} ${chosen} ${texts} PARENT_SCOPE)
endfunction()

# gpurx_embed_cuda(TARGET SOURCE SYMBOL [TEXTS ARCHITECTURE...]): compile SOURCE for the GPUs and put the result, a fat
# binary, into TARGET. With TEXTS it has no machine code, only the text that the machine code for these is made of. C++
# finds it, aligned to 16 bytes, as
#     extern "C" const unsigned char SYMBOL[];
#     extern "C" const unsigned long long SYMBOL_size;
function(gpurx_embed_cuda target source symbol)
    cmake_parse_arguments(PARSE_ARGV 3 arg "" "" TEXTS)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
    cmake_path(GET source FILENAME name)
    set(stem ${CMAKE_CURRENT_BINARY_DIR}/${symbol})
    if(arg_TEXTS)
        list(TRANSFORM arg_TEXTS REPLACE "(.+)" "-gencode=arch=compute_\\1,code=compute_\\1" OUTPUT_VARIABLE targets)
    else()
        gpurx_nvcc_targets(targets)
    endif()
    add_custom_command(
        OUTPUT ${stem}.cpp
        BYPRODUCTS ${stem}.fatbin
        # Two GPUs at a time: the rest of the build wants processors, too.
        COMMAND ${GPURX_NVCC} ${gpurx_nvcc_flags} ${GPURX_NVCC_HOST_FLAGS} ${targets} --threads=2
                "$<$<BOOL:${GPURX_WERROR}>:-Werror=all-warnings>" -I${PROJECT_SOURCE_DIR}/framework/src
                -MD -MF ${stem}.d -MT ${stem}.cpp -o ${stem}.fatbin ${source}
        COMMAND ${CMAKE_COMMAND} -DFILE=${stem}.fatbin -DSYMBOL=${symbol} -DOUTPUT=${stem}.cpp -P ${gpurx_cuda_embed}
        DEPENDS ${source} ${gpurx_cuda_embed}
        DEPFILE ${stem}.d
        COMMENT "Compiling ${name} for GPUs"
        COMMAND_EXPAND_LISTS
        VERBATIM)
    # To link-time optimisation the assembler's symbols do not exist.
    set_source_files_properties(${stem}.cpp PROPERTIES COMPILE_OPTIONS -fno-lto SKIP_UNITY_BUILD_INCLUSION ON)
    target_sources(${target} PRIVATE ${stem}.cpp)
endfunction()

set(GPURX_HAVE_CUDA OFF)
if(GPURX_CUDA)
    gpurx_find_cuda(gpurx_cuda_root gpurx_cuda_why)
    if(gpurx_cuda_root)
        set(GPURX_NVCC ${gpurx_cuda_root}/bin/nvcc)
        gpurx_check_nvcc(GPURX_HAVE_CUDA gpurx_cuda_why)
    endif()
    if(GPURX_HAVE_CUDA)
        message(STATUS "CUDA: ${gpurx_cuda_root}")
        # Only the library's own sources include CUDA's headers: nothing of this is installed.
        add_library(gpurx_cuda_headers INTERFACE IMPORTED GLOBAL)
        target_include_directories(gpurx_cuda_headers SYSTEM INTERFACE ${gpurx_cuda_root}/include)
    elseif(NOT GPURX_CUDA STREQUAL "AUTO")
        message(FATAL_ERROR "GPURX_CUDA is ${GPURX_CUDA}, but ${gpurx_cuda_why}")
    elseif(gpurx_cuda_root)
        message(WARNING "Building without CUDA: ${gpurx_cuda_why}")
    else()
        message(STATUS "Building without CUDA: ${gpurx_cuda_why}")
    endif()
endif()
