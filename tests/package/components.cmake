# SPDX-License-Identifier: Apache-2.0
#
# cmake -DPREFIX=... -DLIBDIR=... -DWORK=... -DCOMPILER=... -DGENERATOR=... -P components.cmake: what find_package says of
# a component that gpurx does not have, and of one that was not installed.
file(REMOVE_RECURSE ${WORK})

# expect_refusal(COMPONENT DIRECTORY WORDS...): the package in DIRECTORY refuses COMPONENT with all WORDS.
function(expect_refusal component directory)
    execute_process(
        COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/components -B ${WORK}/${component} -G ${GENERATOR}
            -DCMAKE_CXX_COMPILER=${COMPILER} -Dgpurx_DIR=${directory} -Dwanted=${component}
        RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE said)
    string(REGEX REPLACE "[ \n]+" " " said "${said}")
    if(status EQUAL 0)
        message(FATAL_ERROR "find_package found the component ${component}")
    endif()
    foreach(words IN LISTS ARGN)
        string(FIND "${said}" "${words}" at)
        if(at EQUAL -1)
            message(FATAL_ERROR "\"${words}\" is not in what find_package says of ${component}:\n${said}")
        endif()
    endforeach()
endfunction()

expect_refusal(nonsense ${PREFIX}/${LIBDIR}/cmake/gpurx "no component nonsense" "it has: ingest")

# The same package without the files of one component.
file(GLOB entries RELATIVE ${PREFIX}/${LIBDIR} ${PREFIX}/${LIBDIR}/*)
list(REMOVE_ITEM entries cmake)
file(MAKE_DIRECTORY ${WORK}/prefix/${LIBDIR}/cmake)
file(CREATE_LINK ${PREFIX}/include ${WORK}/prefix/include SYMBOLIC)
foreach(entry IN LISTS entries)
    file(CREATE_LINK ${PREFIX}/${LIBDIR}/${entry} ${WORK}/prefix/${LIBDIR}/${entry} SYMBOLIC)
endforeach()
file(COPY ${PREFIX}/${LIBDIR}/cmake/gpurx DESTINATION ${WORK}/prefix/${LIBDIR}/cmake)
file(GLOB ingest ${WORK}/prefix/${LIBDIR}/cmake/gpurx/gpurxIngestTargets*)
file(REMOVE ${ingest})
expect_refusal(ingest ${WORK}/prefix/${LIBDIR}/cmake/gpurx
    "component ingest is not installed" "gpurxIngestTargets.cmake" "GPURX_INGEST=ON")
