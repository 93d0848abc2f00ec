// SPDX-License-Identifier: Apache-2.0
//
// Memory bound to the RX queue that guest.sh steers flows to, and how packets arrive in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace bench {

// contiguous: in huge pages. scattered: in pages of 4 KiB, those that follow each other lie anywhere.
enum class memory_kind : std::uint8_t { contiguous, scattered };

class bound_memory {
  public:
    // `shared`: tokens that any socket can return, which a kernel must know. Throws std::system_error,
    // gpurx::system_error.
    bound_memory(memory_kind kind, std::size_t bytes, std::uint32_t page_size, bool shared);
    bound_memory(bound_memory const&) = delete;
    bound_memory& operator=(bound_memory const&) = delete;
    ~bound_memory();  // unbinds

  private:
    struct binding;
    std::unique_ptr<binding> binding_;
};

// A binding needs packets' headers in other memory than their payload.
void split_headers();

// segmented: what the sender gives its NIC in one piece arrives in packets of one MSS, and nothing joins them again
// before TCP. packed: such packets share pages.
struct arrival {
    bool segmented;
    bool packed;
};
void set_arrival(arrival how);

}  // namespace bench
