// SPDX-License-Identifier: Apache-2.0
//
// Huge pages bound to the RX queue that guest.sh steers flows to, and how packets arrive in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace bench {

// How tokens are made. `stock` does not mention it to the kernel; the others need a kernel that knows the attribute.
enum class token_kind : std::uint8_t { stock, xarray, array };

// Memory is in huge pages alone: scattered memory makes the page pool slow, which hides what is measured here.
class bound_memory {
  public:
    // Throws std::system_error, gpurx::system_error.
    bound_memory(std::size_t bytes, std::uint32_t page_size, token_kind tokens);
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
