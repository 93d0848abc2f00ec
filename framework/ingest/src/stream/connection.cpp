// SPDX-License-Identifier: Apache-2.0
#include "connection.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <gpurx/crc32c.hpp>
#include <gpurx/gather.hpp>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "stream_state.hpp"

namespace gpurx::ingest::detail {

namespace {

[[noreturn]] void fail(error_code code, char const* operation, std::string advice = {})
{
    throw system_error{code, {.operation = operation, .object = {}, .kernel_message = {}, .advice = std::move(advice)}};
}

// While this lives the sender is waited for, and nobody else.
class waiting {
  public:
    explicit waiting(connection& of) noexcept : of_{of} { of_.waits_since = std::chrono::steady_clock::now(); }
    waiting(waiting const&) = delete;
    waiting& operator=(waiting const&) = delete;
    ~waiting() { of_.waits_since.reset(); }

  private:
    connection& of_;
};

// For how long the sender has been waited for and has brought nothing. The kernel knows when data came last, by
// whichever way they did, and half a frame counts.
std::chrono::milliseconds silence_of(connection const& from)
{
    if (!from.waits_since)
        return {};
    auto const waited =
        std::chrono::floor<std::chrono::milliseconds>(std::chrono::steady_clock::now() - *from.waits_since);
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(from.rx.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        return {};
    return std::min(waited, std::chrono::milliseconds{info.tcpi_last_data_recv});
}

// Until the connection is closed: here, if its sender is stuck.
asio::awaitable<void> watch_sender(std::shared_ptr<connection> from, std::chrono::milliseconds limit)
{
    constexpr std::chrono::milliseconds longest = std::chrono::hours{1};
    while (from->rx.is_open()) {
        auto const silent = silence_of(*from);
        if (silent >= limit) {
            from->is_stuck = true;
            from->end();
            co_return;
        }
        from->silence.expires_after(std::min(limit - silent, longest));
        co_await from->silence.async_wait(outcome);
    }
}

asio::awaitable<void> read_head_part(connection& from, std::span<std::byte> part)
{
    host_span const to{part.data(), part.size()};
    waiting const for_sender{from};
    auto const [code, size] = co_await async_read(from.rx, to, outcome);
    from.has_spoken = from.has_spoken || size > 0;
    if (code)
        fail(code, "read frame");
}

// `head`: the start, if that was read already.
asio::awaitable<frame_head> read_head(connection& from, frame_limits const& limits, std::vector<std::byte> head)
{
    if (head.empty()) {
        head.resize(frame_start_size);
        co_await read_head_part(from, head);
    }
    auto const tensors = count_tensors(std::span{head}.first<frame_start_size>(), limits);
    if (tensors > 0) {
        head.resize(frame_start_size + tensors * frame_tensor_size);
        co_await read_head_part(from, std::span{head}.subspan(frame_start_size));
    }
    co_return parse_head(head, limits);
}

// What the GPU writes its CRC32C to: enough for one, and readable here.
memory_span crc_on_host(connection& of, int gpu)
{
    if (!of.crc.valid())
        of.crc = device_memory::on_pinned_host(sizeof(std::uint32_t), gpu);
    return of.crc.span().first(sizeof(std::uint32_t));
}

std::uint32_t crc_at(memory_span where)
{
    std::uint32_t crc = 0;
    std::memcpy(&crc, reinterpret_cast<void const*>(where.address()), sizeof crc);
    return crc;
}

void check_crc(frame_head const& head, std::uint32_t computed)
{
    if (computed != head.payload_crc)
        fail(errc::wrong_checksum, "read frame",
             fmt::format("the CRC32C of the payload of frame {} is {:#010x}, and the frame announces {:#010x}",
                         head.sequence, computed, head.payload_crc));
}

asio::awaitable<void> read_to_host(connection& from, frame_head const& head, memory_span payload)
{
    waiting const for_sender{from};
    auto const [code, size] = co_await async_read(from.rx, payload, outcome);
    if (code)
        fail(code, "read frame");
    if (head.has_crc)
        check_crc(head, gpurx::crc32c({reinterpret_cast<std::byte const*>(payload.address()), payload.size()}));
}

asio::awaitable<void> read_to_gpu(connection& from, frame_head const& head, memory_span payload, place const& where)
{
    auto const stream = where.stream();
    std::optional<waiting> for_sender{std::in_place, from};
    auto const [code, size] = co_await async_read(from.rx, payload, stream, outcome);
    for_sender.reset();
    if (code)
        fail(code, "read frame");
    memory_span crc;
    if (head.has_crc) {
        crc = crc_on_host(from, where.gpu());
        gpurx::crc32c(payload, crc, stream);
    }
    if (head.has_crc || head.wants_ack || from.greeted) {
        auto const [failure] = co_await async_wait(from.strand, stream, payload, outcome);
        if (failure)
            fail(failure, "wait for frame");
    }
    if (head.has_crc)
        check_crc(head, crc_at(crc));
}

asio::awaitable<void> read_payload(connection& from, frame_head const& head, std::shared_ptr<place> where)
{
    auto const size = head.payload_size();
    if (from.frame.span().size() < size) {
        from.frame = {};  // before there is another: never two of one connection
        from.frame = tensor_memory{where, size};
    }
    auto const payload = from.frame.span().first(size);
    if (size == 0)
        check_crc(head, head.has_crc ? gpurx::crc32c({}) : head.payload_crc);
    else if (where->is_gpu())
        co_await read_to_gpu(from, head, payload, *where);
    else
        co_await read_to_host(from, head, payload);
}

asio::awaitable<error_code> write(connection& to, std::span<std::byte const> bytes)
{
    // (Not the array itself: clang-tidy 14 takes what asio makes of that for a null pointer.)
    std::vector<std::byte> const copied{bytes.begin(), bytes.end()};
    auto const [code, size] = co_await asio::async_write(to.rx, asio::buffer(copied), outcome);
    co_return code;
}

asio::awaitable<error_code> acknowledge(connection& to, std::uint64_t sequence)
{
    auto const ack = encode_ack(sequence);
    waiting const for_sender{to};  // to read those before
    co_return co_await write(to, ack);
}

// As long as the connection stands. For one that began with a hello: there acknowledgements need not come from the
// frames that are read.
asio::awaitable<void> tell_acknowledged(std::shared_ptr<connection> to)
{
    while (to->rx.is_open()) {
        auto const count = to->acknowledged;
        if (count == to->told) {
            co_await to->ack_due.async_wait(asio::as_tuple(asio::deferred));
            continue;
        }
        auto const ack = encode_ack(count - 1);
        if (co_await write(*to, ack)) {
            to->end();
            co_return;
        }
        to->told = count;
        to->ack_due.cancel();
    }
}

// The sender has all acknowledgements, and says so: then it will not come again. The end of the connection alone would
// not tell.
asio::awaitable<void> read_goodbye(connection& from, std::uint64_t frames)
{
    while (from.rx.is_open() && from.told < frames)
        co_await from.ack_due.async_wait(asio::as_tuple(asio::deferred));
    std::vector<std::byte> bytes(frame_ack_size);
    co_await read_head_part(from, bytes);
    if (parse_ack(std::span{bytes}.first<frame_ack_size>()) != frames)
        fail(make_error_code(errc::bad_frame), "read frame", "bytes came after the last frame");
}

asio::awaitable<void> receive_frame(stream_state& stream, std::shared_ptr<connection> from, frame_head head)
{
    auto const is_new = co_await asio::co_spawn(stream.strand(), stream.admit(from, head), asio::use_awaitable);
    co_await read_payload(*from, head, stream.where());
    stream_state::ticket ticket{};
    if (is_new)
        ticket = co_await asio::co_spawn(stream.strand(), stream.accept(from, head), asio::use_awaitable);
    error_code ack_failure;
    if (head.wants_ack && !from->greeted)
        ack_failure = co_await acknowledge(*from, head.sequence);
    // Accepted is accepted, also if the sender cannot be told.
    if (is_new)
        co_await asio::co_spawn(stream.strand(), stream.put_rows(from, head, ticket), asio::use_awaitable);
    if (ack_failure)
        fail(ack_failure, "acknowledge frame");
}

// ---- how it begins ----

greeting agree(hello const& said, std::string const& secret)
{
    if (said.has_secret == !secret.empty())
        return greeting::taken;
    return said.has_secret ? greeting::no_secret_here : greeting::secret_needed;
}

asio::awaitable<bool> has_proved(connection& who, hello const& said, challenge const& asked, std::string const& secret)
{
    auto const question = encode(asked);
    if (auto const code = co_await write(who, question))
        fail(code, "begin stream");
    std::vector<std::byte> bytes(proof_size);
    co_await read_head_part(who, bytes);
    proof shown{};
    std::ranges::copy(bytes, shown.begin());
    co_return are_equal(shown, prove_sender(secret, said, asked));
}

[[noreturn]] void refuse_stranger(greeting why)
{
    switch (why) {
        case greeting::secret_needed:
            fail(make_error_code(errc::wrong_secret), "begin stream", "it announces no secret");
        case greeting::no_secret_here:
            fail(make_error_code(errc::wrong_secret), "begin stream", "it has a secret, and this stream has none");
        default:
            fail(make_error_code(errc::wrong_secret), "begin stream", "its proof is of another secret");
    }
}

// Whether the source has ended before: no frame comes then.
asio::awaitable<bool> greet(stream_state& stream, std::shared_ptr<connection> who, std::vector<std::byte> start)
{
    auto const said = parse_hello(std::span{start}.first<hello_size>());
    auto const& secret = stream.secret();
    challenge asked{};
    stream_state::meeting met{};
    met.answer.says = agree(said, secret);
    if (met.answer.says == greeting::taken && said.has_secret) {
        asked.random = make_nonce();
        if (!co_await has_proved(*who, said, asked, secret))
            met.answer.says = greeting::wrong_secret;
    }
    auto const is_stranger = met.answer.says != greeting::taken;
    if (!is_stranger) {
        who->greeted = true;
        met = co_await asio::co_spawn(stream.strand(), stream.meet(who, said), asio::use_awaitable);
        if (said.has_secret)
            met.answer.proven = prove_receiver(secret, said, asked, met.answer);
        who->told = met.answer.acknowledged;
        who->acknowledged = std::max(who->acknowledged, who->told);
    }
    auto const answer = encode(met.answer);
    auto const code = co_await write(*who, answer);
    if (is_stranger)
        refuse_stranger(met.answer.says);
    if (met.refusal.code)
        throw system_error{met.refusal.code, met.refusal.why};
    if (code)
        fail(code, "begin stream");
    asio::co_spawn(who->strand, tell_acknowledged(who), asio::detached);
    co_return met.has_ended;
}

void check_greeted(frame_head const& head)
{
    if (head.wants_ack || head.begins)
        fail(make_error_code(errc::bad_frame), "read frame",
             fmt::format("frame {} has a flag that is valid only on a connection without a hello", head.sequence));
}

asio::awaitable<void> receive_to_end(stream_state& stream, std::shared_ptr<connection> from)
{
    std::vector<std::byte> start(frame_start_size);
    co_await read_head_part(*from, start);
    bool last = false;
    if (is_hello(std::span{start}.first<hello_size>())) {
        last = co_await greet(stream, from, std::exchange(start, {}));
    } else if (!stream.secret().empty())
        fail(make_error_code(errc::wrong_secret), "begin stream",
             "it sends no hello: no sender, or one of version 1 of the protocol, which has no secrets");
    auto frames = from->told;
    while (!last) {
        auto const head = co_await read_head(*from, stream.limits(), std::exchange(start, {}));
        if (from->greeted)
            check_greeted(head);
        last = head.is_last;
        frames = head.sequence + 1;
        co_await receive_frame(stream, from, head);
    }
    if (from->greeted)
        co_await read_goodbye(*from, frames);
}

ending stuck(std::chrono::milliseconds limit)
{
    return {asio::error::timed_out,
            {.operation = "read frame",
             .object = {},
             .kernel_message = {},
             .advice =
                 fmt::format("its connection is open, but no byte came for {} ms (stall_timeout): it is stuck, or slow",
                             limit.count())}};
}

}  // namespace

void connection::end()
{
    rx.close();
    silence.cancel();
    ack_due.cancel();
}

void watch_peer(int socket) noexcept
{
    auto const set = [socket](int level, int name, int value) {
        static_cast<void>(::setsockopt(socket, level, name, &value, sizeof value));
    };
    constexpr int idle_seconds = 15;
    constexpr int interval_seconds = 5;
    constexpr int probes = 3;
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, idle_seconds);
    set(IPPROTO_TCP, TCP_KEEPINTVL, interval_seconds);
    set(IPPROTO_TCP, TCP_KEEPCNT, probes);
}

asio::awaitable<error_code> connect(std::shared_ptr<connection> who, asio::ip::tcp::endpoint there)
{
    auto const [code] = co_await who->rx.async_connect(there, outcome);
    if (!code)
        watch_peer(who->rx.native_handle());
    co_return code;
}

asio::awaitable<void> receive_frames(std::shared_ptr<stream_state> stream, std::shared_ptr<connection> from)
{
    ending how;
    if (auto const limit = stream->stall_timeout(); limit.count() > 0)
        asio::co_spawn(from->strand, watch_sender(from, limit), asio::detached);
    try {
        co_await receive_to_end(*stream, from);
    } catch (system_error const& error) {
        how = {error.code(), error.why()};
    } catch (boost::system::system_error const& error) {
        how.code = error.code();
    } catch (std::bad_alloc const&) {
        how.code = make_error_code(boost::system::errc::not_enough_memory);
    }
    from->end();
    from->frame = {};
    if (from->is_stuck)
        how = stuck(stream->stall_timeout());
    co_await asio::co_spawn(stream->strand(), stream->leave(from, how), asio::use_awaitable);
}

}  // namespace gpurx::ingest::detail
