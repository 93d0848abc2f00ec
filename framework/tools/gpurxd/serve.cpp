// SPDX-License-Identifier: Apache-2.0
#include "serve.hpp"

#include <cerrno>
#include <exception>
#include <utility>

#include "base/failure.hpp"
#include "lease/daemon_protocol.hpp"

namespace gpurx::gpurxd {

using detail::channel_wait;
using detail::daemon_channel;
using std::chrono::milliseconds;

namespace {

// To a client that does not listen nothing more is said.
class notices {
  public:
    explicit notices(daemon_channel& connection) : connection_{connection} {}

    void tell(std::string_view sentence) noexcept
    {
        if (deaf_)
            return;
        try {
            connection_.send(detail::encode(detail::notice_reply{std::string{sentence}}));
        } catch (std::exception const&) {
            deaf_ = true;
        }
    }

  private:
    daemon_channel& connection_;
    bool deaf_ = false;
};

detail::refused_reply objection(detail::message_damage const& damage)
{
    return {detail::errno_code(damage.other_version ? EPROTONOSUPPORT : EPROTO),
            {.operation = "understand",
             .object = "a request: " + damage.what,
             .kernel_message = {},
             .advice = damage.other_version ? "update the program, or gpurxd" : ""}};
}

// Nothing: it can go on.
std::optional<parting> answer_one(daemon_channel& connection, client_backend& backend, client& served,
                                  detail::channel_message message)
{
    auto const parsed = message.excessive ? detail::message_damage{"more than a message, or more than one descriptor"}
                                          : detail::parse_daemon_request(message.bytes);
    if (auto const* const damage = std::get_if<detail::message_damage>(&parsed)) {
        auto const said = objection(*damage);
        backend.has_refused(request_kind::message, said.code, said.why);
        connection.send(detail::encode(said));
        return parting::not_ours;
    }
    auto const& request = std::get<detail::daemon_request>(parsed);
    auto const pause = served.wait_before(request, rate_limit::clock::now());
    if (pause.count() > 0 && connection.wait_for_end(std::chrono::ceil<milliseconds>(pause)))
        return parting::hung_up;
    connection.send(detail::encode(served.handle(request, std::move(message.descriptor))));
    if (!served.has_opened())
        return parting::refused;
    return std::nullopt;
}

parting serve_until_end(daemon_channel& connection, client_backend& backend, client& served, milliseconds patience,
                        milliseconds between_looks)
{
    using clock = std::chrono::steady_clock;
    for (auto next_look = clock::now() + between_looks;;) {
        auto const there = connection.wait(served.has_opened() ? between_looks : patience);
        // Also of a client that never leaves it the time.
        if (served.has_opened() && clock::now() >= next_look) {
            served.look_at_ends();
            next_look = clock::now() + between_looks;
        }
        if (there == channel_wait::closed)
            return parting::hung_up;
        if (there == channel_wait::timeout && served.has_opened())
            continue;
        if (there == channel_wait::timeout)
            return parting::silent;
        auto message = connection.receive();
        if (!message)
            return parting::hung_up;
        if (auto const end = answer_one(connection, backend, served, std::move(*message)))
            return *end;
    }
}

}  // namespace

parting serve(daemon_channel& connection, client_backend& backend, milliseconds patience, milliseconds between_looks)
{
    notices said{connection};
    client served{backend, [&](std::string_view sentence) { said.tell(sentence); }};
    try {
        return serve_until_end(connection, backend, served, patience, between_looks);
    } catch (system_error const& error) {
        // It was killed before it had its answer.
        if (error.code() == boost::system::errc::broken_pipe || error.code() == boost::system::errc::connection_reset)
            return parting::hung_up;
        throw;
    }
}

}  // namespace gpurx::gpurxd
