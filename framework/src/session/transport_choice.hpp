// SPDX-License-Identifier: Apache-2.0
//
// How a session gets its transport: which it tries, which prerequisite of another is missing, which dmabuf the NIC
// takes, and which tokens the kernel lends pages by (docs/transports.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/error.hpp>
#include <gpurx/session.hpp>

#include "base/zcrx_support.hpp"
#include "lease/session_nic.hpp"
#include "memory/memory_state.hpp"

namespace gpurx::detail {

// Of an error that setting up a NIC ended with. `operation`: that of its diagnostics, a name of ours. `by_daemon`:
// gpurxd was asked to.
[[nodiscard]] transport_obstacle obstacle_of(error_code code, std::string_view operation, bool by_daemon) noexcept;
// Of what this process lacks for queues of io_uring.
[[nodiscard]] transport_obstacle obstacle_of(zcrx_lack lack) noexcept;

// The transports that a session tries, best first. `array_tokens`: devmem would have them here.
[[nodiscard]] std::vector<gpurx::transport> transports_to_try(gpurx::transport asked, bool allow_zcrx,
                                                              bool array_tokens);

// A transport that is not in use: why, as a value and for people.
struct reason_against {
    gpurx::transport which = gpurx::transport::automatic;
    transport_obstacle obstacle = transport_obstacle::none;
    std::string text{};

    friend bool operator==(reason_against const&, reason_against const&) = default;
};

// How a session came to its transport.
struct transport_choice {
    gpurx::transport asked = gpurx::transport::automatic;
    gpurx::transport in_use = gpurx::transport::copy;
    bool array_tokens = false;              // with devmem in use: it has them
    std::vector<reason_against> refused{};  // those that were tried
};

// `which`: devmem or zcrx, not in use.
[[nodiscard]] reason_against why_not(gpurx::transport which, transport_choice const& made);
// The lines of explain() on the transports that are not in use, each with its line end.
[[nodiscard]] std::string explain_others(transport_choice const& made);

// Leases queues and binds this dmabuf to them. Null with `code` and `why` set.
using dmabuf_lease = std::function<std::unique_ptr<session_nic>(int dmabuf, error_code& code, diagnostics& why)>;

// With the memory's dmabuf, and if it is the binding that fails, with its other one. Null with the first failure.
// `other`: that was it.
[[nodiscard]] std::unique_ptr<session_nic> lease_for(memory_state& memory, dmabuf_lease const& lease, bool& other,
                                                     error_code& code, diagnostics& why);

// An array token has 27 bits for the page, 0 of which is none. A binding with more pages has xarray tokens only.
inline constexpr std::uint64_t most_array_token_pages = (1U << 27U) - 1;

// Whether a binding of `bytes` in pages of `page_size` bytes can have array tokens.
[[nodiscard]] constexpr bool fits_array_tokens(std::uint64_t bytes, std::size_t page_size) noexcept
{
    return bytes / page_size <= most_array_token_pages;
}

// For explain(): which tokens, and why. `in_kernel`: the kernel has array tokens.
[[nodiscard]] std::string explain_tokens(bool in_kernel, std::uint64_t bytes, std::size_t page_size);

}  // namespace gpurx::detail
