// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>

#include "base/zcrx_support.hpp"

namespace gpurx::test {

// As Linux 7.3.4 answers a process with every right.
inline detail::zcrx_support zcrx_of_linux_7_3()
{
    return {.disabled = 0,
            .offers = {.register_flags = 3,
                       .area_flags = 1,
                       .nr_ctrl_opcodes = 4,
                       .features = 3,
                       .rq_hdr_size = 128,
                       .rq_hdr_alignment = 64,
                       .reserved = 0},
            .right_error = EFAULT};
}

}  // namespace gpurx::test
