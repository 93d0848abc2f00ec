// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <gpurx/ingest/error.hpp>
#include <optional>

#include "message.hpp"
#include "pinned_chunks.hpp"
#include "tcp.hpp"
#include "wire.hpp"

namespace gpurx::ingest::detail {

namespace {

// Not use_awaitable: operations would be coroutines of their own, in which clang-tidy 14 gets lost.
constexpr auto direct = asio::as_tuple(asio::deferred);
// Of bytes that nobody wants.
constexpr std::size_t skipped_size = std::size_t{256} << 10;
// After so many bytes others of the executor have a turn: a fast server would keep its thread for ever.
constexpr std::size_t turn = std::size_t{1} << 20;

// Nothing else can be done with TLS: a NIC would put into a GPU's memory what is encrypted.
class socket_wire final : public wire {
  public:
    socket_wire(asio::any_io_executor const& executor, tls_context context, std::string host, std::string tunnel)
        : socket_{executor},
          context_{std::move(context)},
          host_{std::move(host)},
          tunnel_{std::move(tunnel)},
          for_gpu_{executor}
    {}

    [[nodiscard]] asio::awaitable<error_code> async_connect(std::vector<asio::ip::tcp::endpoint> const& to) override;
    [[nodiscard]] asio::awaitable<transferred> async_write(asio::const_buffer from) override;
    // Through pinned memory, if that is a GPU's memory: what has been decrypted is on its way there while the next is
    // being decrypted.
    [[nodiscard]] asio::awaitable<transferred> async_read(memory_span to, cuda_stream_ref stream) override;
    [[nodiscard]] asio::awaitable<transferred> async_read_some(asio::mutable_buffer to) override;
    [[nodiscard]] asio::awaitable<transferred> async_skip(std::uint64_t bytes) override;
    [[nodiscard]] std::uint64_t arrived() const noexcept override;
    [[nodiscard]] bool at_hand() noexcept override;
    [[nodiscard]] bool is_quiet() override;
    [[nodiscard]] std::string why() const override;
    [[nodiscard]] bool may_pass() const noexcept override { return session_ && session_->may_pass(); }
    void close() noexcept override;

  private:
    [[nodiscard]] asio::awaitable<error_code> open_tunnel();
    [[nodiscard]] asio::awaitable<transferred> read(host_span to);
    [[nodiscard]] asio::awaitable<transferred> read_for_gpu(memory_span to, cuda_stream_ref stream);
    // Of a read without TLS.
    [[nodiscard]] transferred counted(transferred read) noexcept
    {
        arrived_ += std::get<std::size_t>(read);
        return read;
    }
    // Until the step can go on.
    [[nodiscard]] asio::awaitable<error_code> wait_for(tls_session::step of);

    asio::ip::tcp::socket socket_;
    std::shared_ptr<connection_race> race_;  // until there is a connection
    tls_context context_;
    std::string host_;
    std::string tunnel_;
    std::string refusal_;                 // of the proxy
    std::optional<tls_session> session_;  // empty: without TLS
    std::uint64_t arrived_ = 0;           // without TLS
    pinned_chunks for_gpu_;
    std::vector<std::byte> skipped_;
};

asio::awaitable<error_code> socket_wire::async_connect(std::vector<asio::ip::tcp::endpoint> const& to)
{
    race_ = std::make_shared<connection_race>(socket_.get_executor(), to);
    auto code = co_await race_->async_run();
    if (code)
        co_return code;
    socket_ = race_->take();
    peer_ = race_->winner();
    race_.reset();
    socket_.set_option(asio::ip::tcp::no_delay{true}, code);
    if (!tunnel_.empty())
        code = co_await open_tunnel();
    if (!code && context_ != nullptr)
        socket_.native_non_blocking(true, code);
    if (code || context_ == nullptr)
        co_return code;
    session_.emplace(context_, host_, socket_.native_handle());
    for (;;) {
        auto const step = session_->handshake();
        if (step.code || step.what == tls_session::waits_for::nothing)
            co_return step.code;
        if ((code = co_await wait_for(step)))
            co_return code;
    }
}

// The server says nothing before it is spoken to, so what comes is the proxy's answer.
asio::awaitable<error_code> socket_wire::open_tunnel()
{
    auto const [broken, sent] = co_await asio::async_write(socket_, asio::buffer(tunnel_), direct);
    if (broken)
        co_return broken;
    std::string text;
    auto [code, size] =
        co_await asio::async_read_until(socket_, asio::dynamic_buffer(text, header_limit), "\r\n\r\n", direct);
    if (code == asio::error::not_found)
        code = errc::bad_response;
    if (code)
        co_return code;
    auto const head = parse_answer(text.substr(0, size), code, refusal_);
    if (code || (head.status >= 200 && head.status < 300))
        co_return code;
    refusal_ = status_text(head);
    co_return errc::http_status;
}

asio::awaitable<wire::transferred> socket_wire::async_write(asio::const_buffer from)
{
    if (!session_)
        co_return co_await asio::async_write(socket_, from, direct);
    std::size_t sent = 0;
    error_code code;
    while (!code && sent < from.size()) {
        auto const step = session_->write(from + sent);
        sent += step.bytes;
        code = co_await wait_for(step);
    }
    co_return transferred{code, sent};
}

asio::awaitable<wire::transferred> socket_wire::async_read(memory_span to, cuda_stream_ref stream)
{
    if (to.kind() == memory_kind::device)
        return read_for_gpu(to, stream);
    return read({reinterpret_cast<std::byte*>(to.address()), to.size()});
}

asio::awaitable<wire::transferred> socket_wire::read_for_gpu(memory_span to, cuda_stream_ref stream)
{
    std::size_t placed = 0;
    error_code code;
    while (!code && placed < to.size()) {
        host_span room;
        code = co_await for_gpu_.async_room(room);
        if (!code && !socket_.is_open())
            code = asio::error::operation_aborted;
        if (code)
            break;
        auto const [failed, size] = co_await read({room.data(), std::min(room.size(), to.size() - placed)});
        code = failed;
        if (size == 0)
            break;
        if (auto const not_sent = for_gpu_.send(to.subspan(placed, size), stream))
            code = not_sent;
        else
            placed += size;
    }
    co_return transferred{code, placed};
}

asio::awaitable<wire::transferred> socket_wire::async_skip(std::uint64_t bytes)
{
    skipped_.resize(skipped_size);
    std::uint64_t skipped = 0;
    error_code code;
    while (!code && skipped < bytes) {
        auto const size = static_cast<std::size_t>(std::min<std::uint64_t>(skipped_size, bytes - skipped));
        auto const [failed, read_now] = co_await read({skipped_.data(), size});
        skipped += read_now;
        code = failed;
    }
    co_return transferred{code, skipped};
}

asio::awaitable<wire::transferred> socket_wire::async_read_some(asio::mutable_buffer to)
{
    if (!session_)
        co_return counted(co_await socket_.async_read_some(to, direct));
    for (;;) {
        auto const step = session_->read(to);
        auto const code = co_await wait_for(step);
        if (code || step.bytes > 0)
            co_return transferred{code, step.bytes};
    }
}

asio::awaitable<wire::transferred> socket_wire::read(host_span to)
{
    if (!session_)
        co_return counted(co_await asio::async_read(socket_, asio::buffer(to.data(), to.size()), direct));
    std::size_t placed = 0;
    std::size_t turn_ends = turn;
    error_code code;
    while (!code && placed < to.size()) {
        auto const step = session_->read({to.data() + placed, to.size() - placed});
        placed += step.bytes;
        code = step.code;
        if (step.what != tls_session::waits_for::nothing) {
            code = co_await wait_for(step);
        } else if (!code && placed >= turn_ends) {
            turn_ends += turn;
            co_await asio::post(socket_.get_executor(), asio::use_awaitable);
            if (!socket_.is_open())
                code = asio::error::operation_aborted;
        }
    }
    co_return transferred{code, placed};
}

asio::awaitable<error_code> socket_wire::wait_for(tls_session::step of)
{
    if (of.what == tls_session::waits_for::nothing)
        co_return of.code;
    auto const what =
        of.what == tls_session::waits_for::bytes ? asio::ip::tcp::socket::wait_read : asio::ip::tcp::socket::wait_write;
    auto const [code] = co_await socket_.async_wait(what, direct);
    // The descriptor may be another's by now.
    co_return socket_.is_open() ? code : error_code{asio::error::operation_aborted};
}

std::uint64_t socket_wire::arrived() const noexcept
{
    return session_ ? session_->arrived() : arrived_;
}

bool socket_wire::at_hand() noexcept
{
    error_code code;
    return socket_.available(code) > 0 && !code;
}

// What TLS sends for itself, as tickets, is read and is no byte.
bool socket_wire::is_quiet()
{
    if (!session_) {
        pollfd waiting{.fd = socket_.native_handle(), .events = POLLIN | POLLRDHUP, .revents = 0};
        return ::poll(&waiting, 1, 0) == 0;
    }
    std::byte unasked{};
    return session_->read({&unasked, 1}).what == tls_session::waits_for::bytes;
}

std::string socket_wire::why() const
{
    return session_ ? session_->why() : refusal_;
}

void socket_wire::close() noexcept
{
    if (race_ != nullptr)
        race_->close();
    error_code ignored;
    socket_.close(ignored);
}

}  // namespace

std::unique_ptr<wire> make_socket_wire(asio::any_io_executor const& executor, tls_context context, std::string host,
                                       std::string tunnel)
{
    return std::make_unique<socket_wire>(executor, std::move(context), std::move(host), std::move(tunnel));
}

}  // namespace gpurx::ingest::detail
