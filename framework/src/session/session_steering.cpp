// SPDX-License-Identifier: Apache-2.0
//
// How flows get to a session's queues: rules, and the receive buffers of what is steered.
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/v6_only.hpp>
#include <cerrno>
#include <new>
#include <utility>

#include "base/byte_size.hpp"
#include "base/failure.hpp"
#include "base/tcp_socket.hpp"
#include "session_state.hpp"

namespace gpurx::detail {

namespace {

using name_of_end = int(int, sockaddr*, socklen_t*);

asio::ip::tcp::endpoint end_of(int socket, name_of_end* name, error_code& code)
{
    asio::ip::tcp::endpoint end;
    auto size = static_cast<socklen_t>(end.capacity());
    if (name(socket, end.data(), &size) == 0)
        end.resize(size);
    else
        code = errno_code(errno);
    return end;
}

}  // namespace

// Makes a rule, unless nobody wants it any more.
class session_state::steering_job final : public nic_worker::job {
  public:
    explicit steering_job(std::shared_ptr<steering> what) noexcept : what_{std::move(what)} {}

    void run() noexcept override
    {
        if (what_.use_count() == 1)
            return;
        auto const moves = !what_->event;
        try {
            auto& nic = *what_->session->nic_;
            auto rule = moves
                            ? nic.move_flow(what_->socket.get(), what_->local, what_->remote, what_->code, what_->why)
                            : nic.steer_flow(what_->socket.get(), what_->local, what_->remote, what_->code, what_->why);
            if (rule)
                what_->rule.reset(new kept_rule{std::move(rule)});
        } catch (std::bad_alloc const&) {
            what_->code = make_error_code(boost::system::errc::not_enough_memory);
        }
        what_->socket.reset();
        if (moves) {
            if (what_->code)
                what_->session->tell_not_moved(what_->code, what_->why);
            return;
        }
        what_->done.store(true, std::memory_order_release);
        std::uint64_t const one = 1;
        [[maybe_unused]] auto const written = ::write(what_->event.get(), &one, sizeof one);
    }

  private:
    std::shared_ptr<steering> what_;
};

void session_state::steer(asio::ip::tcp::acceptor& acceptor, error_code& code, diagnostics& why)
{
    if (refuses_child(code)) {
        why = {.operation = "steer", .object = "acceptor", .kernel_message = {}, .advice = advice_on(code)};
        return;
    }
    auto const local = acceptor.local_endpoint(code);
    if (!code && local.port() == 0)
        code = make_error_code(boost::system::errc::invalid_argument);
    if (code) {
        why = {.operation = "steer", .object = "acceptor", .kernel_message = {}, .advice = "bind it to a port first"};
        return;
    }
    size_receive_buffer(acceptor.native_handle(), code);
    if (code) {
        why = {.operation = "set SO_RCVBUF of", .object = "acceptor", .kernel_message = {}, .advice = {}};
        return;
    }
    if (!nic_)
        return;
    bool also_v4 = false;
    if (local.address().is_v6() && local.address().is_unspecified()) {
        asio::ip::v6_only only_v6;
        acceptor.get_option(only_v6, code);
        also_v4 = !code && !only_v6.value();
    }
    code.clear();
    worker_->run([&] {
        if (auto rule = nic_->steer_port(acceptor.native_handle(), local, also_v4, code, why))
            restoration_->listeners.push_back(std::move(rule));
    });
}

std::shared_ptr<steering> session_state::steer_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                    asio::ip::tcp::endpoint const& remote, error_code& code)
{
    code.clear();
    unique_fd event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!event) {
        code = errno_code(errno);
        return nullptr;
    }
    return ask_for_rule(socket, local, remote, std::move(event), code);
}

void session_state::move_here(flow_place& flow, int socket, std::shared_ptr<session_state> const& from) noexcept
{
    if (!nic_)
        return;
    error_code code;
    std::shared_ptr<steering> mover;
    try {
        auto const local = end_of(socket, ::getsockname, code);
        auto const remote = end_of(socket, ::getpeername, code);
        if (!code)
            mover = ask_for_rule(socket, local, remote, {}, code);
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
    }
    flow.keep(from, std::move(mover));
    if (code)
        tell_not_moved(code, {.operation = "move", .object = "flow", .kernel_message = {}, .advice = {}});
}

std::shared_ptr<steering> session_state::ask_for_rule(int socket, asio::ip::tcp::endpoint const& local,
                                                      asio::ip::tcp::endpoint const& remote, unique_fd event,
                                                      error_code& code)
{
    // One of the job's own: the receiver may close its socket meanwhile, and the number mean another.
    auto second = duplicate(socket, code);
    if (code)
        return nullptr;
    auto asked = std::make_shared<steering>(shared_from_this(), std::move(second), local, remote, std::move(event));
    worker_->post(std::make_unique<steering_job>(asked));
    return asked;
}

void session_state::unsteer(process_ptr<kept_rule> rule) noexcept
{
    if (rule && born_.is_here())
        worker_->post(std::unique_ptr<nic_worker::job>{rule.release()});
}

steering::~steering()
{
    session->unsteer(std::move(rule));
}

void session_state::size_receive_buffer(int socket, error_code& code)
{
    code.clear();
    if (receive_buffer_size_ == 0)
        return;
    auto const set = [&](int option) {
        return ::setsockopt(socket, SOL_SOCKET, option, &receive_buffer_size_, sizeof receive_buffer_size_) == 0;
    };
    if (set(SO_RCVBUFFORCE))
        return;
    int doubled = 0;
    socklen_t size = sizeof doubled;
    if (!set(SO_RCVBUF) || ::getsockopt(socket, SOL_SOCKET, SO_RCVBUF, &doubled, &size) != 0) {
        code = errno_code(errno);
        return;
    }
    if (doubled / 2 < receive_buffer_size_ && !told_of_buffer_limit_.exchange(true))
        tell(fmt::format("receive buffers are {} instead of {}: raise the sysctl net.core.rmem_max to {}",
                         size_text(static_cast<std::uint64_t>(doubled / 2)),
                         size_text(static_cast<std::uint64_t>(receive_buffer_size_)), receive_buffer_size_));
}

void session_state::tell_not_moved(error_code code, diagnostics const& why) noexcept
{
    if (told_of_unmoved_.exchange(true))
        return;
    try {
        tell(fmt::format(
            "{}: a flow stays in the memory in which it arrived, as others may, and its bytes count as resteered: {}",
            options_.interface, describe(code, why)));
    } catch (std::bad_alloc const&) {
        told_of_unmoved_ = false;
    }
}

}  // namespace gpurx::detail
