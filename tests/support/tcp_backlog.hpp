// SPDX-License-Identifier: Apache-2.0
//
// A listener whose queue is full, so that a connect to it stays pending until answer().
#pragma once

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <utility>
#include <vector>

namespace gpurx::test {

class full_backlog {
  public:
    explicit full_backlog(boost::asio::io_context& io) : acceptor_{io, tcp::v4()}
    {
        acceptor_.bind({boost::asio::ip::address_v4::loopback(), 0});
        acceptor_.listen(0);
        // The queue holds one more than it was told to. Asio's own connect would wait.
        auto const to = endpoint();
        for (int i = 0; i < queued; ++i) {
            tcp::socket filler{io, tcp::v4()};
            ::connect(filler.native_handle(), to.data(), static_cast<socklen_t>(to.size()));
            held_.push_back(std::move(filler));
        }
        acceptor_.non_blocking(true);
    }

    [[nodiscard]] boost::asio::ip::tcp::endpoint endpoint() const { return acceptor_.local_endpoint(); }
    // Makes room: who is pending gets an answer when it asks again, after a second.
    void answer()
    {
        for (int i = 0; i < queued; ++i)
            held_.push_back(acceptor_.accept());
    }

  private:
    using tcp = boost::asio::ip::tcp;
    static constexpr int queued = 1;

    tcp::acceptor acceptor_;
    std::vector<tcp::socket> held_;
};

}  // namespace gpurx::test
