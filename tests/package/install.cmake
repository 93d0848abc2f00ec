# SPDX-License-Identifier: Apache-2.0
#
# cmake -DBUILD=... -DSTAGED=... -DPREFIX=... -P install.cmake: installs to STAGED, then moves the tree to PREFIX.
file(REMOVE_RECURSE ${STAGED} ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${STAGED} COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${STAGED} ${PREFIX})
