# SPDX-License-Identifier: Apache-2.0
#
# Debian packages, a component each; the target `packages` is what they are made of. build.sh, beside this, drives it.
#
# The libraries are shared here, where a plain build makes archives: programs of one machine then have one copy, and get
# a correction without being linked anew. What crosses their boundary has types of Asio, so libgpurx-dev asks for the very
# Boost that they were compiled with. Until 1.0 each minor version has a soname, and a package name, of its own.
if(NOT BUILD_SHARED_LIBS OR NOT GPURX_INGEST OR NOT GPURX_BUILD_TOOLS OR NOT GPURX_BUILD_SAMPLES OR NOT GPURX_INSTALL)
    message(FATAL_ERROR "GPURX_PACKAGES needs BUILD_SHARED_LIBS and all parts of gpurx: cmake --preset packages")
endif()
set(packaging ${CMAKE_CURRENT_LIST_DIR})
set(made ${PROJECT_BINARY_DIR}/packages)
set(GPURX_SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

# python3-gpurx: for the python3 of the release, with the libraries of the other packages.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(nanobind 3 CONFIG REQUIRED)
set(python_directory lib/python3/dist-packages)
set(python_source ${PROJECT_SOURCE_DIR}/framework/python)
# The package nanobind-backend is not in Debian.
set(GPURX_NANOBIND_OPTIONS NB_STATIC)
set(CMAKE_UNITY_BUILD OFF)
include(${python_source}/module.cmake)
install(TARGETS _native LIBRARY DESTINATION ${python_directory}/gpurx COMPONENT python)
install(DIRECTORY ${python_source}/gpurx DESTINATION ${python_directory} COMPONENT python
    PATTERN __pycache__ EXCLUDE)
execute_process(
    COMMAND ${Python_EXECUTABLE} ${packaging}/dist_info.py
        ${PROJECT_SOURCE_DIR}/pyproject.toml ${PROJECT_VERSION} ${made}/gpurx-${PROJECT_VERSION}.dist-info
    COMMAND_ERROR_IS_FATAL ANY)
install(DIRECTORY ${made}/gpurx-${PROJECT_VERSION}.dist-info DESTINATION ${python_directory} COMPONENT python)
file(GLOB_RECURSE nanobind_licence ${nanobind_DIR}/../../nanobind-*.dist-info/LICENSE)
if(NOT nanobind_licence)
    message(FATAL_ERROR "nanobind's licence is not beside ${nanobind_DIR}: the Python package carries it, and has to say so")
endif()
install(FILES ${nanobind_licence} DESTINATION share/doc/python3-gpurx RENAME nanobind.txt COMPONENT python)

# devmemsim-dkms
set(module_source ${PROJECT_SOURCE_DIR}/kernel-support/devmemsim)
file(STRINGS ${module_source}/dkms.conf line REGEX "^PACKAGE_VERSION=")
string(REGEX REPLACE "^[^\"]*\"(.*)\"$" "\\1" DEVMEMSIM_VERSION "${line}")
install(DIRECTORY ${module_source}/ DESTINATION src/devmemsim-${DEVMEMSIM_VERSION} COMPONENT devmemsim
    FILES_MATCHING PATTERN "*.[ch]" PATTERN Kbuild PATTERN Makefile PATTERN dkms.conf PATTERN tests EXCLUDE)
install(FILES ${module_source}/README.md DESTINATION share/doc/devmemsim-dkms COMPONENT devmemsim)

add_custom_target(packages DEPENDS gpurx gpurx_ingest gpurx-doctor gpurx-fetch gpurx-perf gpurx-run gpurxd _native)

# For which release: packages of one have other names of libraries in them than those of another.
file(STRINGS /etc/os-release release REGEX "^(ID|VERSION_ID)=")
list(SORT release)
list(TRANSFORM release REPLACE "^[^=]*=\"?([^\"]*)\"?$" "\\1")
list(JOIN release "" release)
string(REPLACE debian deb release "${release}")

# What a package is called, and who asks for it by that.
set(libgpurx_package libgpurx${GPURX_SOVERSION})
set(libgpurx-ingest_package libgpurx-ingest${GPURX_SOVERSION})
set(dev_package libgpurx-dev)
set(tools_package gpurx-tools)
set(gpurxd_package gpurxd)
set(python_package python3-gpurx)
set(devmemsim_package devmemsim-dkms)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gpurx)
set(CPACK_PACKAGE_VENDOR gpurx)
set(CPACK_PACKAGE_CONTACT "The gpurx project <gpurx@packages.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PRE_BUILD_SCRIPTS ${packaging}/compress.cmake)
set(CPACK_COMPONENTS_ALL libgpurx libgpurx-ingest dev tools gpurxd python devmemsim)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1~${release})
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/framework ${PROJECT_BINARY_DIR}/framework/ingest)
# Not by a minor version alone: what is between two of ours is made for one another.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY "=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(full_version ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
set(boost_package libboost${Boost_VERSION_MAJOR}.${Boost_VERSION_MINOR}-dev)
math(EXPR next_python "${Python_VERSION_MINOR} + 1")

# gpurx_package(COMPONENT SECTION DEPENDS DESCRIPTION)
function(gpurx_package component section depends description)
    string(TOUPPER ${component} upper)
    set(package ${${component}_package})
    foreach(setting
            "PACKAGE_NAME=${package}"
            "FILE_NAME=DEB-DEFAULT"
            "PACKAGE_SECTION=${section}"
            "PACKAGE_DEPENDS=${depends}"
            "DESCRIPTION=${description}")
        string(REGEX MATCH "^([A-Z_]+)=(.*)$" whole "${setting}")
        set(CPACK_DEBIAN_${upper}_${CMAKE_MATCH_1} "${CMAKE_MATCH_2}" PARENT_SCOPE)
    endforeach()
    set(licence copyright)
    if(component STREQUAL devmemsim)
        set(licence copyright.devmemsim)
    endif()
    install(FILES ${packaging}/${licence} DESTINATION share/doc/${package} RENAME copyright COMPONENT ${component})
    install(FILES ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION share/doc/${package} RENAME changelog COMPONENT ${component})
endfunction()
set(needs_libgpurx "${libgpurx_package} (= ${full_version})")
set(needs_both "${needs_libgpurx}, ${libgpurx-ingest_package} (= ${full_version})")
gpurx_package(libgpurx libs "" "The library: connections whose payload a NIC writes into memory of a GPU")
gpurx_package(libgpurx-ingest libs "${needs_libgpurx}"
    "The library on top of it: objects of HTTP and S3 servers, safetensors files, streams of tensors")
gpurx_package(dev libdevel "${needs_both}, ${boost_package}" "Headers, and what CMake and pkg-config need to find the libraries")
gpurx_package(tools net "${needs_both}" "gpurx-doctor says whether it works on a machine, gpurx-perf what it costs; gpurx-fetch loads an object of a server")
# Neither started nor enabled: without a policy it gives nothing to anybody.
gpurx_package(gpurxd net "${needs_libgpurx}" "The daemon through which programs without rights receive into device memory")
gpurx_package(python python
    "${needs_both}, python3 (>= ${Python_VERSION_MAJOR}.${Python_VERSION_MINOR}), python3 (<< ${Python_VERSION_MAJOR}.${next_python})"
    "The Python package: tensors of safetensors files and of streams, for torch, numpy and jax")
gpurx_package(devmemsim kernel "dkms (>= 3.0)" "The software NIC to try it without hardware: sources of a kernel module")
set(CPACK_DEBIAN_DEVMEMSIM_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DEVMEMSIM_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)

# Scripts of maintainers: only what a file cannot do by being there.
set(python_scripts postinst prerm)
set(devmemsim_scripts postinst prerm)
set(gpurxd_scripts postinst postrm)
foreach(component python devmemsim gpurxd)
    string(TOUPPER ${component} upper)
    foreach(script IN LISTS ${component}_scripts)
        configure_file(${packaging}/${component}.${script}.in ${made}/${component}/${script} @ONLY
            FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
        list(APPEND CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA ${made}/${component}/${script})
    endforeach()
endforeach()

include(CPack)
