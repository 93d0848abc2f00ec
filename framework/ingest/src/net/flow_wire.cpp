// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/ioctl.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <gpurx/receiver.hpp>

#include "wire.hpp"

namespace gpurx::ingest::detail {

namespace {

constexpr auto tuple = asio::as_tuple(asio::use_awaitable);

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
    // Bytes in the socket.
    [[nodiscard]] std::size_t queued() const noexcept;

    receiver receiver_;
};

asio::awaitable<error_code> flow_wire::async_connect(std::vector<asio::ip::tcp::endpoint> const& to)
{
    auto const [code, peer] = co_await receiver_.async_connect(to, tuple);
    // A second request must not wait for the acknowledgement of the first.
    error_code ignored;
    if (!code)
        receiver_.set_option(asio::ip::tcp::no_delay{true}, ignored);
    co_return code;
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
    receiver_.close();
}

}  // namespace

std::unique_ptr<wire> make_flow_wire(asio::any_io_executor const& executor, rx_session& session)
{
    return std::make_unique<flow_wire>(executor, session);
}

}  // namespace gpurx::ingest::detail
