// SPDX-License-Identifier: Apache-2.0
//
// What a test of queue_lease needs: a NIC in memory, a state directory, and processes that live and die on demand.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fake_device.hpp"
#include "lease/device_journal.hpp"
#include "lease/queue_lease.hpp"

namespace gpurx::detail::test {

class lease_bench {
  public:
    lease_bench();
    lease_bench(lease_bench const&) = delete;
    lease_bench& operator=(lease_bench const&) = delete;
    ~lease_bench();

    fake_hardware hardware;
    std::vector<std::string> notices;
    std::function<void()> on_notice;
    bool zcrx = false;  // sessions register with io_uring, one queue each

    // A session of a process of its own; its owner number is `process`. Throws system_error.
    [[nodiscard]] std::unique_ptr<queue_lease> open(unsigned rx_queues = 1, int process = 1,
                                                    bool rules_by_port_alone = true);
    [[nodiscard]] lease_environment environment(int process);
    std::vector<std::string> recover();

    // The process dies now, without a chance to undo anything: the kernel unbinds its memory.
    void kill(std::unique_ptr<queue_lease> lease, int process, std::unique_ptr<steering_rule> flow = nullptr);
    // Nobody here can see the process: it is one of another container.
    void hide(int process) { hidden_.insert(process); }
    // It has died, and this is what was on disk and on the NIC at that moment.
    struct moment {
        nic_state state;
        std::string journal;
    };
    [[nodiscard]] moment now() const;
    void died_at(moment const& then, int process);

    [[nodiscard]] std::string journal_text() const;
    void write_journal(std::string const& text) const;
    [[nodiscard]] std::filesystem::path journal_path() const;
    [[nodiscard]] std::filesystem::path const& directory() const noexcept { return directory_; }

  private:
    std::filesystem::path directory_;
    std::set<int> dead_;
    std::set<int> hidden_;
    int memory_ = -1;
};

[[nodiscard]] inline boost::asio::ip::tcp::endpoint at(char const* address, unsigned short port)
{
    return {boost::asio::ip::make_address(address), port};
}
inline boost::asio::ip::tcp::endpoint const here = at("10.77.0.1", 5000);
inline boost::asio::ip::tcp::endpoint const there = at("10.77.0.2", 4000);

// What must succeed.
[[nodiscard]] std::unique_ptr<steering_rule> steer(queue_lease& lease, boost::asio::ip::tcp::endpoint const& local,
                                                   boost::asio::ip::tcp::endpoint const& remote);
[[nodiscard]] std::unique_ptr<steering_rule> steer_port(queue_lease& lease, boost::asio::ip::tcp::endpoint const& local,
                                                        bool also_v4 = false);

// Why a lease, which must fail, failed.
[[nodiscard]] system_error failure_of(lease_bench& bench, unsigned rx_queues = 1, int process = 1);

// A line each.
[[nodiscard]] std::string joined(std::vector<std::string> const& sentences);

}  // namespace gpurx::detail::test
