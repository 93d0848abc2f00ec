// SPDX-License-Identifier: Apache-2.0
//
// A listener whose queue is full, so that a connect to it stays pending until answer().
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace gpurx::test {

class full_backlog {
  public:
    explicit full_backlog(boost::asio::io_context& io) : acceptor_{io, tcp::v4()}
    {
        share_port(acceptor_.native_handle());
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
    // Makes room, and answers those who are pending. They would ask again after a second, and no setting shortens that:
    // a socket on the same port asks them instead, and TCP makes one connection of two ends that ask each other.
    void answer()
    {
        for (int i = 0; i < queued; ++i)
            held_.push_back(acceptor_.accept());
        for (auto const& who : pending()) {
            tcp::socket answers{acceptor_.get_executor(), tcp::v4()};
            share_port(answers.native_handle());
            answers.bind(endpoint());
            // It fails for one that has got in meanwhile, or has gone.
            if (::connect(answers.native_handle(), who.data(), static_cast<socklen_t>(who.size())) == 0)
                held_.push_back(std::move(answers));
        }
    }

  private:
    using tcp = boost::asio::ip::tcp;
    static constexpr int queued = 1;

    static void share_port(int socket)
    {
        int const yes = 1;
        ::setsockopt(socket, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes);
    }

    // Those who have asked, and have no answer: from the kernel's table, in its own notation.
    [[nodiscard]] std::vector<tcp::endpoint> pending() const
    {
        std::ifstream table{"/proc/thread-self/net/tcp"};
        std::vector<tcp::endpoint> found;
        std::string line;
        std::string local;
        std::string remote;
        std::string state;
        std::getline(table, line);  // the names of the columns
        for (std::string number; table >> number >> local >> remote >> state; std::getline(table, line)) {
            if (state == "02" && parsed(remote) == endpoint())
                found.push_back(parsed(local));
        }
        return found;
    }
    static tcp::endpoint parsed(std::string const& text)
    {
        constexpr std::size_t digits = 8;  // of the address; a colon and the port follow
        std::uint32_t address = 0;
        std::uint16_t port = 0;
        std::from_chars(text.data(), text.data() + digits, address, 16);
        std::from_chars(text.data() + digits + 1, text.data() + text.size(), port, 16);
        return {boost::asio::ip::address_v4{ntohl(address)}, port};
    }

    tcp::acceptor acceptor_;
    std::vector<tcp::socket> held_;
};

}  // namespace gpurx::test
