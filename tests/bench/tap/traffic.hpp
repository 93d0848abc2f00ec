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
#include <vector>

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
    // Between two receives of one flow, whichever it is; those that go on included.
    [[nodiscard]] std::chrono::nanoseconds largest_gap() const noexcept;
    [[nodiscard]] std::uint64_t receives() const noexcept { return receives_; }
    [[nodiscard]] std::size_t flows() const noexcept { return last_.size(); }

  private:
    using moment = std::atomic<std::int64_t>;  // nanoseconds

    boost::asio::awaitable<void> receive(gpurx::receiver rx, moment& last);
    void note_receive(moment& last) noexcept;

    gpurx::rx_session session_;
    boost::asio::io_context io_{1};
    std::list<gpurx::lab::peer_sender> senders_;
    std::atomic<std::uint64_t> receives_{0};
    std::atomic<std::int64_t> largest_{0};  // nanoseconds
    moment from_{0};                        // gaps count from here on
    std::vector<moment> last_;              // the last receive of each flow
    std::thread thread_;
};

}  // namespace bench
