# SPDX-License-Identifier: Apache-2.0
#
# gpurx_warnings: link it PRIVATE, and as $<BUILD_INTERFACE:...> where the target is installed. Users of the library
# never see these flags.

add_library(gpurx_warnings INTERFACE)
target_compile_options(gpurx_warnings INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion
    $<$<BOOL:${GPURX_WERROR}>:-Werror>)
