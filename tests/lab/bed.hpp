// SPDX-License-Identifier: Apache-2.0
//
// Transfers over the lab's wire, with every byte compared.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <gpurx/gpurx.hpp>
#include <ostream>
#include <vector>

#include "peer.hpp"

namespace gpurx::lab {

enum class way { read, loan };          // how a flow is consumed
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

// A session on dms0 with transport devmem. Notices are printed.
[[nodiscard]] rx_session open_session(std::size_t memory, rx_session_options options = {});

// An acceptor on a port of its own that is steered to the session.
[[nodiscard]] tcp::acceptor listen_on(rx_session& session, asio::any_io_executor executor, family version);

// Reads the header, then the stream to its end.
asio::awaitable<void> consume(receiver rx, way how, outcome& result);

// Receives all streams at the same time. Outcomes are in the order in which the connections came.
[[nodiscard]] std::vector<outcome> transfer(rx_session& session, std::vector<stream> const& streams, family version,
                                            way how, role what);

}  // namespace gpurx::lab
