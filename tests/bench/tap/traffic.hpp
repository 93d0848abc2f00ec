// SPDX-License-Identifier: Apache-2.0
//
// Flows that are always busy: senders in the peer's network namespace, receivers of a session on dms0, in a thread.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <gpurx/gpurx.hpp>
#include <list>
#include <thread>

#include "lab/peer.hpp"

namespace bench {

class traffic {
  public:
    // Returns when all of them receive. Throws gpurx::system_error.
    explicit traffic(unsigned flows);
    traffic(traffic const&) = delete;
    traffic& operator=(traffic const&) = delete;
    ~traffic();

    void forget_gaps() noexcept;
    // Between two receives of one flow, the one that goes on included.
    [[nodiscard]] std::chrono::nanoseconds largest_gap() const noexcept;
    [[nodiscard]] std::uint64_t receives() const noexcept { return receives_; }

  private:
    boost::asio::awaitable<void> receive(gpurx::receiver rx);
    void note_receive(std::int64_t& last) noexcept;

    gpurx::rx_session session_;
    boost::asio::io_context io_{1};
    std::list<gpurx::lab::peer_sender> senders_;
    std::atomic<std::uint64_t> receives_{0};
    std::atomic<std::int64_t> largest_{0};  // nanoseconds
    std::atomic<std::int64_t> from_{0};     // gaps count from here on
    std::atomic<std::int64_t> last_{0};     // the last receive of any flow
    std::thread thread_;
};

}  // namespace bench
