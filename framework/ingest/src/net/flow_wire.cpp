// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/ioctl.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <gpurx/receiver.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "tcp.hpp"
#include "wire.hpp"

namespace gpurx::ingest::detail {

namespace {

constexpr auto tuple = asio::as_tuple(asio::use_awaitable);

// No answer of the peer's, and no other would answer otherwise.
bool is_final(error_code code) noexcept
{
    return code == asio::error::operation_aborted || code == gpurx::errc::too_many_flows;
}

class flow_wire final : public wire {
  public:
    flow_wire(asio::any_io_executor const& executor, rx_session& session) : receiver_{executor, session} {}

    [[nodiscard]] asio::awaitable<error_code> async_connect(std::vector<asio::ip::tcp::endpoint> const& to) override;
    [[nodiscard]] asio::awaitable<transferred> async_write(asio::const_buffer from) override;
    [[nodiscard]] asio::awaitable<transferred> async_read(memory_span to, cuda_stream_ref stream) override;
    [[nodiscard]] asio::awaitable<transferred> async_read_some(asio::mutable_buffer to) override;
    [[nodiscard]] asio::awaitable<transferred> async_skip(std::uint64_t bytes) override;
    [[nodiscard]] std::uint64_t arrived() const noexcept override;
    [[nodiscard]] bool at_hand() noexcept override;
    [[nodiscard]] bool is_quiet() override;
    void close() noexcept override;

  private:
    [[nodiscard]] asio::awaitable<error_code> connect_first(std::vector<asio::ip::tcp::endpoint> const& to);
    [[nodiscard]] asio::awaitable<void> find_other();
    // Bytes in the socket.
    [[nodiscard]] std::size_t queued() const noexcept;

    receiver receiver_;
    std::shared_ptr<connection_race> others_;  // while the first endpoint is awaited
    std::optional<asio::ip::tcp::endpoint> other_;
    bool is_closed_ = false;
};

asio::awaitable<error_code> flow_wire::async_connect(std::vector<asio::ip::tcp::endpoint> const& to)
{
    auto rest = in_order_of_attempts(to, is_silent);
    error_code code = asio::error::not_found;
    while (!rest.empty()) {
        // Not in a condition with &&: g++ 12 awaits on both sides of that.
        code = co_await connect_first(rest);
        if (!code || is_final(code))
            break;
        rest.erase(rest.begin());
    }
    // A second request must not wait for the acknowledgement of the first.
    error_code ignored;
    if (!code)
        receiver_.set_option(asio::ip::tcp::no_delay{true}, ignored);
    co_return code;
}

// To the first, or to another if that answers while the first does not.
asio::awaitable<error_code> flow_wire::connect_first(std::vector<asio::ip::tcp::endpoint> const& to)
{
    peer_ = to.front();
    if (to.size() == 1)
        co_return std::get<0>(co_await receiver_.async_connect(to.front(), tuple));
    auto const executor = receiver_.get_executor();
    others_ = std::make_shared<connection_race>(executor, std::vector(to.begin() + 1, to.end()));
    auto const ended =
        co_await asio::experimental::make_parallel_group(receiver_.async_connect(to.front(), asio::deferred),
                                                         asio::co_spawn(executor, find_other(), asio::deferred))
            .async_wait(asio::experimental::wait_for_one(), asio::use_awaitable);
    auto const others = std::exchange(others_, nullptr);
    others->close();
    auto const code = std::get<1>(ended);
    if (is_closed_ || !code)
        co_return is_closed_ ? error_code{asio::error::operation_aborted} : code;
    if (!other_)
        co_return code;
    note_silent(to.front());
    peer_ = std::exchange(other_, std::nullopt);
    co_return std::get<0>(co_await receiver_.async_connect(*peer_, tuple));
}

// A flow is one of few, so others are looked for with ordinary sockets. Completes only if one answers.
asio::awaitable<void> flow_wire::find_other()
{
    asio::steady_timer pause{receiver_.get_executor(), attempt_delay};
    co_await pause.async_wait(asio::deferred);
    if (!co_await others_->async_run()) {
        other_ = others_->winner();
        co_return;
    }
    pause.expires_at(std::chrono::steady_clock::time_point::max());
    co_await pause.async_wait(asio::deferred);
}

asio::awaitable<wire::transferred> flow_wire::async_write(asio::const_buffer from)
{
    // Not use_awaitable: it would be a coroutine of its own, in which clang-tidy 14 gets lost.
    auto const [code, sent] = co_await asio::async_write(receiver_, from, asio::as_tuple(asio::deferred));
    co_return transferred{code, sent};
}

asio::awaitable<wire::transferred> flow_wire::async_read(memory_span to, cuda_stream_ref stream)
{
    return gpurx::async_read(receiver_, to, stream, tuple);
}

asio::awaitable<wire::transferred> flow_wire::async_read_some(asio::mutable_buffer to)
{
    return receiver_.async_read_some(to, tuple);
}

asio::awaitable<wire::transferred> flow_wire::async_skip(std::uint64_t bytes)
{
    return gpurx::async_read(receiver_, destination::nowhere(bytes), tuple);
}

std::uint64_t flow_wire::arrived() const noexcept
{
    return receiver_.stats().bytes() + queued();
}

// Bytes below the mark of a read that waits are not: it takes them when more have come.
bool flow_wire::at_hand() noexcept
{
    pollfd waiting{.fd = receiver_.native_handle(), .events = POLLIN, .revents = 0};
    error_code ignored;
    return ::poll(&waiting, 1, 0) > 0 || receiver_.available(ignored) > queued();
}

std::size_t flow_wire::queued() const noexcept
{
    int bytes = 0;
    return ::ioctl(receiver_.native_handle(), FIONREAD, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

bool flow_wire::is_quiet()
{
    pollfd waiting{.fd = receiver_.native_handle(), .events = POLLIN | POLLRDHUP, .revents = 0};
    return ::poll(&waiting, 1, 0) == 0;
}

void flow_wire::close() noexcept
{
    is_closed_ = true;
    receiver_.close();
}

}  // namespace

std::unique_ptr<wire> make_flow_wire(asio::any_io_executor const& executor, rx_session& session)
{
    return std::make_unique<flow_wire>(executor, session);
}

}  // namespace gpurx::ingest::detail
