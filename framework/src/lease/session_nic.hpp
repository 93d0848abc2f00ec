// SPDX-License-Identifier: Apache-2.0
//
// A session's interface to its NIC after the memory is bound. It separates the session, which does not use netlink,
// from queue_lease. Tests have their own implementation.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <gpurx/error.hpp>

#include "base/memory_part.hpp"

namespace gpurx::detail {

// Rules that steer one flow, or the connections of one listener, to the session's queues. Its destruction removes them;
// the session must still hold the NIC then.
class steering_rule {
  public:
    steering_rule() = default;
    steering_rule(steering_rule const&) = delete;
    steering_rule& operator=(steering_rule const&) = delete;
    virtual ~steering_rule() = default;
};

// Fill level of the bound memory. All counts are pages of the bound size, over all queues of the session.
struct pool_sample {
    std::uint64_t in_flight = 0;  // held by the NIC, TCP, a program, or the pool for recycling
    // Losses of the queues since they were leased; empty: the driver does not count them.
    std::optional<std::uint64_t> allocation_failures;
    std::optional<std::uint64_t> overruns = {};  // packets that found no buffer posted
    std::optional<std::uint64_t> drops = {};     // packets dropped by the NIC for any reason, overruns included
};

// The ring of each of a NIC's RX queues.
struct nic_ring {
    std::optional<std::uint32_t> frames;  // capacity; empty: the driver does not report it
    std::uint32_t mtu = 0;

    friend bool operator==(nic_ring const&, nic_ring const&) = default;
};

// Its destruction unbinds the memory and restores the NIC. All functions except the getters and sample() block; the
// session calls them on its own thread (nic_worker.hpp). sample() may be called at the same time.
class session_nic {
  public:
    session_nic() = default;
    session_nic(session_nic const&) = delete;
    session_nic& operator=(session_nic const&) = delete;
    virtual ~session_nic() = default;

    // The kernel's id of the binding (dmabuf_cmsg.dmabuf_id).
    [[nodiscard]] virtual std::uint32_t dmabuf_id() const noexcept = 0;
    // The queues that deliver through io_uring, each into its part of the memory; none: memory is bound by bind-rx
    // (devmem).
    [[nodiscard]] virtual zcrx_queues zcrx() const noexcept { return {}; }
    [[nodiscard]] virtual std::vector<unsigned> queues() const = 0;
    // Bytes of one page of the binding.
    [[nodiscard]] virtual std::size_t page_size() const noexcept = 0;
    // Returns whether the kernel has array tokens; otherwise all tokens are xarray tokens.
    [[nodiscard]] virtual bool has_array_tokens() const noexcept = 0;
    // Returns false if the owner of the leased queues makes the steering rules. Rules of this object then have no
    // effect.
    [[nodiscard]] virtual bool steers() const noexcept { return true; }

    // Steers a flow by 5-tuple, or else by local port. `socket`: bound to `local`. It proves to another process that
    // makes the rule that the flow belongs to this process. On an error returns null and sets `code`.
    [[nodiscard]] virtual std::unique_ptr<steering_rule> steer_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                                    asio::ip::tcp::endpoint const& remote,
                                                                    error_code& code, diagnostics& why) = 0;
    // Returns false if move_flow() never makes a rule.
    [[nodiscard]] virtual bool moves_flows() const noexcept { return false; }
    // The same for a flow that a wider rule steers elsewhere: by 5-tuple, or not at all.
    [[nodiscard]] virtual std::unique_ptr<steering_rule> move_flow(int /*socket*/,
                                                                   asio::ip::tcp::endpoint const& /*local*/,
                                                                   asio::ip::tcp::endpoint const& /*remote*/,
                                                                   error_code& code, diagnostics& why)
    {
        code = make_error_code(boost::system::errc::operation_not_supported);
        why = {.operation = "move", .object = "flow", .kernel_message = {}, .advice = {}};
        return nullptr;
    }
    // Steers all connections to this local address (which may be unspecified) and port. `also_v4`: a v6 listener that
    // accepts IPv4 too. `socket`: as above. On an error returns null and sets `code`.
    [[nodiscard]] virtual std::unique_ptr<steering_rule> steer_port(int socket, asio::ip::tcp::endpoint const& local,
                                                                    bool also_v4, error_code& code,
                                                                    diagnostics& why) = 0;
    // The state just before the memory was bound.
    [[nodiscard]] virtual nic_ring ring() const noexcept = 0;
    // Empty if the kernel does not report it.
    [[nodiscard]] virtual std::optional<pool_sample> sample() noexcept = 0;
};

}  // namespace gpurx::detail
