// SPDX-License-Identifier: Apache-2.0
//
// training_ingest: receives a stream of tensors and passes it to a trainer, batch by batch. The trainer is train(),
// which only waits: put a model there.
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>
#include <exception>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/ingest/tensor_stream.hpp>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "cli.hpp"
#include "progress.hpp"
#include "sink.hpp"

namespace asio = boost::asio;
namespace ingest = gpurx::ingest;
using asio::ip::tcp;
using clock_type = std::chrono::steady_clock;

namespace {

enum exit_status : int { received = 0, stream_failed = 1, source_failed = 3, no_session = 4, interrupted = 130 };

// Stands for a model. On a GPU a model would enqueue its work on `stream` and return. The batch's memory is used again
// when that work has run.
asio::awaitable<void> train(ingest::batch const& batch, std::chrono::microseconds time)
{
    if (time.count() == 0 || batch.empty())
        co_return;
    asio::steady_timer timer{co_await asio::this_coro::executor, time};
    co_await timer.async_wait(asio::use_awaitable);
}

// The SHA-256 of each tensor's bytes, over all batches.
class hashes {
  public:
    void take(ingest::batch const& batch, gpurx::cuda_stream_ref stream)
    {
        for (auto const& tensor : batch.tensors()) {
            gpurx::fragment const bytes{tensor.bytes.address(), tensor.bytes.size(), tensor.bytes.kind()};
            sinks_.try_emplace(tensor.name, "").first->second.write({&bytes, 1}, stream);
        }
    }
    [[nodiscard]] std::vector<std::pair<std::string, std::string>> finish()
    {
        std::vector<std::pair<std::string, std::string>> result;
        for (auto& [name, sink] : sinks_)
            result.emplace_back(name, sink.finish());
        return result;
    }

  private:
    std::map<std::string, sink> sinks_;
};

asio::awaitable<void> consume(options const& wanted, ingest::tensor_stream& stream, progress& display, report& found)
{
    hashes sums;
    auto const start = clock_type::now();
    for (;;) {
        auto const asked = clock_type::now();
        auto [error, batch] = co_await stream.async_next(asio::as_tuple(asio::use_awaitable));
        found.waiting += clock_type::now() - asked;
        if (error == asio::error::eof)
            break;
        if (error)
            throw gpurx::system_error{error, {"receive", "batch", {}, {}}};
        found.rows += batch.rows();
        if (wanted.sha256)
            sums.take(batch, wanted.stream.stream);
        co_await train(batch, wanted.train_time);
        display.update(stream.stats().payload_bytes);
    }
    found.time = clock_type::now() - start;
    found.stream = stream.stats();
    found.errors = stream.errors();
    found.sha256 = sums.finish();
}

std::vector<tcp::endpoint> resolve(asio::io_context& context, std::vector<endpoint_name> const& names)
{
    tcp::resolver resolver{context};
    std::vector<tcp::endpoint> endpoints;
    for (auto const& [host, port] : names) {
        gpurx::error_code error;
        auto const found = resolver.resolve(host, port, error);
        if (error)
            throw gpurx::system_error{error, {"resolve", host, {}, {}}};
        endpoints.push_back(found.begin()->endpoint());
    }
    return endpoints;
}

ingest::tensor_stream open_stream(options const& wanted, asio::io_context& context, gpurx::rx_session& session)
{
    auto chosen = wanted.stream;
    chosen.listen = resolve(context, wanted.listen);
    chosen.connect = resolve(context, wanted.connect);
    chosen.on_error = [](ingest::source_error const& error) {
        fmt::print(stderr, "note: {}\n", describe(error.code, error.why));
    };
    ingest::tensor_stream stream{context, session, std::move(chosen)};
    for (auto const& here : stream.local_endpoints())
        fmt::print(stderr, "listening on port {}, transport {}\n", here.port(), to_string(session.transport()));
    return stream;
}

bool all_complete(report const& found)
{
    return std::ranges::none_of(found.errors, [](auto const& error) { return error.source.has_value(); });
}

exit_status run(options const& wanted, gpurx::rx_session& session)
{
    progress display;
    report found{.transport = session.transport(),
                 .explanation = session.explain(),
                 .session = {},
                 .stream = {},
                 .sha256 = {},
                 .errors = {}};
    asio::io_context context{static_cast<int>(wanted.threads)};
    asio::signal_set signals{context, SIGINT, SIGTERM};
    signals.async_wait([&](boost::system::error_code error, int) {
        if (!error)
            context.stop();
    });
    auto stream = open_stream(wanted, context, session);
    std::optional<std::exception_ptr> outcome;
    display.update(0);
    asio::co_spawn(asio::make_strand(context), consume(wanted, stream, display, found),
                   [&](std::exception_ptr failure) {
                       outcome = failure;
                       context.stop();
                   });
    {
        std::vector<std::jthread> others;
        for (unsigned i = 1; i < wanted.threads; ++i)
            others.emplace_back([&] { context.run(); });
        context.run();
    }
    static_cast<void>(display.finish());
    if (!outcome)
        return interrupted;
    if (*outcome)
        std::rethrow_exception(*outcome);
    found.session = session.stats();
    wanted.json ? print_json(found) : print_table(found);
    return all_complete(found) ? received : source_failed;
}

}  // namespace

int main(int argc, char** argv)
try {
    int exit_code = 0;
    auto wanted = parse_command_line(argc, argv, exit_code);
    if (!wanted)
        return exit_code;
    auto session = open_session(wanted->nic);
    if (!session)
        return no_session;
    gpurx::cuda_stream compute;
    if (wanted->stream.gpu >= 0)
        compute = gpurx::cuda_stream::on(wanted->stream.gpu);
    wanted->stream.stream = compute;
    return run(*wanted, *session);
} catch (std::exception const& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return stream_failed;
}
