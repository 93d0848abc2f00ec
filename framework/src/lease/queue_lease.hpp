// SPDX-License-Identifier: Apache-2.0
//
// queue_lease: RX queues of a NIC set aside for one session, memory bound to them, and flows steered to them. The lease
// records each change in the journal before it makes the change. Its destruction undoes the changes exactly, in reverse
// order. open_nic() prefers queues that are already leased to the interface (leased_nic.hpp), and sets queues aside
// otherwise.
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

class nic_device;          // nic/nic_device.hpp: a lease's interface to the kernel
struct lease_environment;  // device_journal.hpp: the journal's place, and live processes
struct flow_rule;          // nic/flow_rule.hpp

struct queue_lease_config {
    std::string interface;
    unsigned rx_queues = 1;
    std::uint32_t rx_page_size = 0;  // bytes; 0: the driver's default, one system page
    int dmabuf_fd = -1;              // used inside open() only: the binding keeps its own reference
    // Bind by io_uring, instead: a part for each queue. Their descriptors are used inside open() only.
    std::vector<memory_part> parts = {};
    std::string state_directory = "/run/gpurx";
    // Rules may match a port with any address, if the address is unspecified or the driver refuses narrower rules. They
    // then also match packets that this host forwards. So a process that steers for another process sets false.
    bool rules_by_port_alone = true;
    // Called once before the first change of the NIC. It may refuse the NIC's ring: it then throws system_error. May be
    // empty.
    std::function<void(nic_ring const&)> check_ring = {};
    std::function<void(std::string_view)> notice;  // must not throw; may be empty
};

// Thread safety: safe, except destruction. Calls block for some ms, or while another session holds the interface's lock
// (for seconds while it opens). Each call has a limit: ETIMEDOUT. sample() does not wait for the lock.
class queue_lease final : public session_nic {
  public:
    using config = queue_lease_config;

    // Undoes the changes of dead owners on the interface, then leases. On an error undoes everything, returns null, and
    // sets `code` and `why`. Takes some 100 ms.
    [[nodiscard]] static std::unique_ptr<queue_lease> open(config options, error_code& code, diagnostics& why);
    // The same with a given device and environment, for tests. Throws system_error.
    [[nodiscard]] static std::unique_ptr<queue_lease> open(config options, std::unique_ptr<nic_device> device,
                                                           lease_environment environment);
    queue_lease(queue_lease const&) = delete;
    queue_lease& operator=(queue_lease const&) = delete;
    // Unbinds the memory and undoes the rest in reverse order. Reports to config::notice the settings that others have
    // changed, which it leaves alone, and changes that it cannot undo. In a forked child it does nothing, because the
    // lease belongs to the parent.
    ~queue_lease() override;

    [[nodiscard]] std::uint32_t dmabuf_id() const noexcept override;
    [[nodiscard]] zcrx_queues zcrx() const noexcept override;
    [[nodiscard]] std::vector<unsigned> queues() const override;
    [[nodiscard]] std::size_t page_size() const noexcept override;
    [[nodiscard]] bool has_array_tokens() const noexcept override;

    // Steers packets from `remote` to `local` to one of the queues (queues take turns). The rule matches both ends. If
    // the driver refuses that, the rule matches the local end, or only the local port, and config::notice reports it.
    [[nodiscard]] std::unique_ptr<steering_rule> steer_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                            asio::ip::tcp::endpoint const& remote, error_code& code,
                                                            diagnostics& why) override;
    [[nodiscard]] bool moves_flows() const noexcept override { return true; }
    // The same with both ends; otherwise an error.
    [[nodiscard]] std::unique_ptr<steering_rule> move_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                           asio::ip::tcp::endpoint const& remote, error_code& code,
                                                           diagnostics& why) override;
    // The rule matches address and port, or only the port if the address is unspecified or the driver refuses more.
    // Several queues share the connections by an RSS context if the driver has them. Otherwise all connections go to
    // the first queue, and config::notice reports it.
    [[nodiscard]] std::unique_ptr<steering_rule> steer_port(int socket, asio::ip::tcp::endpoint const& local,
                                                            bool also_v4, error_code& code, diagnostics& why) override;

    [[nodiscard]] nic_ring ring() const noexcept override;
    [[nodiscard]] std::optional<pool_sample> sample() noexcept override;

    // Undoes the changes of dead owners on the interface. Returns a sentence for each undone change. Throws
    // system_error.
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

// Opens queues of an interface for a session, leased or set aside. On an error undoes everything, returns null, and
// sets `code` and `why`. Takes some 100 ms.
[[nodiscard]] std::unique_ptr<session_nic> open_nic(queue_lease_config options, error_code& code, diagnostics& why);

// Returns the fill level of memory bound to these queues, and their losses since the driver began to count. It reads
// them from the kernel, without rights. Throws system_error. `dmabuf`: id of the binding; nothing: memory of io_uring,
// which has none. Then `pools` has the numbers of its page pools.
[[nodiscard]] pool_sample sample_pool(nic_device& device, std::optional<std::uint32_t> dmabuf,
                                      std::span<unsigned const> queues, std::span<std::uint64_t const> pools = {});
// Returns `now` with the losses since an earlier sample. Some drivers restart their counters with a queue; the result
// then has the losses of `now`.
[[nodiscard]] pool_sample losses_since(pool_sample const& before, pool_sample now) noexcept;

}  // namespace gpurx::detail
