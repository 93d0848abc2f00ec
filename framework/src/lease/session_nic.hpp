// SPDX-License-Identifier: Apache-2.0
//
// A session asks its NIC these once the memory is bound: the narrow interface between the session, which knows no
// netlink, and queue_lease. Tests put their own in its place.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <gpurx/error.hpp>

namespace gpurx::detail {

// Rules that bring one flow, or the connections of one listener, to the session's queues. Destroying it removes them;
// the NIC must still be held then.
class steering_rule {
  public:
    steering_rule() = default;
    steering_rule(steering_rule const&) = delete;
    steering_rule& operator=(steering_rule const&) = delete;
    virtual ~steering_rule() = default;
};

// How full the bound memory is. All counts are of pages of the size that was bound, over all queues of the session.
struct pool_sample {
    std::uint64_t in_flight = 0;  // held by the NIC, TCP, or a program; includes what the pool keeps for recycling
    // Losses of the queues since they were leased; empty: the driver does not count them.
    std::optional<std::uint64_t> allocation_failures;
    std::optional<std::uint64_t> overruns = {};  // packets that found no buffer posted
    std::optional<std::uint64_t> drops = {};     // packets dropped by the NIC for any reason, overruns included
};

// The ring of each of a NIC's RX queues.
struct nic_ring {
    std::optional<std::uint32_t> frames;  // that it has room for; empty: the driver does not say
    std::uint32_t mtu = 0;

    friend bool operator==(nic_ring const&, nic_ring const&) = default;
};

// Destroying it unbinds the memory and restores the NIC. All but the getters and sample() block; the session calls them
// on a thread of its own (nic_worker.hpp). sample() may be called at the same time.
class session_nic {
  public:
    session_nic() = default;
    session_nic(session_nic const&) = delete;
    session_nic& operator=(session_nic const&) = delete;
    virtual ~session_nic() = default;

    // The kernel's id of the binding (dmabuf_cmsg.dmabuf_id).
    [[nodiscard]] virtual std::uint32_t dmabuf_id() const noexcept = 0;
    [[nodiscard]] virtual std::vector<unsigned> queues() const = 0;
    // Bytes of one page of the binding.
    [[nodiscard]] virtual std::size_t page_size() const noexcept = 0;
    // The kernel has them; else all tokens are xarray tokens.
    [[nodiscard]] virtual bool has_array_tokens() const noexcept = 0;
    // False: whoever leased the queues makes the rules that bring flows to them; those that are made here are none.
    [[nodiscard]] virtual bool steers() const noexcept { return true; }

    // By 5-tuple, or else by local port. `socket`: bound to `local`, and proof that the flow is this process's own
    // where somebody else makes the rule. Null with `code` set.
    [[nodiscard]] virtual std::unique_ptr<steering_rule> steer_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                                    asio::ip::tcp::endpoint const& remote,
                                                                    error_code& code, diagnostics& why) = 0;
    // False: move_flow() never makes a rule.
    [[nodiscard]] virtual bool moves_flows() const noexcept { return false; }
    // The same for a flow that a wider rule brings elsewhere: by 5-tuple or not at all.
    [[nodiscard]] virtual std::unique_ptr<steering_rule> move_flow(int /*socket*/,
                                                                   asio::ip::tcp::endpoint const& /*local*/,
                                                                   asio::ip::tcp::endpoint const& /*remote*/,
                                                                   error_code& code, diagnostics& why)
    {
        code = make_error_code(boost::system::errc::operation_not_supported);
        why = {.operation = "move", .object = "flow", .kernel_message = {}, .advice = {}};
        return nullptr;
    }
    // All connections to this local address (which may be unspecified) and port. `also_v4`: a v6 listener that takes
    // IPv4 as well. `socket`: as above. Null with `code` set.
    [[nodiscard]] virtual std::unique_ptr<steering_rule> steer_port(int socket, asio::ip::tcp::endpoint const& local,
                                                                    bool also_v4, error_code& code,
                                                                    diagnostics& why) = 0;
    // As it was just before the memory was bound.
    [[nodiscard]] virtual nic_ring ring() const noexcept = 0;
    // Empty: the kernel did not say.
    [[nodiscard]] virtual std::optional<pool_sample> sample() noexcept = 0;
};

}  // namespace gpurx::detail
