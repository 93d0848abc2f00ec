// SPDX-License-Identifier: Apache-2.0
//
// queue_lease: RX queues of a NIC set aside for one session, memory bound to them, and flows steered to them. What is
// changed is recorded in the journal first and undone, in reverse and exactly, when the lease is destroyed. open_nic()
// takes queues that were leased to the interface already (leased_nic.hpp) before it sets any aside.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/error.hpp>

#include "base/fork.hpp"
#include "session_nic.hpp"

namespace gpurx::detail {

class nic_device;          // nic/nic_device.hpp: what a lease asks of the kernel
struct lease_environment;  // device_journal.hpp: the journal's place, and who lives
struct flow_rule;          // nic/flow_rule.hpp

struct queue_lease_config {
    std::string interface;
    unsigned rx_queues = 1;
    std::uint32_t rx_page_size = 0;  // bytes; 0: the driver's default, one system page
    int dmabuf_fd = -1;              // used inside open() only: the binding keeps its own reference
    std::string state_directory = "/run/gpurx";
    // Rules may match a port whatever the address, where the address is unspecified or the driver refuses more. They
    // reach packets then that go through this host to others, so whoever steers for somebody else says no.
    bool rules_by_port_alone = true;
    // Called once before anything is changed on the NIC; refuses its ring by throwing system_error. May be empty.
    std::function<void(nic_ring const&)> check_ring = {};
    std::function<void(std::string_view)> notice;  // must not throw; may be empty
};

// Thread safety: safe, except destruction. Calls block for some ms, or for as long as another session holds the
// interface's lock (one that is being opened does for seconds); none waits for ever: ETIMEDOUT. sample() waits
// for no such lock.
class queue_lease final : public session_nic {
  public:
    using config = queue_lease_config;

    // Undoes what dead owners left on the interface, then leases. On an error: null, everything undone, `code` and
    // `why` set. Takes some 100 ms.
    [[nodiscard]] static std::unique_ptr<queue_lease> open(config options, error_code& code, diagnostics& why);
    // The same on a device and in an environment of the caller's choice: for tests. Throws system_error.
    [[nodiscard]] static std::unique_ptr<queue_lease> open(config options, std::unique_ptr<nic_device> device,
                                                           lease_environment environment);
    queue_lease(queue_lease const&) = delete;
    queue_lease& operator=(queue_lease const&) = delete;
    // Unbinds the memory and undoes the rest in reverse. Tells config::notice what it found changed by others and so
    // left alone, and what could not be undone. In a child that was forked: does nothing, as the lease is the parent's.
    ~queue_lease() override;

    [[nodiscard]] std::uint32_t dmabuf_id() const noexcept override;
    [[nodiscard]] std::vector<unsigned> queues() const override;
    [[nodiscard]] std::size_t page_size() const noexcept override;
    [[nodiscard]] bool has_array_tokens() const noexcept override;

    // Packets from `remote` to `local` arrive on one of the queues (queues take turns). The rule matches both ends;
    // where the driver refuses that, the local end, or the local port alone, and config::notice says so.
    [[nodiscard]] std::unique_ptr<steering_rule> steer_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                            asio::ip::tcp::endpoint const& remote, error_code& code,
                                                            diagnostics& why) override;
    [[nodiscard]] bool moves_flows() const noexcept override { return true; }
    // The same with both ends, or an error.
    [[nodiscard]] std::unique_ptr<steering_rule> move_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                           asio::ip::tcp::endpoint const& remote, error_code& code,
                                                           diagnostics& why) override;
    // By address and port, by port alone where the address is unspecified or the driver refuses more. Several queues
    // share the connections by an RSS context where the driver has them; else all go to the first queue, and
    // config::notice says so.
    [[nodiscard]] std::unique_ptr<steering_rule> steer_port(int socket, asio::ip::tcp::endpoint const& local,
                                                            bool also_v4, error_code& code, diagnostics& why) override;

    [[nodiscard]] nic_ring ring() const noexcept override;
    [[nodiscard]] std::optional<pool_sample> sample() noexcept override;

    // Undoes what dead owners left on the interface. Returns what was done, a sentence each. Throws system_error.
    static std::vector<std::string> recover(std::string_view interface, std::string_view state_directory);
    static std::vector<std::string> recover(nic_device& device, lease_environment const& environment);

  private:
    class steered;
    struct state;
    explicit queue_lease(std::unique_ptr<state> made) noexcept;
    [[nodiscard]] std::unique_ptr<steering_rule> steer(asio::ip::tcp::endpoint const& local,
                                                       asio::ip::tcp::endpoint const& remote, bool exact,
                                                       error_code& code, diagnostics& why);
    template <class Install>
    [[nodiscard]] std::unique_ptr<steering_rule> steer_by(error_code& code, diagnostics& why, Install install);
    [[nodiscard]] std::unique_ptr<steering_rule> keep(std::vector<flow_rule> rules);
    void unsteer(std::uint64_t number) noexcept;

    birthplace born_;
    process_ptr<state> state_;
};

// Queues of an interface for a session, whichever way it has them. On an error: null, everything undone, `code` and
// `why` set. Takes some 100 ms.
[[nodiscard]] std::unique_ptr<session_nic> open_nic(queue_lease_config options, error_code& code, diagnostics& why);

// How full memory bound to these queues is, and what they have lost since the driver began to count: read from the
// kernel, which takes no rights. Throws system_error.
[[nodiscard]] pool_sample sample_pool(nic_device& device, std::uint32_t dmabuf, std::span<unsigned const> queues);
// `now` with the losses since an earlier sample. Some drivers begin anew when a queue restarts: then those of `now`.
[[nodiscard]] pool_sample losses_since(pool_sample const& before, pool_sample now) noexcept;

}  // namespace gpurx::detail
