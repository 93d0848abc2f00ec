// SPDX-License-Identifier: Apache-2.0
//
// Serves one client: answers its requests within its limits, until it hangs up or breaks the protocol.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/syscalls.hpp"
#include "lease/daemon_channel.hpp"
#include "lease/daemon_protocol.hpp"
#include "lease/session_nic.hpp"
#include "metrics.hpp"
#include "policy.hpp"

namespace gpurx::gpurxd {

// The system calls that serve a client. Tests have a fake one. Each throws system_error to refuse.
class client_backend {
  public:
    client_backend() = default;
    client_backend(client_backend const&) = delete;
    client_backend& operator=(client_backend const&) = delete;
    virtual ~client_backend() = default;

    // The limits of this client on the interface. Refuses a client that the policy does not allow it. Called once; it
    // takes one of the user's slots.
    [[nodiscard]] virtual limits admit(std::string_view interface) = 0;
    // The policy's file, for people.
    [[nodiscard]] virtual std::string policy_path() const = 0;
    // Bytes of a dmabuf. Refuses everything else.
    [[nodiscard]] virtual std::uint64_t dmabuf_size(int descriptor) = 0;
    [[nodiscard]] virtual std::unique_ptr<detail::session_nic> lease(
        detail::open_request const& what, int dmabuf, std::function<void(std::string_view)> const& notice) = 0;
    // Refuses a descriptor that is not the client's own socket for just this, and a rule that would reach another user.
    // Returns the endpoints at which the listener gets connections: none has the unspecified address.
    virtual void check_flow(int descriptor, detail::steer_flow_request const& what) = 0;
    [[nodiscard]] virtual std::vector<asio::ip::tcp::endpoint> check_listener(
        int descriptor, detail::steer_port_request const& what) = 0;
    // The endpoints at which somebody else has sockets by now, or whose address is not this host's any more.
    [[nodiscard]] virtual std::set<asio::ip::tcp::endpoint> find_lost(
        std::set<asio::ip::tcp::endpoint> const& ends) = 0;

    // Events to count and to log. `who`: a client that has queues now; its user is not set.
    virtual void on_opened(client_metrics who) = 0;
    virtual void on_rules_changed(std::uint64_t now, std::uint64_t made, std::uint64_t taken_away) noexcept = 0;
    virtual void on_refused(request_kind what, error_code code, diagnostics const& why) noexcept = 0;
};

// Destroying it removes its rules and gives its queues back.
class client {
  public:
    // `notice` outlives it, and must not throw.
    client(client_backend& backend, std::function<void(std::string_view)> notice)
        : backend_{backend}, notice_{std::move(notice)}
    {}
    client(client const&) = delete;
    client& operator=(client const&) = delete;
    ~client();

    // How long the request has to wait before handle().
    [[nodiscard]] rate_limit::clock::duration wait_before(detail::daemon_request const& what,
                                                          rate_limit::clock::time_point now);
    // `descriptor`: what came with it; empty if nothing did. Never throws but std::bad_alloc: a refusal is an answer.
    [[nodiscard]] detail::daemon_reply handle(detail::daemon_request const& what, detail::unique_fd descriptor);
    [[nodiscard]] bool has_opened() const noexcept { return nic_ != nullptr; }
    // To be called now and then. A client can close the socket that it has shown and keep the rule: if its end is
    // somebody else's, too, by now, the rule is taken away.
    void check_endpoints();

  private:
    [[nodiscard]] detail::daemon_reply open(detail::open_request const& what, int dmabuf);
    void check_memory(std::string_view interface, std::uint64_t size) const;
    [[nodiscard]] detail::daemon_reply steer(detail::daemon_request const& what, int socket);
    [[nodiscard]] detail::daemon_reply unsteer(detail::unsteer_request const& what);
    // Of the NIC's.
    [[nodiscard]] std::size_t count_rules() const noexcept;

    client_backend& backend_;
    std::function<void(std::string_view)> notice_;
    limits most_;
    std::optional<rate_limit> rate_;
    std::unique_ptr<detail::session_nic> nic_;  // null: not opened yet
    std::uint32_t last_rule_ = 0;
    struct client_rule {
        asio::ip::tcp::endpoint local;
        std::unique_ptr<detail::steering_rule> rule;
    };
    std::unordered_map<std::uint32_t, std::vector<client_rule>> rules_;
};

// The time until a client has to have queues.
inline constexpr std::chrono::milliseconds open_timeout{5000};
// The longest time that a rule of a client reaches a port that has become somebody else's, too. A check goes through
// all of the kernel's sockets: a quarter of a microsecond for each.
inline constexpr std::chrono::milliseconds endpoint_check_interval{1000};

enum class close_reason : std::uint8_t {
    hung_up,
    silent,    // opened nothing in time
    not_ours,  // what came was no message of the protocol
    refused,   // what it asked first
};

// Serves the client, and undoes then what it did for it. Blocks. Throws system_error for what the connection reports;
// everything is undone then, too.
[[nodiscard]] close_reason serve(detail::daemon_channel& connection, client_backend& backend,
                                 std::chrono::milliseconds timeout = open_timeout,
                                 std::chrono::milliseconds check_interval = endpoint_check_interval);

}  // namespace gpurx::gpurxd
