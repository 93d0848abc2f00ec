# SPDX-License-Identifier: Apache-2.0
#
# Installing: headers, library, CMake package, pkg-config file. The result may be moved as a whole. The components are
# the packages of packages/packages.cmake.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/gpurx)

# gpurx_install_library(TARGET EXPORT COMPONENT): a shared library is the component's; what compiles against it is dev's.
function(gpurx_install_library target export component)
    install(TARGETS ${target} EXPORT ${export}
        LIBRARY COMPONENT ${component} NAMELINK_COMPONENT dev
        ARCHIVE COMPONENT dev
        FILE_SET HEADERS COMPONENT dev)
    install(EXPORT ${export} NAMESPACE gpurx:: DESTINATION ${package_directory} COMPONENT dev)
endfunction()
gpurx_install_library(gpurx gpurxTargets libgpurx)
if(TARGET gpurx_ingest)
    # A component: who does not ask for it needs nothing of what it needs.
    gpurx_install_library(gpurx_ingest gpurxIngestTargets libgpurx-ingest)
endif()

get_target_property(library_type gpurx TYPE)
configure_package_config_file(
    ${CMAKE_CURRENT_LIST_DIR}/gpurxConfig.cmake.in ${PROJECT_BINARY_DIR}/gpurxConfig.cmake
    INSTALL_DESTINATION ${package_directory}
    NO_SET_AND_CHECK_MACRO)
# Until 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gpurxConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gpurxConfig.cmake ${PROJECT_BINARY_DIR}/gpurxConfigVersion.cmake
    DESTINATION ${package_directory} COMPONENT dev)

# A static library hands its own dependencies on to whoever links it, also without `pkg-config --static`. A shared one has
# them: who compiles against it need not have their headers, which Requires.private would ask for.
if(library_type STREQUAL "STATIC_LIBRARY")
    set(pc_requires "Requires: fmt libisal libmnl")
else()
    set(pc_requires "")
endif()
cmake_path(SET pc_directory NORMALIZE ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${pc_directory} OUTPUT_VARIABLE pc_prefix)
configure_file(${CMAKE_CURRENT_LIST_DIR}/gpurx.pc.in ${PROJECT_BINARY_DIR}/gpurx.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gpurx.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

# What other programs do with gpurx: dashboards for Grafana, scripts for bpftrace.
if(GPURX_BUILD_TOOLS)
    install(FILES ${PROJECT_SOURCE_DIR}/framework/tools/dashboards/grafana.json
        DESTINATION ${CMAKE_INSTALL_DATADIR}/gpurx/dashboards COMPONENT tools)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/framework/tools/bpftrace
        DESTINATION ${CMAKE_INSTALL_DATADIR}/gpurx COMPONENT tools FILES_MATCHING PATTERN "*.bt"
        PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endif()
