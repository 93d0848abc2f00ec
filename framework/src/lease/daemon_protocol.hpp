// SPDX-License-Identifier: Apache-2.0
//
// The messages between a session without rights and gpurxd (docs/gpurxd.md), as values and as bytes. No I/O.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <gpurx/error.hpp>

#include "session_nic.hpp"

namespace gpurx::detail {

inline constexpr std::uint16_t daemon_protocol_version = 2;
// Most bytes of a message, in both directions.
inline constexpr std::size_t daemon_message_limit = 4096;
inline constexpr std::size_t daemon_queue_limit = 256;

// ---- requests of a client; the first is always open_request ----

// Has the descriptor of the dmabuf. A request without one asks only for the policy's decision.
struct open_request {
    std::string interface;  // at most 15 bytes, none of them 0
    std::uint32_t rx_queues = 1;
    std::uint32_t rx_page_size = 0;
    std::uint64_t probe_memory = 0;  // bytes of memory to check in a request without a descriptor; 0: none

    friend bool operator==(open_request const&, open_request const&) = default;
};
// Has the descriptor of the flow's socket, bound to `local` and not connected to anything but `remote`.
struct steer_flow_request {
    asio::ip::tcp::endpoint local;
    asio::ip::tcp::endpoint remote;
    bool exact = false;  // only a rule of both ends: a wider rule steers the flow elsewhere

    friend bool operator==(steer_flow_request const&, steer_flow_request const&) = default;
};
// Has the descriptor of the listener's socket, bound to `local`.
struct steer_port_request {
    asio::ip::tcp::endpoint local;
    bool also_v4 = false;

    friend bool operator==(steer_port_request const&, steer_port_request const&) = default;
};
struct unsteer_request {
    std::uint32_t rule = 0;

    friend bool operator==(unsteer_request const&, unsteer_request const&) = default;
};
using daemon_request = std::variant<open_request, steer_flow_request, steer_port_request, unsteer_request>;

// ---- messages of the daemon: one response to each request, and any number of notices before it ----

struct opened_reply {
    std::uint32_t dmabuf_id = 0;
    std::uint32_t page_size = 0;
    bool array_tokens = false;
    bool steers = true;  // as session_nic::steers()
    nic_ring ring;
    std::vector<unsigned> queues;  // 1 to daemon_queue_limit

    friend bool operator==(opened_reply const&, opened_reply const&) = default;
};
struct steered_reply {
    std::uint32_t rule = 0;

    friend bool operator==(steered_reply const&, steered_reply const&) = default;
};
struct unsteered_reply {
    friend bool operator==(unsteered_reply const&, unsteered_reply const&) = default;
};
// Error categories that the client may not know arrive as EIO, with their text in `kernel_message`.
struct refused_reply {
    error_code code;
    diagnostics why;

    friend bool operator==(refused_reply const&, refused_reply const&) = default;
};
struct notice_reply {
    std::string sentence;

    friend bool operator==(notice_reply const&, notice_reply const&) = default;
};
using daemon_reply = std::variant<opened_reply, steered_reply, unsteered_reply, refused_reply, notice_reply>;

// Encodes a message. Text that does not fit is cut off.
[[nodiscard]] std::vector<std::byte> encode(daemon_request const& from);
[[nodiscard]] std::vector<std::byte> encode(daemon_reply const& from);

struct message_damage {
    std::string what;
    bool other_version = false;  // the rest of the message then has no meaning

    friend bool operator==(message_damage const&, message_damage const&) = default;
};
// Parses any bytes. Accepts only messages that encode() writes.
[[nodiscard]] std::variant<daemon_request, message_damage> parse_daemon_request(std::span<std::byte const> message);
[[nodiscard]] std::variant<daemon_reply, message_damage> parse_daemon_reply(std::span<std::byte const> message);

}  // namespace gpurx::detail
