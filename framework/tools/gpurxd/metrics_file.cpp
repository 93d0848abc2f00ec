// SPDX-License-Identifier: Apache-2.0
#include "metrics_file.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/failure.hpp"
#include "base/replace_file.hpp"
#include "log.hpp"
#include "metrics.hpp"
#include "nic/kernel_nic.hpp"

namespace gpurx::gpurxd {

namespace {

// The bindings and queues that clients have of one interface.
struct held_queues {
    std::set<std::uint32_t> dmabufs;
    std::set<unsigned> queues;
};

interface_metrics look_at(std::string const& interface, held_queues const& held)
{
    interface_metrics seen{.interface = interface};
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
std::vector<interface_metrics> look_at_all(daemon_metrics const& counted)
{
    std::map<std::string, held_queues> held;
    for (auto const& client : counted.clients) {
        auto& mine = held[client.interface];
        mine.dmabufs.insert(client.dmabuf);
        mine.queues.insert(client.queues.begin(), client.queues.end());
    }
    std::vector<interface_metrics> seen;
    for (auto const& [interface, what] : held) {
        try {
            seen.push_back(look_at(interface, what));
        } catch (system_error const&) {
            continue;
        }
    }
    return seen;
}

// systemd has one mode for all directories of a service, and the others are nobody else's business.
void let_all_read(std::string const& directory)
{
    constexpr mode_t all_read = 0555;
    struct stat what {};
    if (::stat(directory.c_str(), &what) == 0 && what.st_uid == ::geteuid())
        static_cast<void>(::chmod(directory.c_str(), (what.st_mode & 07777) | all_read));
}

}  // namespace

metrics_file::metrics_file(std::string const& directory, std::function<daemon_metrics()> count, clock::time_point now)
    : path_{directory + "/gpurxd.prom"}, count_{std::move(count)}
{
    let_all_read(directory);
    write(count_(), now);
}

metrics_file::~metrics_file()
{
    ::unlink(path_.c_str());
}

void metrics_file::look(clock::time_point now) noexcept
{
    try {
        auto const age = now - when_;
        if (age < between_writes || (fails_ && age < oldest))
            return;
        auto counted = count_();
        if (counted == written_ && age < oldest)
            return;
        write(std::move(counted), now);
        if (std::exchange(fails_, false))
            log_line(fmt::format("gpurxd writes metrics to {} again", path_));
    } catch (std::exception const& error) {
        if (!std::exchange(fails_, true))
            log_line(fmt::format("gpurxd cannot write metrics: {}", error.what()));
    }
}

void metrics_file::write(daemon_metrics counted, clock::time_point now)
{
    when_ = now;
    auto const text = metrics_page(GPURX_VERSION, counted, look_at_all(counted));
    if (auto const failure = detail::replace_file(path_, text, 0644); failure != 0)
        detail::fail(failure, "write metrics to", path_,
                     "set --metrics-directory to an existing directory that gpurxd's user may write to");
    written_ = std::move(counted);
}

}  // namespace gpurx::gpurxd
