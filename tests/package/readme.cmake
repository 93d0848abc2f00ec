# SPDX-License-Identifier: Apache-2.0
#
# cmake -DREADME=... -DPREFIX=... -DWORK=... -DCOMPILER=... -DGENERATOR=... -DPROGRAM=... -P readme.cmake: builds and runs
# the program with the lines of CMake that the README has, against an installed gpurx.
file(REMOVE_RECURSE ${WORK})
file(READ ${README} text)
if(NOT text MATCHES "cmake --install build/release --prefix ")
    message(FATAL_ERROR "${README} does not say how to install")
endif()
if(NOT text MATCHES "\n```cmake\n([^`]+)```")
    message(FATAL_ERROR "${README} has no lines of CMake")
endif()
file(WRITE ${WORK}/CMakeLists.txt
    "cmake_minimum_required(VERSION 3.25)\nproject(readme LANGUAGES CXX)\n${CMAKE_MATCH_1}")
file(COPY_FILE ${PROGRAM} ${WORK}/main.cpp)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${WORK} -B ${WORK}/build -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -DCMAKE_PREFIX_PATH=${PREFIX}
    COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/build/program COMMAND_ERROR_IS_FATAL ANY)
