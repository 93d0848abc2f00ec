// SPDX-License-Identifier: Apache-2.0
//
// tensor_source: sends tensors from files, or made up, frame by frame.
#include <fmt/format.h>
#include <poll.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <thread>

#include "options.hpp"
#include "progress.hpp"
#include "shard.hpp"
#include "transfer.hpp"

namespace asio = boost::asio;
using asio::ip::tcp;
using clock_type = std::chrono::steady_clock;

namespace {

// Connects, or accepts, until it works or the time is up.
class way_to_receiver {
  public:
    explicit way_to_receiver(options const& wanted) : wanted_{wanted}
    {
        if (!wanted.listen)
            return;
        tcp::resolver resolver{context_};
        auto const here = resolver.resolve(wanted.listen->host, wanted.listen->port).begin()->endpoint();
        acceptor_.emplace(context_, here);
        fmt::print(stderr, "listening on port {}\n", acceptor_->local_endpoint().port());
    }

    [[nodiscard]] asio::io_context& context() noexcept { return context_; }
    [[nodiscard]] tcp::socket open()
    {
        auto const deadline = clock_type::now() + wanted_.retry;
        tcp::socket socket{context_};
        for (;;) {
            boost::system::error_code error;
            acceptor_ ? accept(socket, deadline, error) : connect(socket, error);
            if (!error)
                break;
            if (clock_type::now() >= deadline)
                throw boost::system::system_error{error, acceptor_ ? "wait for the receiver" : "connect"};
            std::this_thread::sleep_for(std::chrono::milliseconds{100});
        }
        socket.set_option(tcp::no_delay{true});
        return socket;
    }

  private:
    void accept(tcp::socket& socket, clock_type::time_point deadline, boost::system::error_code& error)
    {
        auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock_type::now());
        pollfd waiting{.fd = acceptor_->native_handle(), .events = POLLIN, .revents = 0};
        if (::poll(&waiting, 1, static_cast<int>(left.count())) > 0)
            acceptor_->accept(socket, error);
        else
            error = asio::error::timed_out;
    }
    void connect(tcp::socket& socket, boost::system::error_code& error)
    {
        auto const& [host, port] = wanted_.to[wanted_.source % wanted_.to.size()];
        tcp::resolver resolver{context_};
        auto const found = resolver.resolve(host, port, error);
        if (!error)
            socket.connect(found.begin()->endpoint(), error);
        if (error)
            socket.close();
    }

    options const& wanted_;
    asio::io_context context_{1};
    std::optional<tcp::acceptor> acceptor_;
};

void send_all(shard const& rows, options const& wanted, totals& sum)
{
    way_to_receiver way{wanted};
    transfer all{rows, wanted, sum};
    auto last_progress = clock_type::now();
    for (;;) {
        auto const before = all.acknowledged();
        auto socket = way.open();
        ++sum.connections;
        try {
            return all.run(way.context(), socket);
        } catch (boost::system::system_error const& error) {
            // With nothing new acknowledged there is an end to trying.
            if (all.acknowledged() > before)
                last_progress = clock_type::now();
            if (clock_type::now() - last_progress >= wanted.retry)
                throw;
            fmt::print(stderr, "note: {}; connecting again\n", error.what());
            std::this_thread::sleep_for(std::chrono::milliseconds{100});
        }
    }
}

void print_report(options const& wanted, totals const& sum, std::chrono::duration<double> time)
{
    auto const rate = time.count() > 0 ? static_cast<double>(sum.bytes) / time.count() : 0;
    if (!wanted.json)
        return fmt::print("source {}: {} frames, {} bytes, {:.2f} s, {}/s\n", wanted.source, sum.frames, sum.bytes,
                          time.count(), size_text(rate));
    fmt::print("{}\n", boost::json::serialize(boost::json::object{{"source", wanted.source},
                                                                  {"frames", sum.frames},
                                                                  {"bytes", sum.bytes},
                                                                  {"connections", sum.connections},
                                                                  {"seconds", time.count()}}));
}

}  // namespace

int main(int argc, char** argv)
try {
    int exit_code = 0;
    auto const wanted = parse_command_line(argc, argv, exit_code);
    if (!wanted)
        return exit_code;
    std::vector<tensor_rows> tensors;
    for (auto const& argument : wanted->tensors)
        tensors.push_back(open_tensor(argument, wanted->synthetic_rows));
    shard const rows{std::move(tensors), *wanted};
    totals sum;
    auto const start = clock_type::now();
    send_all(rows, *wanted, sum);
    print_report(*wanted, sum, clock_type::now() - start);
    return 0;
} catch (std::exception const& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
}
