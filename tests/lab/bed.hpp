// SPDX-License-Identifier: Apache-2.0
//
// Transfers over the lab's wire, with every byte compared.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <gpurx/gpurx.hpp>
#include <ostream>
#include <vector>

#include "pattern.hpp"
#include "peer.hpp"

namespace gpurx::lab {

inline constexpr std::uint64_t mebibyte = 1 << 20;

// For operations of which an error is a result.
inline constexpr auto token = asio::as_tuple(asio::use_awaitable);
// For co_spawn: what a coroutine throws leaves through run().
void rethrow(std::exception_ptr failure);

// Takes the bytes of loans, in their order.
void check_loan(pattern_check& check, rx_buffer const& loan);
void check_loans(pattern_check& check, std::vector<rx_buffer> const& loans);

enum class way { read, loan, frames };  // how a flow is consumed
enum class role { accepts, connects };  // what the receiver does

struct outcome {
    stream what;  // what the header announced
    error_code error;
    std::uint64_t bytes = 0;
    std::uint64_t wrong_pieces = 0;
    std::uint64_t first_wrong = 0;
    gpurx::stats stats;
};
// Everything arrived, and was right.
[[nodiscard]] bool intact(outcome const& result, std::uint64_t bytes);
std::ostream& operator<<(std::ostream& out, outcome const& result);

// Transport of the sessions here: GPURX_LAB_TRANSPORT, devmem or zcrx; default: devmem.
[[nodiscard]] transport lab_transport();

// A session on dms0 with that transport. Notices are printed.
[[nodiscard]] rx_session open_session(std::size_t memory, rx_session_options options = {});
[[nodiscard]] rx_session open_session(device_memory memory, rx_session_options options = {});

// An acceptor on a port of its own that is steered to the session.
[[nodiscard]] tcp::acceptor listen_on(rx_session& session, asio::any_io_executor executor, family version);

// Reads the header, then the stream to its end.
asio::awaitable<void> consume(receiver rx, way how, outcome& result);
// The same of a connection to `there`.
asio::awaitable<void> connect_and_consume(rx_session& session, tcp::endpoint there, way how, outcome& result);

// Receives all streams at the same time. Outcomes are in the order in which the connections came.
[[nodiscard]] std::vector<outcome> transfer(rx_session& session, std::vector<stream> const& streams, family version,
                                            way how, role what);

}  // namespace gpurx::lab
