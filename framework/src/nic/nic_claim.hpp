// SPDX-License-Identifier: Apache-2.0
//
// nic_claim: RX queues of a NIC set aside for one session, memory bound to them, and flows steered to them. What is
// changed is recorded in the journal first and undone, in reverse and exactly, when the claim is destroyed.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/error.hpp>
#include <gpurx/session.hpp>

#include "fork.hpp"

namespace gpurx::detail {

class nic_claim;
class nic_device;          // nic/nic_device.hpp: what a claim asks of the kernel
struct claim_environment;  // nic/claim_environment.hpp: the journal's place, and who lives
struct flow_rule;          // nic/flow_rule.hpp

// The rules that bring one flow, or the connections of one listener, to a claim's queues. Destroying it removes them;
// the claim must still exist then.
class steered_flow {
  public:
    steered_flow(nic_claim& claim, std::uint64_t number) noexcept : claim_{claim}, number_{number} {}
    steered_flow(steered_flow const&) = delete;
    steered_flow& operator=(steered_flow const&) = delete;
    ~steered_flow();

  private:
    nic_claim& claim_;
    std::uint64_t number_;  // the claim's name for it
};

struct nic_claim_config {
    std::string interface;
    unsigned rx_queues = 1;
    std::uint32_t rx_page_size = 0;  // bytes; 0: the driver's default, one system page
    token_kind tokens = token_kind::automatic;
    int dmabuf_fd = -1;  // used inside open() only: the binding keeps its own reference
    std::string state_directory = "/run/gpurx";
    std::function<void(std::string_view)> notice;  // must not throw; may be empty
};

// Pages of the bound memory. in_flight counts those that hold received data and those that wait in the NIC's ring.
struct page_use {
    std::uint64_t in_flight = 0;
    std::uint64_t total = 0;
};

// Thread safety: safe, except destruction. Calls block for some ms, or for as long as another session holds the
// interface's lock (one that is being opened does for seconds); none waits for ever: ETIMEDOUT. inflight() and
// alloc_failures() wait for no such lock.
class nic_claim {
  public:
    using config = nic_claim_config;

    // Undoes what dead owners left on the interface, then claims. On an error: null, everything undone, `code` and
    // `why` set. Takes some 100 ms.
    [[nodiscard]] static std::unique_ptr<nic_claim> open(config options, error_code& code, diagnostics& why);
    // The same on a device and in an environment of the caller's choice: for tests. Throws system_error.
    [[nodiscard]] static std::unique_ptr<nic_claim> open(config options, std::unique_ptr<nic_device> device,
                                                         claim_environment environment);
    nic_claim(nic_claim const&) = delete;
    nic_claim& operator=(nic_claim const&) = delete;
    // Unbinds the memory and undoes the rest in reverse. Tells config::notice what it found changed by others and so
    // left alone, and what could not be undone. In a child that was forked: does nothing, as the claim is the parent's.
    ~nic_claim();

    // The kernel's id of the binding (dmabuf_cmsg.dmabuf_id).
    [[nodiscard]] std::uint32_t dmabuf_id() const noexcept;
    [[nodiscard]] std::vector<unsigned> const& queues() const noexcept;
    // Per queue, what SO_INCOMING_NAPI_ID says of a flow that arrives there; 0 where the driver does not tell.
    [[nodiscard]] std::vector<unsigned> const& napi_ids() const noexcept;
    // Bytes of one page of the binding.
    [[nodiscard]] std::size_t page_size() const noexcept;
    // Those that the binding gives out: array or xarray.
    [[nodiscard]] token_kind tokens() const noexcept;

    // Steers one connection: packets from `remote` to `local` arrive on one of the queues (queues take turns). The rule
    // matches both ends; where the driver refuses that, the local end, or the local port alone, and config::notice says
    // so. On an error: null, `code` and `why` set.
    [[nodiscard]] std::unique_ptr<steered_flow> steer(boost::asio::ip::tcp::endpoint const& local,
                                                      boost::asio::ip::tcp::endpoint const& remote, error_code& code,
                                                      diagnostics& why);
    // Steers what arrives for a listener bound to `local`: by address and port, by port alone where the address is
    // unspecified or the driver refuses more. Several queues share the connections by an RSS context where the driver
    // has them; else all go to the first queue, and config::notice says so. `also_v4`: a v6 listener that takes IPv4 as
    // well (IPV6_V6ONLY off).
    [[nodiscard]] std::unique_ptr<steered_flow> steer_port(boost::asio::ip::tcp::endpoint const& local, bool also_v4,
                                                           error_code& code, diagnostics& why);

    // Pages of this claim's memory in use; nothing if the kernel does not say (device gone).
    [[nodiscard]] std::optional<page_use> inflight() const;
    // Packets dropped on the claim's queues for want of a page. Only differences mean something; nothing if the driver
    // does not count them.
    [[nodiscard]] std::optional<std::uint64_t> alloc_failures() const;

    // Undoes what dead owners left on the interface. Returns what was done, a sentence each. Throws system_error.
    static std::vector<std::string> recover(std::string_view interface, std::string_view state_directory);
    static std::vector<std::string> recover(nic_device& device, claim_environment const& environment);

  private:
    friend class steered_flow;
    struct state;
    explicit nic_claim(std::unique_ptr<state> made) noexcept;
    [[nodiscard]] std::unique_ptr<steered_flow> keep(std::vector<flow_rule> rules);
    void unsteer(std::uint64_t number) noexcept;

    birthplace born_;
    process_ptr<state> state_;
};

}  // namespace gpurx::detail
