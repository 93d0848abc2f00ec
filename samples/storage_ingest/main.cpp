// SPDX-License-Identifier: Apache-2.0
//
// gpurx-fetch: receives an object of an HTTP server into device memory, through several flows; writes it to a file,
// computes its checksums, or lists the tensors in it. What there is to learn from is in fetch() and load_tensors().
#include <fmt/format.h>
#include <sys/resource.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>
#include <exception>
#include <gpurx/gpurx.hpp>
#include <gpurx/ingest/buffer.hpp>
#include <gpurx/ingest/http.hpp>
#include <gpurx/ingest/safetensors.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "options.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "sink.hpp"

namespace asio = boost::asio;
namespace ingest = gpurx::ingest;

namespace {

enum exit_status : int { received = 0, transfer_failed = 1, unexpected_bytes = 3, no_session = 4, interrupted = 130 };

ingest::buffer allocate_landing(int gpu, std::size_t bytes)
{
    return gpu < 0 ? ingest::buffer::on_host(bytes) : ingest::buffer::on_gpu(gpu, bytes);
}

std::chrono::duration<double> cpu_time_so_far()
{
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    auto const seconds = [](timeval const& time) {
        return std::chrono::seconds{time.tv_sec} + std::chrono::microseconds{time.tv_usec};
    };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// The whole object, contiguous.
asio::awaitable<ingest::buffer> fetch(ingest::http_object& object, int gpu)
{
    auto landing = allocate_landing(gpu, object.size());
    ingest::placement const all{0, landing.span()};
    co_await object.async_fetch({&all, 1});
    co_return landing;
}

// The tensors, each at its place in one block.
asio::awaitable<ingest::buffer> load_tensors(ingest::http_object& file, int gpu, report& found)
{
    auto header = co_await ingest::async_read_safetensors_header(file);
    auto const layout = ingest::lay_out(header.tensors);
    auto block = allocate_landing(gpu, layout.size);
    auto const placements = ingest::placements_of(header.tensors, layout, block.span());
    co_await file.async_fetch(placements);
    found.tensors = std::move(header.tensors);
    found.offsets = layout.offsets;
    found.block = block.span().address();
    co_return block;
}

// Brought to the host piece by piece. Returns the SHA-256 of it.
std::string write_out(ingest::buffer const& landing, gpurx::cuda_stream_ref stream, options const& wanted)
{
    constexpr std::size_t piece_size = std::size_t{4} << 20;
    sink out{wanted.output};
    auto const all = landing.span();
    for (std::size_t at = 0; at < all.size(); at += piece_size) {
        gpurx::fragment const piece{all.address() + at, std::min(piece_size, all.size() - at), all.kind()};
        out.write(std::span{&piece, 1}, stream);
    }
    return out.finish();
}

asio::awaitable<void> transfer(options const& wanted, gpurx::rx_session& session, gpurx::cuda_stream_ref stream,
                               progress& shown, report& found)
{
    auto const executor = co_await asio::this_coro::executor;
    auto const start = std::chrono::steady_clock::now();
    auto const cpu_start = cpu_time_so_far();
    auto http = wanted.http;
    http.stream = stream;
    ingest::http_object object{executor, session, wanted.url, http};
    co_await object.async_open();
    shown.expect(object.size());
    ingest::buffer landing;
    if (wanted.safetensors)
        landing = co_await load_tensors(object, wanted.nic.gpu, found);
    else
        landing = co_await fetch(object, wanted.nic.gpu);
    co_await gpurx::async_wait(executor, stream, landing.span());
    found.time = std::chrono::steady_clock::now() - start;
    found.cpu_time = cpu_time_so_far() - cpu_start;
    if (wanted.sha256 || !wanted.output.empty())
        found.sha256 = write_out(landing, stream, wanted);
    found.url = object.url();
    found.etag = object.etag();
    found.size = object.size();
    found.http = object.stats();
    found.crc32c = object.crc32c();
    found.crc32c_announced = object.announced_crc32c().has_value();
}

asio::awaitable<void> show_progress(gpurx::rx_session const& session, progress& shown)
{
    asio::steady_timer timer{co_await asio::this_coro::executor};
    for (;;) {
        shown.update(session.stats().bytes());
        timer.expires_after(std::chrono::milliseconds{200});
        co_await timer.async_wait(asio::use_awaitable);
    }
}

exit_status run(options const& wanted, gpurx::rx_session& session)
{
    // Of our own, so that nothing else that the GPU does is waited for.
    gpurx::cuda_stream stream;
    if (wanted.nic.gpu >= 0)
        stream = gpurx::cuda_stream::on(wanted.nic.gpu);
    progress shown;
    report found{.transport = session.transport(),
                 .explanation = session.explain(),
                 .stats = {},
                 .http = {},
                 .url = {},
                 .etag = {},
                 .crc32c = {},
                 .sha256 = {},
                 .expected_sha256 = wanted.expected_sha256,
                 .tensors = {},
                 .offsets = {},
                 .block = 0};

    asio::io_context context{static_cast<int>(wanted.threads)};
    asio::signal_set signals{context, SIGINT, SIGTERM};
    signals.async_wait([&](boost::system::error_code error, int) {
        if (!error)
            context.stop();
    });
    std::optional<std::exception_ptr> outcome;
    asio::co_spawn(context, show_progress(session, shown), asio::detached);
    asio::co_spawn(context, transfer(wanted, session, stream, shown, found), [&](std::exception_ptr failure) {
        outcome = failure;
        context.stop();
    });
    std::vector<std::jthread> others;
    for (unsigned i = 1; i < wanted.threads; ++i)
        others.emplace_back([&] { context.run(); });
    context.run();
    others.clear();

    static_cast<void>(shown.finish());
    if (!outcome)
        return interrupted;
    if (*outcome)
        std::rethrow_exception(*outcome);
    found.stats = session.stats();
    wanted.json ? print_json(found) : print_table(found);
    if (!found.as_expected())
        fmt::print(stderr, "error: the SHA-256 is not the expected one, {}\n", wanted.expected_sha256);
    return found.as_expected() ? received : unexpected_bytes;
}

}  // namespace

int main(int argc, char** argv)
try {
    int exit_code = 0;
    auto const wanted = parse_command_line(argc, argv, exit_code);
    if (!wanted)
        return exit_code;
    auto session = open_session(wanted->nic);
    return session ? run(*wanted, *session) : no_session;
} catch (gpurx::system_error const& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return error.code() == ingest::errc::wrong_checksum ? unexpected_bytes : transfer_failed;
} catch (std::exception const& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return transfer_failed;
}
