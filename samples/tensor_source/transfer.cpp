// SPDX-License-Identifier: Apache-2.0
#include "transfer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/system/system_error.hpp>
#include <exception>
#include <random>
#include <utility>

namespace asio = boost::asio;
namespace ingest = gpurx::ingest;
using asio::ip::tcp;

namespace {

constexpr auto outcome = asio::as_tuple(asio::deferred);

template <std::size_t size>
std::array<std::byte, size> read_bytes(tcp::socket& from)
{
    std::array<std::byte, size> bytes{};
    asio::read(from, asio::buffer(bytes));
    return bytes;
}

char const* words(ingest::greeting says)
{
    switch (says) {
        case ingest::greeting::taken:
            break;
        case ingest::greeting::secret_needed:
            return "it wants a secret: --secret-file";
        case ingest::greeting::no_secret_here:
            return "it has no secret";
        case ingest::greeting::wrong_secret:
            return "it has another secret";
        case ingest::greeting::no_source:
            return "it receives no source of this number";
        case ingest::greeting::other_sender:
            return "another sender of this number has sent; --resume goes on in its place, with the same rows";
        case ingest::greeting::has_failed:
            return "the source has failed there before";
    }
    return "it does not say why";
}

std::uint32_t number_of_this_sender()
{
    std::random_device any;
    return std::max<std::uint32_t>(any(), 1);
}

}  // namespace

// What its two coroutines share.
struct transfer::connection {
    explicit connection(tcp::socket& open) : socket{open}, acked{open.get_executor()} {}

    // Once: what else fails does so because of it.
    void fail(boost::system::error_code why)
    {
        if (!failure)
            failure = why;
        socket.close();
        acked.cancel();
    }

    tcp::socket& socket;
    asio::steady_timer acked;  // never expires
    boost::system::error_code failure;
};

transfer::transfer(shard const& from, options const& wanted, totals& sum)
    : from_{from}, secret_{wanted.secret}, sum_{sum}
{
    hello_.source = wanted.source;
    hello_.sender = number_of_this_sender();
    hello_.has_secret = !secret_.empty();
    hello_.resumes = wanted.resume;
}

std::uint64_t transfer::greet(tcp::socket& socket)
{
    auto said = hello_;
    if (said.has_secret)
        said.random = ingest::make_nonce();
    asio::write(socket, asio::buffer(encode(said)));
    ingest::challenge asked;
    auto const first = read_bytes<ingest::challenge_size>(socket);
    std::array<std::byte, ingest::welcome_size> answer{};
    auto rest = asio::buffer(answer);
    // Who has no secret, or wants none, answers at once.
    if (auto const is_asked = said.has_secret && first[3] == std::byte{'C'}; is_asked) {
        asked = ingest::parse_challenge(first);
        asio::write(socket, asio::buffer(ingest::prove_sender(secret_, said, asked)));
    } else {
        std::ranges::copy(first, answer.begin());
        rest += first.size();
    }
    asio::read(socket, rest);
    auto const heard = ingest::parse_welcome(answer);
    if (heard.says != ingest::greeting::taken)
        throw refused{fmt::format("the receiver does not take source {}: {}", said.source, words(heard.says))};
    if (said.has_secret && !ingest::are_equal(heard.proven, ingest::prove_receiver(secret_, said, asked, heard)))
        throw refused{"who answers there does not know the secret"};
    if (heard.expected > from_.frames())
        throw refused{
            fmt::format("the receiver expects frame {} of source {}, which has {}: these are not the rows "
                        "that were sent before",
                        heard.expected, said.source, from_.frames())};
    acknowledged_ = std::max(acknowledged_, heard.acknowledged);
    return heard.expected;
}

asio::awaitable<void> transfer::send_frames(connection& to, std::uint64_t first)
{
    for (auto next = first; next < from_.frames(); ++next) {
        auto const frame = from_.at(next);
        auto const head = encode(frame.head);
        std::vector<asio::const_buffer> all{asio::buffer(head)};
        all.insert(all.end(), frame.payload.begin(), frame.payload.end());
        auto const [code, size] = co_await asio::async_write(to.socket, all, outcome);
        sum_.bytes += size;
        if (code)
            co_return to.fail(code);
        ++sum_.frames;
        shown_.update(sum_.bytes);
    }
    while (acknowledged_ < from_.frames() && !to.failure)
        co_await to.acked.async_wait(outcome);
    if (to.failure)
        co_return;
    // Without it the receiver waits for a sender that comes again.
    auto const goodbye = ingest::encode_ack(from_.frames());
    auto const [code, size] = co_await asio::async_write(to.socket, asio::buffer(goodbye), outcome);
    if (code)
        to.fail(code);
}

asio::awaitable<void> transfer::read_acks(connection& from)
{
    while (acknowledged_ < from_.frames()) {
        std::array<std::byte, ingest::frame_ack_size> ack{};
        auto const [code, size] = co_await asio::async_read(from.socket, asio::buffer(ack), outcome);
        if (code)
            co_return from.fail(code);
        acknowledged_ = std::max(acknowledged_, ingest::parse_ack(ack) + 1);
    }
    from.acked.cancel();
}

void transfer::run(asio::io_context& io, tcp::socket& socket)
{
    auto const first = greet(socket);
    connection shared{socket};
    shared.acked.expires_at(asio::steady_timer::time_point::max());
    auto const rethrow = [](std::exception_ptr const& failure) {
        if (failure)
            std::rethrow_exception(failure);
    };
    asio::co_spawn(io, send_frames(shared, first), rethrow);
    asio::co_spawn(io, read_acks(shared), rethrow);
    io.restart();
    io.run();
    if (shared.failure)
        throw boost::system::system_error{shared.failure, "send frames"};
}
