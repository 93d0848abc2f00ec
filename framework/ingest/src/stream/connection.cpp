// SPDX-License-Identifier: Apache-2.0
#include "connection.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <gpurx/gather.hpp>
#include <new>
#include <utility>
#include <vector>

#include "stream_state.hpp"

namespace gpurx::ingest::detail {

namespace {

[[noreturn]] void fail(error_code code, char const* operation, std::string advice = {})
{
    throw system_error{code, {.operation = operation, .object = {}, .kernel_message = {}, .advice = std::move(advice)}};
}

asio::awaitable<void> read_head_part(connection& from, std::span<std::byte> part)
{
    host_span const to{part.data(), part.size()};
    auto const [code, size] = co_await async_read(from.rx, to, outcome);
    from.has_spoken = from.has_spoken || size > 0;
    if (code)
        fail(code, "read frame");
}

asio::awaitable<frame_head> read_head(connection& from, frame_limits const& limits)
{
    std::vector<std::byte> head(frame_start_size);
    co_await read_head_part(from, head);
    auto const tensors = count_tensors(std::span{head}.first<frame_start_size>(), limits);
    if (tensors > 0) {
        head.resize(frame_start_size + tensors * frame_tensor_size);
        co_await read_head_part(from, std::span{head}.subspan(frame_start_size));
    }
    co_return parse_head(head, limits);
}

// What the GPU writes its CRC32C to: enough for one, and readable here.
device_span crc_on_host(connection& of, int gpu)
{
    if (!of.crc.valid())
        of.crc = device_memory::on_pinned_host(sizeof(std::uint32_t), gpu);
    return of.crc.span().first(sizeof(std::uint32_t));
}

std::uint32_t crc_at(device_span where)
{
    std::uint32_t crc = 0;
    std::memcpy(&crc, reinterpret_cast<void const*>(where.address()), sizeof crc);
    return crc;
}

void check_crc(frame_head const& head, std::uint32_t computed)
{
    if (computed != head.payload_crc)
        fail(errc::wrong_checksum, "read frame",
             fmt::format("the CRC32C of the payload of frame {} is {:#010x}, and it says {:#010x}", head.sequence,
                         computed, head.payload_crc));
}

asio::awaitable<void> read_to_host(connection& from, frame_head const& head, device_span payload)
{
    auto const [code, size] = co_await async_read(from.rx, payload, outcome);
    if (code)
        fail(code, "read frame");
    if (head.has_crc)
        check_crc(head, crc32c({reinterpret_cast<std::byte const*>(payload.address()), payload.size()}));
}

asio::awaitable<void> read_to_gpu(connection& from, frame_head const& head, device_span payload, place const& where)
{
    auto const stream = where.stream();
    auto const [code, size] = co_await async_read(from.rx, payload, stream, outcome);
    if (code)
        fail(code, "read frame");
    device_span crc;
    if (head.has_crc) {
        crc = crc_on_host(from, where.gpu());
        gpurx::crc32c(payload, crc, stream);
    }
    if (head.has_crc || head.wants_ack) {
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
        check_crc(head, head.has_crc ? crc32c({}) : head.payload_crc);
    else if (where->is_gpu())
        co_await read_to_gpu(from, head, payload, *where);
    else
        co_await read_to_host(from, head, payload);
}

asio::awaitable<error_code> acknowledge(connection& to, std::uint64_t sequence)
{
    // (Not the array itself: clang-tidy 14 takes what asio makes of that for a null pointer.)
    auto const bytes = encode_ack(sequence);
    std::vector<std::byte> ack{bytes.begin(), bytes.end()};
    auto const [code, size] = co_await asio::async_write(to.rx, asio::buffer(ack), outcome);
    co_return code;
}

asio::awaitable<void> receive_frame(stream_state& stream, std::shared_ptr<connection> from, frame_head head)
{
    auto const is_new = co_await asio::co_spawn(stream.strand(), stream.admit(from, head), asio::use_awaitable);
    co_await read_payload(*from, head, stream.where());
    stream_state::ticket ticket{};
    if (is_new)
        ticket = co_await asio::co_spawn(stream.strand(), stream.accept(from, head), asio::use_awaitable);
    error_code ack_failure;
    if (head.wants_ack)
        ack_failure = co_await acknowledge(*from, head.sequence);
    // Accepted is accepted, also if the sender cannot be told.
    if (is_new)
        co_await asio::co_spawn(stream.strand(), stream.put_rows(from, head, ticket), asio::use_awaitable);
    if (ack_failure)
        fail(ack_failure, "acknowledge frame");
}

asio::awaitable<void> receive_to_end(stream_state& stream, std::shared_ptr<connection> from)
{
    for (bool last = false; !last;) {
        auto const head = co_await read_head(*from, stream.limits());
        last = head.is_last;
        co_await receive_frame(stream, from, head);
    }
}

}  // namespace

void watch_peer(receiver const& rx) noexcept
{
    auto const set = [&rx](int level, int name, int value) {
        static_cast<void>(::setsockopt(rx.native_handle(), level, name, &value, sizeof value));
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
        watch_peer(who->rx);
    co_return code;
}

asio::awaitable<void> receive_frames(std::shared_ptr<stream_state> stream, std::shared_ptr<connection> from)
{
    ending how;
    try {
        co_await receive_to_end(*stream, from);
    } catch (system_error const& error) {
        how = {error.code(), error.why()};
    } catch (boost::system::system_error const& error) {
        how.code = error.code();
    } catch (std::bad_alloc const&) {
        how.code = make_error_code(boost::system::errc::not_enough_memory);
    }
    from->rx.close();
    from->frame = {};
    co_await asio::co_spawn(stream->strand(), stream->leave(from, how), asio::use_awaitable);
}

}  // namespace gpurx::ingest::detail
