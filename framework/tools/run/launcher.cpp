// SPDX-License-Identifier: Apache-2.0
#include "launcher.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/failure.hpp"
#include "base/zcrx_queue.hpp"
#include "client.hpp"
#include "lease/daemon_channel.hpp"
#include "lease/inherited_queue.hpp"
#include "lease/queue_lease.hpp"
#include "socket_checks.hpp"
#include "system_backend.hpp"

namespace gpurx::launcher {

using detail::fail;
using detail::unique_fd;
using endpoints = std::vector<asio::ip::tcp::endpoint>;
using endpoint_set = std::set<asio::ip::tcp::endpoint>;

namespace {

// Neither end waits for ever for the other.
void limit_waits(int socket, time_t seconds)
{
    timeval const limit{.tv_sec = seconds, .tv_usec = 0};
    if (::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
        ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0)
        fail(errno, "set a time limit for", "the connection");
}

}  // namespace

handed_on prepare(std::string const& interface, unsigned threads)
{
    handed_on made;
    detail::inherited_queue names{.interface = interface};
    // Above those that programs count on.
    auto const hand_on = [&](int descriptor) {
        auto const copy = ::fcntl(descriptor, F_DUPFD, 10);
        if (copy < 0)
            fail(errno, "copy", "a descriptor", "raise the limit of open files (ulimit -n)");
        made.inherited.emplace_back(copy);
        return copy;
    };
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        fail(errno, "make", "the connection");
    made.channel.reset(ends[0]);
    unique_fd const program_end{ends[1]};
    limit_waits(ends[0], 5);
    limit_waits(ends[1], 30);
    names.channel = hand_on(ends[1]);
    made.state.reset(::memfd_create("gpurx-run", MFD_CLOEXEC));
    struct stat status {};
    if (!made.state || ::fstat(made.state.get(), &status) != 0)
        fail(errno, "make", "a file in memory");
    names.state = hand_on(made.state.get());
    names.inode = status.st_ino;
    for (unsigned i = 0; i <= threads; ++i) {
        made.rings.push_back(detail::zcrx_queue::make_ring());
        names.rings.push_back(hand_on(made.rings.back().fd()));
    }
    made.variable = to_variable(names);
    return made;
}

namespace {

class backend final : public gpurxd::client_backend {
  public:
    backend(handed_on& resources, std::string interface, std::string state_directory, uid_t user)
        : of_{resources}, interface_{std::move(interface)}, state_directory_{std::move(state_directory)}, user_{user}
    {}

    [[nodiscard]] gpurxd::limits admit(std::string_view interface) override;
    [[nodiscard]] std::string policy_path() const override { return "the options of gpurx-run"; }
    [[nodiscard]] std::uint64_t dmabuf_size(int descriptor) override
    {
        return memory_ = gpurxd::size_of_dmabuf(descriptor);
    }
    [[nodiscard]] std::unique_ptr<detail::session_nic> lease(
        detail::open_request const& what, int dmabuf, std::function<void(std::string_view)> const& notice) override;
    void check_flow(int descriptor, detail::steer_flow_request const& what) override
    {
        gpurxd::check_flow_socket(descriptor, what, user_);
    }
    [[nodiscard]] endpoints check_listener(int descriptor, detail::steer_port_request const& what) override
    {
        return gpurxd::check_listening_socket(descriptor, what, user_, interface_);
    }
    [[nodiscard]] endpoint_set find_lost(endpoint_set const& ends) override
    {
        return gpurxd::lost_endpoints(ends, user_);
    }
    void on_opened(gpurxd::client_metrics /*who*/) override {}
    void on_rules_changed(std::uint64_t /*now*/, std::uint64_t /*made*/, std::uint64_t /*gone*/) noexcept override {}
    void on_refused(gpurxd::request_kind /*what*/, error_code /*code*/, diagnostics const& /*why*/) noexcept override {}

  private:
    handed_on& of_;
    std::string interface_;
    std::string state_directory_;
    uid_t user_;
    std::uint64_t memory_ = 0;  // bytes
};

gpurxd::limits backend::admit(std::string_view interface)
{
    if (::if_nametoindex(std::string{interface}.c_str()) != ::if_nametoindex(interface_.c_str()))
        fail(EACCES, "open", std::string{interface}, fmt::format("gpurx-run hands on a queue of {}", interface_));
    constexpr auto any = std::numeric_limits<unsigned>::max();
    return {.queues = 1,
            .memory = std::numeric_limits<std::uint64_t>::max(),
            .flows = any,
            .rules = 1'000'000,
            .clients = 1,
            .opens = any};
}

std::unique_ptr<detail::session_nic> backend::lease(detail::open_request const& what, int dmabuf,
                                                    std::function<void(std::string_view)> const& notice)
{
    error_code code;
    diagnostics why;
    auto nic = detail::open_nic({.interface = interface_,
                                 .rx_queues = what.rx_queues,
                                 .rx_page_size = what.rx_page_size,
                                 .dmabuf_fd = dmabuf,
                                 .parts = {{.dmabuf_fd = dmabuf, .offset = 0, .size = memory_}},
                                 .state_directory = state_directory_,
                                 .rules_by_port_alone = false,
                                 .notice = notice},
                                code, why);
    if (!nic)
        throw system_error{code, std::move(why)};
    auto const known = nic->zcrx().front()->hand_on(of_.rings);
    // They end with the program.
    of_.rings.clear();
    if (::pwrite(of_.state.get(), &known, sizeof known, 0) != static_cast<ssize_t>(sizeof known))
        fail(errno, "write", "a file in memory");
    return nic;
}

}  // namespace

void serve(handed_on& of, std::string const& interface, std::string const& state_directory, uid_t user)
{
    detail::daemon_channel connection{std::move(of.channel)};
    backend here{of, interface, state_directory, user};
    // The session may open as late as it likes.
    static_cast<void>(gpurxd::serve(connection, here, std::chrono::milliseconds{-1}));
}

}  // namespace gpurx::launcher
