# SPDX-License-Identifier: Apache-2.0
#
# Run by cpack on what it is about to pack: manual pages and changelogs are compressed, without a date, as Debian has them.
file(GLOB_RECURSE files
    ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/man/*
    ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/doc/*/changelog)
foreach(file IN LISTS files)
    execute_process(COMMAND gzip --best --no-name --force ${file} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
