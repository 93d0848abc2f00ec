// SPDX-License-Identifier: Apache-2.0
//
// Parts of a memory, one for each queue of io_uring: a registration takes all of a dmabuf.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace gpurx::detail {

struct memory_part {
    int dmabuf_fd = -1;      // of this part alone
    std::size_t offset = 0;  // in the memory
    std::size_t size = 0;
};

class zcrx_queue;  // zcrx_queue.hpp
using zcrx_queues = std::span<std::shared_ptr<zcrx_queue> const>;

}  // namespace gpurx::detail
