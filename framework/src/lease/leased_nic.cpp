// SPDX-License-Identifier: Apache-2.0
#include "leased_nic.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "base/thread.hpp"

namespace gpurx::detail {

namespace {

// Somebody else has made the rule, and will remove it.
class rule_of_the_lessor final : public steering_rule {};

[[noreturn]] void refuse_leased(nic_device& device, std::vector<netdev::rx_queue> const& leased, unsigned wanted)
{
    auto const object = fmt::format("{} ({} leased queue{} wanted, {} there)", device.name(), wanted,
                                    wanted == 1 ? "" : "s", leased.size());
    std::vector<std::string> words;
    for (auto const& queue : leased) {
        if (queue.taken())
            words.push_back(fmt::format("queue {} used by {}", queue.id, user_of(queue)));
    }
    if (leased.size() >= wanted)
        fail(make_error_code(errc::queue_busy), "bind", object, fmt::format("{}", fmt::join(words, "; ")));
    fail(ERANGE, "bind", object,
         leased.empty()
             ? "lease a queue of a NIC to the interface, from the NIC's network namespace (docs/leased-queues.md)"
             : "lower rx_queues, or lease more queues to the interface, from the NIC's network namespace");
}

std::vector<unsigned> choose_leased(nic_device& device, unsigned wanted, std::chrono::milliseconds timeout)
{
    if (!device.is_up())
        fail(ENETDOWN, "bind", device.name(), "set the interface up: the kernel shows its queues only then");
    return *retry(timeout, [&](bool last) -> std::optional<std::vector<unsigned>> {
        auto const leased = leased_queues(device.rx_queues());
        std::vector<unsigned> free;
        for (auto const& queue : leased) {
            if (!queue.taken() && free.size() < wanted)
                free.push_back(queue.id);
        }
        if (free.size() == wanted)
            return free;
        if (last || leased.size() < wanted)
            refuse_leased(device, leased, wanted);
        return std::nullopt;
    });
}

// The kernel speaks of the NIC, which its reader cannot see.
[[noreturn]] void rethrow_for_lessee(system_error const& error)
{
    auto why = error.why();
    if (auto advice = advice_on("bind-rx of a leased queue", error.code().value()); !advice.empty())
        why.advice = std::move(advice);
    throw system_error{error.code(), std::move(why)};
}

}  // namespace

bool is_lessee(std::string_view driver)
{
    return driver == "netkit";
}

std::vector<netdev::rx_queue> leased_queues(std::vector<netdev::rx_queue> const& all)
{
    std::vector<netdev::rx_queue> leased;
    std::copy_if(all.begin(), all.end(), std::back_inserter(leased), [](auto const& queue) { return queue.id != 0; });
    return leased;
}

std::unique_ptr<leased_nic> leased_nic::open(leased_nic_config const& options, nic_device& device)
{
    std::unique_ptr<leased_nic> made{new leased_nic};
    made->page_size_ = options.rx_page_size != 0 ? options.rx_page_size : sys::page_size();
    made->ring_.mtu = device.mtu();
    if (options.check_ring)
        options.check_ring(made->ring_);
    made->array_tokens_ = device.has_array_tokens();
    // A kernel that knows no such choice does just this.
    auto const asked = options.rx_page_size == sys::page_size() ? 0 : options.rx_page_size;
    // Nobody keeps others from a queue between the look at it and the bind.
    retry(options.busy_timeout, [&](bool last) {
        made->queues_ = choose_leased(device, options.rx_queues, options.busy_timeout);
        try {
            made->binding_ = device.bind_rx(made->queues_, options.dmabuf_fd, asked);
        } catch (system_error const& error) {
            bool const busy = error.code() == errno_code(EEXIST) || error.code() == errno_code(EBUSY);
            if (!busy || last)
                rethrow_for_lessee(error);
        }
        return made->binding_ != nullptr;
    });
    return made;
}

std::unique_ptr<steering_rule> leased_nic::steer_flow(int /*socket*/, asio::ip::tcp::endpoint const& /*local*/,
                                                      asio::ip::tcp::endpoint const& /*remote*/, error_code& code,
                                                      diagnostics& why)
{
    code.clear();
    why.clear();
    return std::make_unique<rule_of_the_lessor>();
}

std::unique_ptr<steering_rule> leased_nic::steer_port(int /*socket*/, asio::ip::tcp::endpoint const& /*local*/,
                                                      bool /*also_v4*/, error_code& code, diagnostics& why)
{
    code.clear();
    why.clear();
    return std::make_unique<rule_of_the_lessor>();
}

}  // namespace gpurx::detail
