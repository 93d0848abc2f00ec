// SPDX-License-Identifier: Apache-2.0
#include "daemon_nic.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <exception>
#include <utility>

#include "base/failure.hpp"
#include "nic/kernel_nic.hpp"
#include "queue_lease.hpp"

namespace gpurx::detail {

namespace {

constexpr char default_socket[] = "/run/gpurxd.sock";
constexpr char launcher[] = "gpurx-run";

[[noreturn]] void fail_as_gone(int error, std::string const& peer)
{
    fail(error, "ask", peer,
         peer == launcher
             ? "gpurx-run has ended, or does not answer: start the program by it again"
             : "gpurxd has ended, or does not answer: open the session again once it runs (journalctl -u gpurxd)");
}

}  // namespace

std::string find_daemon()
{
    // Read while a session is opened, and set by whoever starts the program; but one that has more rights than they do
    // is not told where to send its memory.
    auto const* const chosen = ::secure_getenv("GPURXD_SOCKET");
    std::string const path = chosen != nullptr ? chosen : default_socket;
    struct stat what {};
    return !path.empty() && ::stat(path.c_str(), &what) == 0 && S_ISSOCK(what.st_mode) ? path : std::string{};
}

class daemon_nic::rule final : public steering_rule {
  public:
    rule(daemon_nic& nic, std::uint32_t number) noexcept : nic_{nic}, number_{number} {}
    ~rule() override { nic_.unsteer(number_); }

  private:
    daemon_nic& nic_;
    std::uint32_t number_;  // the daemon's name for it
};

daemon_nic::daemon_nic(daemon_nic_config options)
    : options_{std::move(options)},
      peer_{options_.inherited ? launcher : "gpurxd at " + options_.socket},
      claimed_{options_.inherited ? std::optional{claim(*options_.inherited)} : std::nullopt},
      channel_{claimed_ ? daemon_channel{std::move(claimed_->channel)}
                        : daemon_channel{options_.socket, options_.timeout}}
{}

std::unique_ptr<daemon_nic> daemon_nic::open(daemon_nic_config options, error_code& code, diagnostics& why)
{
    return reporting(code, why, [&] {
        std::unique_ptr<daemon_nic> made{new daemon_nic{std::move(options)}};
        made->begin();
        return made;
    });
}

void daemon_nic::begin()
{
    auto const said =
        ask(open_request{options_.interface, options_.rx_queues, options_.rx_page_size}, options_.dmabuf_fd);
    auto const* const opened = std::get_if<opened_reply>(&said);
    if (opened == nullptr) {
        broken_ = true;
        fail_as_gone(EPROTO, peer_);
    }
    granted_ = *opened;
    if (claimed_)
        zcrx_.push_back(claimed_->adopt());
    if (options_.check_ring)
        options_.check_ring(granted_.ring);
    try {
        device_ = std::make_unique<kernel_nic>(options_.interface);
        before_ = sample_pool(*device_, granted_.dmabuf_id, granted_.queues);
    } catch (system_error const&) {
        device_.reset();  // sample() says so
    }
}

daemon_nic::~daemon_nic()
{
    if (!born_.is_here())
        return;
    // gpurx-run waits for the queue's end then.
    zcrx_.clear();
    claimed_.reset();
    try {
        channel_.finish();
        while (auto const last = channel_.receive()) {
            auto const said = parse_daemon_reply(last->bytes);
            auto const* const reply = std::get_if<daemon_reply>(&said);
            auto const* const notice = reply != nullptr ? std::get_if<notice_reply>(reply) : nullptr;
            if (notice != nullptr && options_.notice)
                options_.notice(notice->sentence);
        }
    } catch (std::exception const&) {
        // It has ended before, and whoever starts it next puts the NIC back.
    }
}

daemon_reply daemon_nic::answer()
{
    for (;;) {
        auto const message = channel_.receive();
        if (!message)
            fail_as_gone(ECONNRESET, peer_);
        auto said = parse_daemon_reply(message->bytes);
        if (auto const* const damage = std::get_if<message_damage>(&said)) {
            auto const* const advice = damage->other_version ? "take both of one version" : "";
            fail(EPROTO, "understand", peer_ + ": " + damage->what, advice);
        }
        auto& reply = std::get<daemon_reply>(said);
        auto const* const notice = std::get_if<notice_reply>(&reply);
        if (notice == nullptr)
            return std::move(reply);
        if (options_.notice)
            options_.notice(notice->sentence);
    }
}

daemon_reply daemon_nic::ask(daemon_request const& what, int descriptor)
{
    std::scoped_lock const lock{mutex_};
    if (broken_)
        fail_as_gone(ECONNRESET, peer_);
    broken_ = true;
    daemon_reply reply;
    try {
        channel_.send(encode(what), descriptor);
        reply = answer();
    } catch (system_error const& error) {
        if (error.code() == boost::system::errc::resource_unavailable_try_again)
            fail_as_gone(ETIMEDOUT, peer_);
        if (error.code() == boost::system::errc::broken_pipe)
            fail_as_gone(ECONNRESET, peer_);
        throw;
    }
    broken_ = false;
    if (auto const* const refused = std::get_if<refused_reply>(&reply))
        throw system_error{refused->code, refused->why};
    return reply;
}

std::unique_ptr<steering_rule> daemon_nic::steer(daemon_request const& what, int socket, error_code& code,
                                                 diagnostics& why)
{
    return reporting(code, why, [&]() -> std::unique_ptr<steering_rule> {
        auto const said = ask(what, socket);
        auto const* const steered = std::get_if<steered_reply>(&said);
        if (steered == nullptr)
            fail_as_gone(EPROTO, peer_);
        return std::make_unique<rule>(*this, steered->rule);
    });
}

std::unique_ptr<steering_rule> daemon_nic::steer_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                      asio::ip::tcp::endpoint const& remote, error_code& code,
                                                      diagnostics& why)
{
    return steer(steer_flow_request{local, remote, false}, socket, code, why);
}

std::unique_ptr<steering_rule> daemon_nic::move_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                     asio::ip::tcp::endpoint const& remote, error_code& code,
                                                     diagnostics& why)
{
    return steer(steer_flow_request{local, remote, true}, socket, code, why);
}

std::unique_ptr<steering_rule> daemon_nic::steer_port(int socket, asio::ip::tcp::endpoint const& local, bool also_v4,
                                                      error_code& code, diagnostics& why)
{
    return steer(steer_port_request{local, also_v4}, socket, code, why);
}

void daemon_nic::unsteer(std::uint32_t number) noexcept
{
    if (!born_.is_here())
        return;
    try {
        static_cast<void>(ask(unsteer_request{number}));
    } catch (std::exception const&) {
        // The daemon tells what it could not remove; one that has gone has removed it, or its successor will.
    }
}

std::optional<pool_sample> daemon_nic::sample() noexcept
{
    try {
        std::scoped_lock const lock{look_mutex_};
        if (device_ == nullptr || !zcrx_.empty())
            return std::nullopt;
        return losses_since(before_, sample_pool(*device_, granted_.dmabuf_id, granted_.queues));
    } catch (std::exception const&) {
        return std::nullopt;
    }
}

}  // namespace gpurx::detail
