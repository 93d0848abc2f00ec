// SPDX-License-Identifier: Apache-2.0
#include "lease_bench.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace gpurx::detail::test {

namespace {

// Claims of processes that were killed: nobody runs their destructors.
struct grave {
    queue_lease* lease;
    steering_rule* flow;
};

std::vector<grave>& graveyard()
{
    static auto& all = *new std::vector<grave>;
    return all;
}

}  // namespace

lease_bench::lease_bench()
{
    std::string name = std::filesystem::temp_directory_path() / "gpurx-test-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    directory_ = name;
    memory_ = ::memfd_create("memory", MFD_CLOEXEC);
    REQUIRE(::ftruncate(memory_, 1 << 20) == 0);
}

lease_bench::~lease_bench()
{
    ::close(memory_);
    std::filesystem::remove_all(directory_);
}

lease_environment lease_bench::environment(int process)
{
    lease_environment result;
    result.state_directory = directory_ / "state";
    result.boot_id = "this-boot";
    result.netns = 1;
    result.self = {process, 1000, 1, 1};
    result.alive = [this](owner_key const& owner) -> std::optional<bool> {
        if (hidden_.contains(owner.pid))
            return std::nullopt;
        return !dead_.contains(owner.pid);
    };
    result.lock_timeout = std::chrono::milliseconds{50};
    result.busy_timeout = std::chrono::milliseconds{50};
    return result;
}

std::unique_ptr<queue_lease> lease_bench::open(unsigned rx_queues, int process, bool rules_by_port_alone)
{
    queue_lease_config options;
    options.interface = "fake0";
    options.rx_queues = rx_queues;
    options.dmabuf_fd = memory_;
    if (zcrx)
        options.parts.assign(rx_queues, {.dmabuf_fd = memory_, .offset = 0, .size = 4096});
    options.rules_by_port_alone = rules_by_port_alone;
    options.notice = [this](std::string_view sentence) {
        notices.emplace_back(sentence);
        if (on_notice)
            on_notice();
    };
    return queue_lease::open(std::move(options), std::make_unique<fake_device>(hardware), environment(process));
}

std::vector<std::string> lease_bench::recover()
{
    fake_device nic{hardware};
    return queue_lease::recover(nic, environment(99));
}

void lease_bench::kill(std::unique_ptr<queue_lease> lease, int process, std::unique_ptr<steering_rule> flow)
{
    auto const id = lease->dmabuf_id();
    std::erase_if(hardware.state.bound, [id](auto const& entry) { return entry.second == id; });
    if (zcrx)
        for (auto const queue : lease->queues())
            hardware.state.io_uring.erase(queue);
    graveyard().push_back({lease.release(), flow.release()});
    dead_.insert(process);
}

lease_bench::moment lease_bench::now() const
{
    return {hardware.state, journal_text()};
}

void lease_bench::died_at(moment const& then, int process)
{
    hardware.state = then.state;
    hardware.unbind_all();
    write_journal(then.journal);
    dead_.insert(process);
}

std::filesystem::path lease_bench::journal_path() const
{
    return directory_ / "state" / "ifindex4-netns1.journal";
}

std::string lease_bench::journal_text() const
{
    std::ifstream file{journal_path(), std::ios::binary};
    return {std::istreambuf_iterator<char>{file}, {}};
}

void lease_bench::write_journal(std::string const& text) const
{
    if (text.empty()) {
        std::filesystem::remove(journal_path());
        return;
    }
    std::filesystem::create_directory(directory_ / "state");
    std::ofstream{journal_path(), std::ios::binary} << text;
}

std::unique_ptr<steering_rule> steer(queue_lease& lease, boost::asio::ip::tcp::endpoint const& local,
                                     boost::asio::ip::tcp::endpoint const& remote)
{
    error_code code;
    diagnostics why;
    auto flow = lease.steer_flow(-1, local, remote, code, why);
    INFO(describe(code, why));
    REQUIRE(flow);
    return flow;
}

std::unique_ptr<steering_rule> steer_port(queue_lease& lease, boost::asio::ip::tcp::endpoint const& local, bool also_v4)
{
    error_code code;
    diagnostics why;
    auto flow = lease.steer_port(-1, local, also_v4, code, why);
    INFO(describe(code, why));
    REQUIRE(flow);
    return flow;
}

system_error failure_of(lease_bench& bench, unsigned rx_queues, int process)
{
    try {
        auto const lease = bench.open(rx_queues, process);
    } catch (system_error const& error) {
        return error;
    }
    FAIL("the lease succeeded");
    throw std::logic_error{"unreachable"};
}

std::string joined(std::vector<std::string> const& sentences)
{
    std::string text;
    for (auto const& sentence : sentences)
        text += sentence + '\n';
    return text;
}

}  // namespace gpurx::detail::test
