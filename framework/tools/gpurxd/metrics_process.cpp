// SPDX-License-Identifier: Apache-2.0
#include "metrics_process.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <csignal>
#include <map>
#include <set>
#include <utility>

#include "base/failure.hpp"
#include "figure_table.hpp"
#include "metrics_page.hpp"
#include "nic/kernel_nic.hpp"
#include "rights.hpp"
#include "scrapes.hpp"

namespace gpurx::gpurxd {

namespace {

// What clients have of one interface.
struct held_queues {
    std::set<std::uint32_t> dmabufs;
    std::set<unsigned> queues;
};

interface_figures look_at(std::string const& interface, held_queues const& held)
{
    interface_figures seen{.interface = interface};
    detail::kernel_nic nic{interface};
    for (auto const& pool : nic.page_pools())
        seen.pages_in_flight += pool.dmabuf && held.dmabufs.contains(*pool.dmabuf) ? pool.inflight : 0;
    for (auto const& queue : nic.rx_losses()) {
        if (held.queues.contains(queue.queue))
            seen.losses.push_back(queue);
    }
    return seen;
}

// One look at each interface, however many clients it has. One that cannot be looked at is left out.
std::vector<interface_figures> look_at_all(figures const& counted)
{
    std::map<std::string, held_queues> held;
    for (auto const& client : counted.clients) {
        auto& mine = held[client.interface];
        mine.dmabufs.insert(client.dmabuf);
        mine.queues.insert(client.queues.begin(), client.queues.end());
    }
    std::vector<interface_figures> seen;
    for (auto const& [interface, what] : held) {
        try {
            seen.push_back(look_at(interface, what));
        } catch (system_error const&) {
            continue;
        }
    }
    return seen;
}

void end_with_daemon(pid_t daemon)
{
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != daemon)
        detail::fail(ESRCH, "answer for metrics of", "a gpurxd that has ended");
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr rlim_t most_data = RLIM_INFINITY;  // what they reserve counts as well
#else
constexpr rlim_t most_data = 64U << 20;
#endif

// Above what scrapes' own limits can come to.
void limit_use()
{
    rlimit const descriptors{.rlim_cur = 64, .rlim_max = 64};
    rlimit const data{.rlim_cur = most_data, .rlim_max = most_data};
    if (::setrlimit(RLIMIT_NOFILE, &descriptors) != 0 || ::setrlimit(RLIMIT_DATA, &data) != 0)
        detail::fail(errno, "limit", "the process for metrics");
    static_cast<void>(::setpriority(PRIO_PROCESS, 0, 10));
}

}  // namespace

void answer_for_metrics(std::vector<detail::unique_fd> listening, detail::unique_fd figures, pid_t daemon)
{
    end_with_daemon(daemon);
    limit_use();
    keep_nothing();
    auto const counted = figure_table::read_from(std::move(figures));
    asio::io_context io{1};
    scrapes const all{io, std::move(listening), [&] {
                          auto const now = counted.read();
                          return metrics_page(GPURX_VERSION, now, look_at_all(now));
                      }};
    io.run();
}

}  // namespace gpurx::gpurxd
