// SPDX-License-Identifier: Apache-2.0
#include <boost/asio/error.hpp>
#include <gpurx/receiver.hpp>

#include "receive_fsm.hpp"
#include "stream_op.hpp"

namespace gpurx::detail {

namespace {

struct lent {
    using type = rx_buffer;
    static rx_buffer collect(receiver_state& from, stream_action const& done) noexcept
    {
        return done.code ? rx_buffer{} : from.lend_carried();
    }
};

class connect_op : public async_op<receiver_state::claim, error_code> {
  public:
    static void start(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint const& peer, completion_site site,
                      connect_handler handler)
    {
        connect_op{std::move(state), peer, std::move(site), std::move(handler)}.begin();
    }

    // There is a rule, or the connection stands; or they will not.
    void operator()(error_code code)
    {
        auto const cancelled = end_wait() != asio::cancellation_type::none || state().was_cancelled();
        if (!state().is_open()) {
            state().refused(peer_, code = asio::error::operation_aborted);
        } else if (state().is_steering()) {
            if (cancelled && !code)
                code = asio::error::operation_aborted;
            code = state().steered(peer_, code);
            if (!code)
                return connect();
        } else {
            state().connected(peer_, code);
        }
        complete(code);
    }

  private:
    connect_op(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint peer, completion_site site,
               connect_handler handler) noexcept
        : async_op{receiver_state::claim{std::move(state)}, std::move(site), std::move(handler)}, peer_{std::move(peer)}
    {}

    [[nodiscard]] receiver_state& state() const noexcept { return claim().state(); }

    void begin()
    {
        if (auto const code = prepare())
            return complete_soon(code);
        heed_cancellation(asio::enable_partial_cancellation());
        auto& to = state();  // lives on in what *this is moved to
        if (to.is_steering())
            to.await_rule(std::move(*this));
        else
            connect();
    }

    void connect()
    {
        auto& socket = state().socket();
        auto const peer = peer_;
        socket.async_connect(peer, std::move(*this));
    }

    error_code prepare()
    {
        if (!claim().granted())
            return errc::already_running;
        error_code code;
        if (state().is_open())
            state().refused(peer_, code = asio::error::already_connected);
        else
            state().open(peer_, code);
        return code;
    }

    asio::ip::tcp::endpoint peer_;
};

// What async_connect of many holds between its attempts: nothing that keeps others from using the receiver.
class bystander {
  public:
    explicit bystander(std::shared_ptr<receiver_state> state) noexcept
        : state_{std::move(state)}, closings_{state_->closings()}
    {}

    [[nodiscard]] std::shared_ptr<receiver_state> const& state() const noexcept { return state_; }
    [[nodiscard]] asio::any_io_executor get_executor() const { return state_->get_executor(); }
    // The receiver was closed, or is gone: it must not come to life again.
    [[nodiscard]] bool is_closed() const noexcept { return state_->closings() != closings_; }
    void release() noexcept { state_.reset(); }

  private:
    std::shared_ptr<receiver_state> state_;
    unsigned closings_;
};

// One async_connect after the other.
class connect_each_op : public async_op<bystander, error_code, asio::ip::tcp::endpoint> {
  public:
    using endpoints = std::vector<asio::ip::tcp::endpoint>;

    static void start(std::shared_ptr<receiver_state> state, endpoints peers, completion_site site,
                      connect_each_handler handler)
    {
        connect_each_op{std::move(state), std::move(peers), std::move(site), std::move(handler)}.begin();
    }

    // One has answered, or will not.
    void operator()(error_code code)
    {
        auto const cancelled = end_wait();
        if (!code)
            return complete(code, peers_[next_ - 1]);
        if (cancelled != asio::cancellation_type::none || claim().is_closed())
            code = asio::error::operation_aborted;
        if (next_ == peers_.size() || is_final(code))
            return complete(code, {});
        attempt();
    }

  private:
    connect_each_op(std::shared_ptr<receiver_state> state, endpoints peers, completion_site site,
                    connect_each_handler handler) noexcept
        : async_op{bystander{std::move(state)}, std::move(site), std::move(handler)}, peers_{std::move(peers)}
    {}

    void begin()
    {
        if (peers_.empty())
            return refuse(asio::error::not_found);
        if (claim().state()->is_open())
            return refuse(asio::error::already_connected);
        heed_cancellation(asio::enable_partial_cancellation());
        attempt();
    }
    void refuse(error_code code)
    {
        claim().state()->failed("connect", code);
        complete_soon(code, {});
    }
    void attempt()
    {
        auto const peer = peers_[next_++];
        auto state = claim().state();
        auto site = site_of(*this, state->get_executor());
        start_connect(std::move(state), peer, std::move(site), std::move(*this));
    }
    // No answer of the peer's, and no other would answer otherwise.
    [[nodiscard]] static bool is_final(error_code code) noexcept
    {
        return code == asio::error::operation_aborted || code == asio::error::already_connected ||
               code == errc::already_running || code == errc::too_many_flows;
    }

    endpoints peers_;
    std::size_t next_ = 0;
};

}  // namespace

void start_connect(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint peer, completion_site site,
                   connect_handler handler)
{
    connect_op::start(std::move(state), peer, std::move(site), std::move(handler));
}

void start_connect_each(std::shared_ptr<receiver_state> state, std::vector<asio::ip::tcp::endpoint> peers,
                        completion_site site, connect_each_handler handler)
{
    connect_each_op::start(std::move(state), std::move(peers), std::move(site), std::move(handler));
}

void start_receive(std::shared_ptr<receiver_state> state, completion_site site, receive_handler handler)
{
    stream_op<receive_op, lent>::start(std::move(state), receive_fsm{}, landing{}, std::move(site),
                                       std::move(handler));
}

}  // namespace gpurx::detail
