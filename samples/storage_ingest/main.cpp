// SPDX-License-Identifier: Apache-2.0
//
// gpurx-fetch: receives an object of a server through several flows, into device memory, or piece by piece into a file.
// It computes checksums, or lists tensors. load.cpp and save() show the use of the library.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <gpurx/gpurx.hpp>
#include <gpurx/ingest/buffer.hpp>
#include <gpurx/ingest/checkpoint.hpp>
#include <gpurx/ingest/object.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "load.hpp"
#include "options.hpp"
#include "output.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "sink.hpp"

namespace asio = boost::asio;
namespace ingest = gpurx::ingest;

namespace {

enum exit_status : int { received = 0, transfer_failed = 1, unexpected_bytes = 3, no_session = 4 };

// Bytes of a piece, for an object that is written or hashed.
constexpr std::size_t piece_size = std::size_t{4} << 20;

std::chrono::duration<double> cpu_time_so_far()
{
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    auto const seconds = [](timeval const& time) {
        return std::chrono::seconds{time.tv_sec} + std::chrono::microseconds{time.tv_usec};
    };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Watches SIGINT and SIGTERM on a thread of its own: other threads may block in a write to a pipe or a disk.
class interruption {
  public:
    // `stop` runs on that thread. If the program has not ended half a second later, it exits with 128 plus the number
    // of the signal. The next session then undoes its changes of a NIC.
    explicit interruption(std::function<void()> stop);
    interruption(interruption const&) = delete;
    interruption& operator=(interruption const&) = delete;
    ~interruption();

    // The received signal; 0: none.
    [[nodiscard]] int signal() const noexcept { return signal_; }

  private:
    std::atomic<int> signal_ = 0;
    boost::asio::io_context context_{1};
    boost::asio::signal_set signals_;
    boost::asio::steady_timer grace_period_;
    std::jthread watch_;
};

interruption::interruption(std::function<void()> stop) : signals_{context_, SIGINT, SIGTERM}, grace_period_{context_}
{
    signals_.async_wait([this, stop = std::move(stop)](boost::system::error_code code, int number) {
        if (code)
            return;
        signal_ = number;
        stop();
        grace_period_.expires_after(std::chrono::milliseconds{500});
        grace_period_.async_wait([number](boost::system::error_code) { ::_exit(128 + number); });
    });
    watch_ = std::jthread{[this] { context_.run(); }};
}

interruption::~interruption()
{
    context_.stop();
}

using bytes = std::span<std::byte const>;

// Writes the object in pieces as they arrive, or in the order of the object if `out` is no file.
asio::awaitable<void> save(ingest::object& object, output& out, sha256* hash)
{
    out.reserve(object.size());
    ingest::piece_consumer take = [&out, hash](std::uint64_t offset, bytes piece) -> asio::awaitable<void> {
        out.write(offset, piece);
        if (hash != nullptr && !out.is_file())
            hash->update(piece);
        co_return;
    };
    co_await object.async_fetch_pieces(std::move(take));
}

// Hashes the written file, because pieces arrived in any order.
asio::awaitable<void> hash_file(output const& out, std::uint64_t size, sha256& hash)
{
    std::vector<std::byte> piece(std::min<std::uint64_t>(size, piece_size));
    for (std::uint64_t at = 0; at < size; at += piece.size()) {
        auto const some = std::span{piece}.first(std::min<std::uint64_t>(piece.size(), size - at));
        out.read(at, some);
        hash.update(some);
        // A signal takes effect between two pieces.
        co_await asio::post(asio::use_awaitable);
    }
}

// Writes and hashes memory; copies a GPU's to the host first.
asio::awaitable<void> write_out(ingest::buffer const& landing, gpurx::cuda_stream_ref stream, output* out, sha256* hash)
{
    auto const all = landing.span();
    std::vector<std::byte> brought(std::min(all.size(), piece_size));
    for (std::size_t at = 0; at < all.size(); at += brought.size()) {
        auto const size = std::min(brought.size(), all.size() - at);
        gpurx::fragment const piece{all.address() + at, size, all.kind()};
        gpurx::gather({&piece, 1}, gpurx::destination{gpurx::host_span{brought.data(), size}}.where(), stream);
        bytes const here{brought.data(), size};
        if (out != nullptr)
            out->write(at, here);
        if (hash != nullptr)
            hash->update(here);
        co_await asio::post(asio::use_awaitable);
    }
}

void explain_way(std::string_view url, report& found)
{
    std::string_view why;
    if (url.starts_with("https:"))
        why = "https: the CPU decrypts the data, so neither transport devmem nor zcrx can be used";
    else if (ingest::object::is_file(url))
        why = "file: the bytes came from a disk of this machine, or its page cache, without a NIC";
    else
        return;
    found.transport = gpurx::transport::copy;
    found.explanation += fmt::format("\n{}", why);
}

void describe(ingest::object const& object, report& found)
{
    found.url = ingest::redacted_url(object.url());
    found.etag = object.etag();
    found.size = object.size();
    found.http = object.stats();
    found.mirrors = object.mirrors();
    explain_way(object.url(), found);
    found.crc32c = object.crc32c();
    found.crc32c_announced = object.announced_crc32c().has_value();
}

// Loads into memory, and writes from there to the output.
asio::awaitable<void> load(asio::awaitable<ingest::buffer> landing, options const& wanted, output* out, sha256* hash)
{
    auto const executor = co_await asio::this_coro::executor;
    auto const block = co_await std::move(landing);
    co_await gpurx::async_wait(executor, wanted.http.stream, block.span());
    if (out != nullptr || hash != nullptr)
        co_await write_out(block, wanted.http.stream, out, hash);
}

// Loads the object of a URL, if it is not a model in several files.
asio::awaitable<void> transfer_object(options const& wanted, gpurx::rx_session& session, output* out, sha256* hash,
                                      progress& display, report& found)
{
    auto const gpu = wanted.nic.gpu;
    ingest::object object{co_await asio::this_coro::executor, session, wanted.url, wanted.http};
    co_await object.async_open();
    display.expect(object.size());
    if (out != nullptr && !wanted.safetensors) {
        co_await save(object, *out, hash);
        if (hash != nullptr && out->is_file())
            co_await hash_file(*out, object.size(), *hash);
    } else {
        auto landing = wanted.safetensors ? load_tensors(object, gpu, found) : fetch(object, gpu);
        co_await load(std::move(landing), wanted, out, hash);
    }
    describe(object, found);
}

asio::awaitable<void> transfer(options const& wanted, gpurx::rx_session& session, output* out, progress& display,
                               report& found)
{
    auto const start = std::chrono::steady_clock::now();
    auto const cpu_start = cpu_time_so_far();
    std::optional<sha256> hash;
    if (wanted.sha256)
        hash.emplace();
    auto* const hashing = hash ? &*hash : nullptr;
    if (wanted.safetensors && ingest::is_checkpoint(wanted.url)) {
        co_await load(load_checkpoint(wanted, session, found), wanted, out, hashing);
        // Files of s3://, gs://, az:// and hf:// come over https most often. Those bytes are none of the session's.
        auto const is_encrypted = !ingest::object::is_file(wanted.url) && session.stats().bytes() == 0;
        explain_way(is_encrypted ? "https:" : wanted.url, found);
    } else {
        co_await transfer_object(wanted, session, out, hashing, display, found);
    }
    found.time = std::chrono::steady_clock::now() - start;
    found.cpu_time = cpu_time_so_far() - cpu_start;
    if (hash)
        found.sha256 = hash->finish();
    if (out != nullptr && found.as_expected())
        out->commit();
}

asio::awaitable<void> show_progress(gpurx::rx_session const& session, progress& display)
{
    asio::steady_timer timer{co_await asio::this_coro::executor};
    for (;;) {
        display.update(session.stats().bytes());
        timer.expires_after(std::chrono::milliseconds{200});
        co_await timer.async_wait(asio::use_awaitable);
    }
}

void say(options const& wanted, report const& found)
{
    // The object may go to standard output.
    auto* const to = wanted.output == "-" ? stderr : stdout;
    wanted.json ? print_json(found, to) : print_table(found, to);
    if (!found.as_expected())
        fmt::print(stderr, "error: the SHA-256 differs from the expected one, {}\n", wanted.expected_sha256);
}

int run(options wanted, gpurx::rx_session& session, output* out, asio::io_context& context,
        interruption const& interrupted)
{
    // A stream of its own, so that it waits for no other work of the GPU.
    gpurx::cuda_stream stream;
    if (wanted.nic.gpu >= 0)
        stream = gpurx::cuda_stream::on(wanted.nic.gpu);
    wanted.http.stream = stream;
    progress display;
    report found{.transport = session.transport(),
                 .explanation = session.explain(),
                 .stats = {},
                 .http = {},
                 .mirrors = {},
                 .url = {},
                 .etag = {},
                 .crc32c = {},
                 .sha256 = {},
                 .expected_sha256 = wanted.expected_sha256,
                 .tensors = {},
                 .offsets = {},
                 .block = 0};

    std::optional<std::exception_ptr> outcome;
    asio::co_spawn(context, show_progress(session, display), asio::detached);
    asio::co_spawn(context, transfer(wanted, session, out, display, found), [&](std::exception_ptr failure) {
        outcome = failure;
        context.stop();
    });
    std::vector<std::jthread> others;
    for (unsigned i = 1; i < wanted.threads; ++i)
        others.emplace_back([&] { context.run(); });
    context.run();
    others.clear();

    static_cast<void>(display.finish());
    if (!outcome)
        return 128 + interrupted.signal();
    if (*outcome)
        std::rethrow_exception(*outcome);
    found.stats = session.stats();
    say(wanted, found);
    return found.as_expected() ? received : unexpected_bytes;
}

// Opens the output first: if it cannot be written, nothing is fetched.
int fetch_as(options wanted)
{
    asio::io_context context{static_cast<int>(wanted.threads)};
    interruption const interrupted{[&context] { context.stop(); }};
    // If the reader of a pipe exits, the write reports an error.
    std::signal(SIGPIPE, SIG_IGN);
    std::optional<output> out;
    if (!wanted.output.empty())
        out.emplace(wanted.output);
    if (out && !out->is_file())
        wanted.http.flows = wanted.threads = 1;
    auto session = open_session(wanted.nic);
    return session ? run(std::move(wanted), *session, out ? &*out : nullptr, context, interrupted) : no_session;
}

}  // namespace

int main(int argc, char** argv)
try {
    int exit_code = 0;
    auto const wanted = parse_command_line(argc, argv, exit_code);
    if (!wanted)
        return exit_code;
    return fetch_as(*wanted);
} catch (gpurx::system_error const& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return error.code() == ingest::errc::wrong_checksum ? unexpected_bytes : transfer_failed;
} catch (std::exception const& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return transfer_failed;
}
