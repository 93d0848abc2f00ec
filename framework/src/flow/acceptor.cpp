// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <functional>
#include <gpurx/acceptor.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/async_op.hpp"
#include "base/failure.hpp"
#include "base/fork.hpp"
#include "base/tcp_socket.hpp"
#include "receiver_state.hpp"
#include "session/budget.hpp"
#include "session/session_state.hpp"

namespace gpurx {

namespace detail {

namespace {

constexpr char const* one_acceptor =
    "one acceptor serves a port, with any number of threads: give each receiver its own executor";

bool shares_port(int socket) noexcept
{
    int value = 0;
    socklen_t size = sizeof value;
    return ::getsockopt(socket, SOL_SOCKET, SO_REUSEPORT, &value, &size) == 0 && value != 0;
}

// A connection that ended while it waited is none.
unique_fd accept_one(int listener, asio::ip::tcp::endpoint& peer, error_code& code)
{
    for (;;) {
        auto size = static_cast<socklen_t>(peer.capacity());
        unique_fd accepted{::accept4(listener, peer.data(), &size, SOCK_CLOEXEC | SOCK_NONBLOCK)};
        if (accepted)
            peer.resize(size);
        if (accepted || (errno != EINTR && errno != ECONNABORTED && errno != EPROTO)) {
            code = accepted ? error_code{} : errno_code(errno);
            return accepted;
        }
    }
}

// The peer sees an error, and no stream that ends before its first byte.
void reset(unique_fd connection) noexcept
{
    linger const at_once{.l_onoff = 1, .l_linger = 0};
    static_cast<void>(::setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
}

}  // namespace

// An acceptor and its operations share it. Belongs to the acceptor's strand.
class acceptor_state {
  public:
    // `of_part`: of that memory alone.
    acceptor_state(asio::any_io_executor const& executor, std::shared_ptr<session_state> session, bool of_part = false)
        : session_{std::move(session)},
          conditions_(session_ == nullptr ? 0
                      : of_part           ? 1
                                          : session_->part_count()),
          listener_{new asio::ip::tcp::acceptor{executor}}
    {}
    acceptor_state(acceptor_state const&) = delete;
    acceptor_state& operator=(acceptor_state const&) = delete;
    ~acceptor_state() { close(); }

    [[nodiscard]] asio::ip::tcp::acceptor& socket() noexcept { return socket_; }
    [[nodiscard]] bool is_open() const noexcept { return !is_left_ && socket_.is_open(); }
    [[nodiscard]] bool is_here() const noexcept { return born_.is_here(); }
    [[nodiscard]] std::shared_ptr<session_state> const& session() const noexcept { return session_; }
    [[nodiscard]] diagnostics const& why() const noexcept { return why_; }

    void open(asio::ip::tcp const& protocol, error_code& code);
    void bind(asio::ip::tcp::endpoint const& local, error_code& code);
    void steer(error_code& code);
    void listen(int backlog, error_code& code);
    void cancel() noexcept;
    void close() noexcept;
    // Calls of both so far: an accept whose wait is over is reached by no other way.
    [[nodiscard]] unsigned cancels() const noexcept { return cancels_; }

    void choose_memory(std::function<std::size_t(asio::ip::tcp::endpoint const&)> choose)
    {
        choose_ = std::move(choose);
    }

    // Keeps flows and connections that wait within max_flows together.
    void bound_queue() noexcept;
    // would_block: no connection waits.
    [[nodiscard]] error_code accept(receiver_state& into);
    // Nothing, without an error.
    void failed_at(char const* operation, error_code code, char const* advice = "");
    void accept_failed(error_code code);

  private:
    void open_listener(asio::ip::tcp const& protocol, error_code& code);
    [[nodiscard]] int allowed_backlog() const;
    // Whose flow a connection of `peer` becomes. Null with an error.
    [[nodiscard]] std::shared_ptr<session_state> part_for(receiver_state const& into,
                                                          asio::ip::tcp::endpoint const& peer, error_code& code);
    [[nodiscard]] std::shared_ptr<session_state> part_in_turn(error_code& code);

    std::shared_ptr<session_state> session_;
    std::function<std::size_t(asio::ip::tcp::endpoint const&)> choose_;  // empty: they take turns
    part_turns turns_;
    std::vector<part_condition> conditions_;  // of all parts; as of the last look
    bool named_no_part_ = false;              // choose_, for the last connection
    birthplace born_;
    process_ptr<asio::ip::tcp::acceptor> listener_;  // as a receiver's descriptors: receiver_state.hpp
    asio::ip::tcp::acceptor& socket_ = *listener_;
    bool is_left_ = false;  // closed in a child that was forked, where Asio's object stays as it is
    asio::ip::tcp protocol_ = asio::ip::tcp::v4();
    bool steered_ = false;
    int wanted_ = 0;    // backlog
    int backlog_ = -1;  // that the kernel was told; -1: does not listen
    unsigned cancels_ = 0;
    diagnostics why_;
};

void acceptor_state::failed_at(char const* operation, error_code code, char const* advice)
{
    if (!code)
        return;
    error_code unbound;
    auto const local = socket_.local_endpoint(unbound);
    auto const port = unbound ? "" : " on port " + std::to_string(local.port());
    why_ = {.operation = operation, .object = "acceptor" + port, .kernel_message = {}, .advice = advice};
}

void acceptor_state::accept_failed(error_code code)
{
    failed_at("accept from", code,
              named_no_part_                 ? "the function of choose_memory() returned a part that does not exist"
              : code == errc::too_many_flows ? advice_on(code)
                                             : "");
}

void acceptor_state::open(asio::ip::tcp const& protocol, error_code& code)
{
    steered_ = false;
    protocol_ = protocol;
    if (session_ == nullptr)  // moved from
        code = asio::error::bad_descriptor;
    else if (!born_.is_here())
        code = make_error_code(boost::system::errc::operation_not_supported);
    else
        open_listener(protocol, code);
    if (!code)
        socket_.native_non_blocking(true, code);
    failed_at("open", code);
}

// Asio's open() would leave it to programs that are executed.
void acceptor_state::open_listener(asio::ip::tcp const& protocol, error_code& code)
{
    auto made = open_tcp({protocol, 0}, code);
    if (!code)
        socket_.assign(protocol, made.get(), code);
    if (!code)
        static_cast<void>(made.release());
}

void acceptor_state::bind(asio::ip::tcp::endpoint const& local, error_code& code)
{
    socket_.bind(local, code);
    if (!code)
        return;
    failed_at("bind", code, code == asio::error::address_in_use ? one_acceptor : "");
    why_.object = "acceptor to " + to_string(local);
}

void acceptor_state::steer(error_code& code)
{
    code = asio::error::bad_descriptor;
    if (!socket_.is_open())
        return failed_at("steer", code);
    code.clear();
    if (shares_port(socket_.native_handle())) {
        code = asio::error::address_in_use;
        return failed_at("steer", code, one_acceptor);
    }
    diagnostics why;
    session_->steer(socket_, code, why);
    steered_ = !code;
    if (code)
        why_ = std::move(why);
}

void acceptor_state::listen(int backlog, error_code& code)
{
    code.clear();
    if (!steered_)
        steer(code);
    if (code)
        return;
    auto const most = static_cast<int>(std::min(session_->options().max_flows, 65535U));
    wanted_ = backlog > 0 ? backlog : most;
    auto const allowed = allowed_backlog();
    socket_.listen(allowed, code);
    backlog_ = code ? -1 : allowed;
    failed_at("listen on", code, code == asio::error::address_in_use ? one_acceptor : "");
}

// A connection that waits takes as much of the memory as any flow (docs/memory-budget.md), and the kernel lets one more
// wait than it is told. Where the kernel has bytes of a queue in memory of its own there is nothing to bound.
int acceptor_state::allowed_backlog() const
{
    if (session_->transport() == transport::copy)
        return wanted_;
    auto const places = static_cast<int>(std::min(session_->free_places(), 65535U));
    return std::clamp(places - 1, 0, wanted_);
}

void acceptor_state::bound_queue() noexcept
{
    auto const allowed = allowed_backlog();
    if (backlog_ >= 0 && backlog_ != allowed && ::listen(socket_.native_handle(), allowed) == 0)
        backlog_ = allowed;
}

void acceptor_state::cancel() noexcept
{
    if (!born_.is_here())
        return;
    ++cancels_;
    error_code ignored;
    socket_.cancel(ignored);
}

void acceptor_state::close() noexcept
{
    if (!born_.is_here()) {
        if (!std::exchange(is_left_, true) && socket_.is_open())
            ::close(socket_.native_handle());
        return;
    }
    ++cancels_;
    error_code ignored;
    socket_.close(ignored);
    backlog_ = -1;
    steered_ = false;
}

std::shared_ptr<session_state> acceptor_state::part_for(receiver_state const& into, asio::ip::tcp::endpoint const& peer,
                                                        error_code& code)
{
    if (into.session() == nullptr)  // moved from
        code = asio::error::bad_descriptor;
    if (into.is_of_part() || into.session() != session_)
        return into.session();
    if (!choose_)
        return part_in_turn(code);
    auto const chosen = choose_(peer);
    named_no_part_ = chosen >= conditions_.size();
    if (!named_no_part_)
        return session_->part(chosen);
    code = make_error_code(boost::system::errc::invalid_argument);
    return nullptr;
}

std::shared_ptr<session_state> acceptor_state::part_in_turn(error_code& code)
{
    if (conditions_.size() == 1)
        return session_;
    for (std::size_t i = 0; i < conditions_.size(); ++i)
        conditions_[i] = session_->part(i)->condition();
    if (auto const next = turns_.next(conditions_))
        return session_->part(*next);
    code = errc::too_many_flows;
    return nullptr;
}

error_code acceptor_state::accept(receiver_state& into)
{
    named_no_part_ = false;
    error_code code;
    if (session_->transport() != transport::copy)  // where all connections arrive
        code = session_->memory().failure(true);
    if (code)
        return code;
    bound_queue();
    asio::ip::tcp::endpoint peer;
    auto connection = accept_one(socket_.native_handle(), peer, code);
    if (code)
        return code;
    auto const part = part_for(into, peer, code);
    if (part != nullptr)
        into.adopt(connection, protocol_, part, session_, code);
    bound_queue();
    if (code && connection)
        reset(std::move(connection));
    return code;
}

namespace {

// An accept works with these: the acceptor, and the receiver, which serves nothing else meanwhile.
class acceptance {
  public:
    acceptance(std::shared_ptr<acceptor_state> from, std::shared_ptr<receiver_state> into) noexcept
        : from_{std::move(from)},
          into_{std::move(into)},
          cancels_{from_->cancels()},
          closings_{into_.state().closings()}
    {}

    [[nodiscard]] acceptor_state& from() const noexcept { return *from_; }
    [[nodiscard]] receiver_state& into() const noexcept { return into_.state(); }
    [[nodiscard]] bool granted() const noexcept { return into_.granted(); }
    // The acceptor was cancelled or closed since, or the receiver was closed or is gone.
    [[nodiscard]] bool is_void() const noexcept
    {
        return from_->cancels() != cancels_ || into().closings() != closings_;
    }
    [[nodiscard]] asio::any_io_executor get_executor() const { return from_->socket().get_executor(); }
    void release() noexcept
    {
        into_.release();
        from_.reset();
    }

  private:
    std::shared_ptr<acceptor_state> from_;
    receiver_state::claim into_;
    unsigned cancels_;
    unsigned closings_;
};

class accept_op : public async_op<acceptance, error_code> {
  public:
    static void start(std::shared_ptr<acceptor_state> from, std::shared_ptr<receiver_state> into, completion_site site,
                      accept_handler handler)
    {
        accept_op{acceptance{std::move(from), std::move(into)}, std::move(site), std::move(handler)}.begin();
    }

    // A connection may be there.
    void operator()(error_code code)
    {
        auto const cancelled = end_wait() != asio::cancellation_type::none;
        if (cancelled || claim().is_void() || !claim().from().is_open())
            code = asio::error::operation_aborted;
        if (!code)
            code = attempt();
        if (code == asio::error::would_block)
            return wait();
        end(code);
        complete(code);
    }

  private:
    using async_op::async_op;

    void begin()
    {
        auto const code = check();
        if (code != asio::error::would_block) {
            end(code);
            return complete_soon(code);
        }
        heed_cancellation(asio::enable_total_cancellation());
        wait();
    }
    error_code check()
    {
        if (!claim().granted())
            return errc::already_running;
        if (claim().into().is_open())
            return asio::error::already_open;
        return claim().from().is_open() ? attempt() : asio::error::bad_descriptor;
    }
    error_code attempt()
    {
        if (!claim().from().is_here())
            return make_error_code(boost::system::errc::operation_not_supported);
        return claim().from().accept(claim().into());
    }
    void wait()
    {
        auto& socket = claim().from().socket();  // lives on in what *this is moved to
        socket.async_wait(asio::socket_base::wait_read, std::move(*this));
    }
    void end(error_code code) const { claim().from().accept_failed(code); }
};

}  // namespace

void start_accept(std::shared_ptr<acceptor_state> state, std::shared_ptr<receiver_state> into, completion_site site,
                  accept_handler handler)
{
    accept_op::start(std::move(state), std::move(into), std::move(site), std::move(handler));
}

std::shared_ptr<receiver_state> make_receiver_state(acceptor_state& of, asio::any_io_executor const& executor)
{
    return std::make_shared<receiver_state>(executor, of.session());
}

asio::ip::tcp::acceptor& socket_of(acceptor_state& state) noexcept
{
    return state.socket();
}

std::exception_ptr failure_of(std::shared_ptr<acceptor_state> const& state, error_code code) noexcept
{
    return exception_of(code, [&] { return state->why(); });
}

}  // namespace detail

acceptor_base::acceptor_base(asio::any_io_executor executor, rx_session& session)
    : executor_{std::move(executor)},
      state_{std::make_shared<detail::acceptor_state>(executor_, detail::session_access::state(session),
                                                      detail::session_access::is_part(session))}
{}

acceptor_base::acceptor_base(asio::any_io_executor executor, std::shared_ptr<detail::acceptor_state> state) noexcept
    : executor_{std::move(executor)}, state_{std::move(state)}
{}

acceptor_base::acceptor_base(acceptor_base&& other) noexcept : acceptor_base{other.executor_, std::move(other.state_)}
{}

acceptor_base& acceptor_base::operator=(acceptor_base&& other) noexcept
{
    if (this != &other) {
        close();
        executor_ = other.executor_;
        state_ = std::move(other.state_);
    }
    return *this;
}

acceptor_base::~acceptor_base()
{
    close();
}

std::shared_ptr<detail::acceptor_state> const& acceptor_base::state()
{
    if (state_ == nullptr)
        state_ = std::make_shared<detail::acceptor_state>(executor_, nullptr);
    return state_;
}

bool acceptor_base::is_open() const noexcept
{
    return state_ != nullptr && state_->is_open();
}

void acceptor_base::open(asio::ip::tcp const& protocol)
{
    error_code code;
    open(protocol, code);
    check(code);
}

void acceptor_base::open(asio::ip::tcp const& protocol, error_code& code)
{
    state()->open(protocol, code);
}

void acceptor_base::bind(asio::ip::tcp::endpoint const& local)
{
    error_code code;
    bind(local, code);
    check(code);
}

void acceptor_base::bind(asio::ip::tcp::endpoint const& local, error_code& code)
{
    state()->bind(local, code);
}

void acceptor_base::steer()
{
    error_code code;
    steer(code);
    check(code);
}

void acceptor_base::steer(error_code& code)
{
    state()->steer(code);
}

void acceptor_base::listen(int backlog)
{
    error_code code;
    listen(backlog, code);
    check(code);
}

void acceptor_base::listen(int backlog, error_code& code)
{
    state()->listen(backlog, code);
}

void acceptor_base::choose_memory(std::function<std::size_t(asio::ip::tcp::endpoint const&)> choose)
{
    state()->choose_memory(std::move(choose));
}

void acceptor_base::cancel() noexcept
{
    if (state_ != nullptr)
        state_->cancel();
}

void acceptor_base::close() noexcept
{
    if (state_ != nullptr)
        state_->close();
}

asio::ip::tcp::endpoint acceptor_base::local_endpoint() const
{
    error_code code;
    auto endpoint = local_endpoint(code);
    check(code);
    return endpoint;
}

asio::ip::tcp::endpoint acceptor_base::local_endpoint(error_code& code) const
{
    code = asio::error::bad_descriptor;
    auto endpoint = state_ == nullptr ? asio::ip::tcp::endpoint{} : state_->socket().local_endpoint(code);
    failed_at("get local endpoint of", code);
    return endpoint;
}

int acceptor_base::native_handle() const noexcept
{
    return is_open() ? state_->socket().native_handle() : -1;
}

diagnostics acceptor_base::why() const
{
    return state_ == nullptr ? diagnostics{} : state_->why();
}

void acceptor_base::check(error_code code) const
{
    if (code)
        throw system_error{code, why()};
}

void acceptor_base::failed_at(char const* operation, error_code code) const
{
    if (state_ != nullptr)
        state_->failed_at(operation, code);
}

}  // namespace gpurx
