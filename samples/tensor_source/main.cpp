// SPDX-License-Identifier: Apache-2.0
//
// tensor_source: sends tensors from files, or synthetic ones, frame by frame.
#include <fmt/format.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <gpurx/ingest/tensor_sender.hpp>

#include "options.hpp"
#include "progress.hpp"
#include "tensor_file.hpp"

namespace asio = boost::asio;
namespace ingest = gpurx::ingest;
using clock_type = std::chrono::steady_clock;

namespace {

ingest::tensor_sender open_sender(asio::io_context& context, options const& wanted)
{
    ingest::tensor_sender_options chosen{.source = wanted.source,
                                         .resume = wanted.resume,
                                         .secret = wanted.secret,
                                         .crc32c = wanted.crc,
                                         .connect_timeout = wanted.retry,
                                         .reconnect_timeout = wanted.retry};
    if (wanted.listen) {
        asio::ip::tcp::resolver resolver{context};
        chosen.listen = resolver.resolve(wanted.listen->host, wanted.listen->port).begin()->endpoint();
    } else {
        auto const& [host, port] = wanted.to[wanted.source % wanted.to.size()];
        chosen.address = fmt::format("{}:{}", host, port);
    }
    ingest::tensor_sender sender{context, std::move(chosen)};
    if (auto const here = sender.local_endpoint())
        fmt::print(stderr, "listening on port {}\n", here->port());
    return sender;
}

// The files stay in memory: the sender need not copy their rows.
asio::awaitable<void> send_all(ingest::tensor_sender& to, shard const& rows)
{
    progress display;
    for (std::uint64_t next = 0; next < rows.frames(); ++next) {
        auto const before = to.stats().connections;
        if (next + 1 < rows.frames())
            co_await to.async_send(rows.at(next), nullptr);
        else
            co_await to.async_close(rows.at(next), nullptr);
        auto const now = to.stats();
        if (before > 0 && now.connections > before) {
            auto const why = to.why();
            fmt::print(stderr, "note: {} {}: {}; connected again\n", why.operation, why.object, why.advice);
        }
        display.update(now.bytes);
    }
}

char const* hint(gpurx::error_code code)
{
    if (code == ingest::errc::wrong_secret)
        return " (--secret-file)";
    return code == ingest::errc::wrong_source ? " (--resume goes on in the place of another process)" : "";
}

void print_report(options const& wanted, ingest::tensor_sender_stats const& sum, std::chrono::duration<double> time)
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
    auto const start = clock_type::now();
    asio::io_context context{1};
    auto sender = open_sender(context, *wanted);
    asio::co_spawn(context, send_all(sender, rows), [](std::exception_ptr const& failure) {
        if (failure)
            std::rethrow_exception(failure);
    });
    context.run();
    print_report(*wanted, sender.stats(), clock_type::now() - start);
    return 0;
} catch (gpurx::system_error const& error) {
    fmt::print(stderr, "error: {}{}\n", error.what(), hint(error.code()));
    return 1;
} catch (std::exception const& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
}
