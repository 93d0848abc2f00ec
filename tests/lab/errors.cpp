// SPDX-License-Identifier: Apache-2.0
//
// What a user reads when the kernel says no: each cause is brought about, and errno, the kernel's own words and our
// advice are compared. The fixture sees to it that a refusal leaves the NIC as it was.
#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <cerrno>
#include <exception>
#include <ostream>
#include <vector>

#include "base/syscalls.hpp"
#include "bed.hpp"
#include "memory/memory_state.hpp"
#include "nic.hpp"
#include "nic/kernel_nic.hpp"
#include "rights.hpp"

using namespace gpurx::lab;
using gpurx::detail::unique_fd;
namespace ethtool = gpurx::detail::ethtool;

namespace {

constexpr std::size_t roomy_memory = 32 << 20;  // the rings of 15 queues want 7.5 MiB

// Ring settings for a binding by hand, while this lives.
class header_split {
  public:
    explicit header_split(ethtool::data_split value, std::uint32_t threshold = 0)
    {
        nic_.set_data_split(value);
        nic_.set_hds_threshold(threshold);
    }
    header_split(header_split const&) = delete;
    header_split& operator=(header_split const&) = delete;
    ~header_split()
    {
        nic_.set_hds_threshold(0);
        nic_.set_data_split(ethtool::data_split::automatic);
    }

  private:
    gpurx::detail::kernel_nic nic_{near_interface};
};

int memory_fd()
{
    static auto const memory = gpurx::detail::make_host_memory(roomy_memory);
    return memory->dmabuf_fd();
}

// bind-rx as it is, without what a session does before.
auto bind_bare(std::vector<unsigned> const& queues, int fd, char const* interface = near_interface)
{
    return gpurx::detail::bind_rx(interface, {::if_nametoindex(interface), queues, fd, 0});
}

void bind_with_split(std::vector<unsigned> const& queues, int fd)
{
    header_split const split{ethtool::data_split::on};
    (void)bind_bare(queues, fd);
}

// What `ask` does to the NIC while its queue 3 is bound.
template <class Ask>
void while_bound(Ask ask)
{
    header_split const split{ethtool::data_split::on};
    auto const binding = bind_bare({3}, memory_fd());
    gpurx::detail::kernel_nic nic{near_interface};
    ask(nic);
}

void set_combined_channels(gpurx::detail::kernel_nic& nic, std::uint32_t count)
{
    auto channels = nic.channels();
    channels.combined = count;
    nic.set_channels(channels);
}

using gpurx::transport;
using gpurx::transport_obstacle;

// Opens a session, on dms0 unless `options` say otherwise. Returns why it is without devmem.
transport_obstacle open_with(gpurx::rx_session_options options)
{
    if (options.interface.empty())
        options.interface = near_interface;
    gpurx::rx_session const session{std::move(options), gpurx::device_memory::on_host(roomy_memory)};
    return session.why_not_devmem();
}

transport_obstacle open_without_net_admin(transport how)
{
    without_net_admin const rights;
    return open_with({.transport = how});
}

transport_obstacle open_with_large_pages_on_small_ones(transport how)
{
    ordinary_pages const no_huge_ones;
    return open_with({.transport = how, .rx_page_size = 16384, .max_flows = 1});
}

struct refusal {
    char const* cause;
    int error;
    char const* begins;   // operation, object, and what the kernel says of it
    char const* advises;  // a part of what follows
    void (*provoke)();
    // Instead of that, where a session is refused: opens it. With transport::automatic it has `obstacle`.
    transport_obstacle (*open)(transport how) = nullptr;
    transport_obstacle obstacle = transport_obstacle::none;
};

std::ostream& operator<<(std::ostream& out, refusal const& row)
{
    return out << row.cause;
}

// clang-format off
constexpr std::array refusals{
    refusal{"header split is left to the driver", EINVAL,
            "bind-rx dms0 queue 3 (kernel: tcp-data-split is disabled)", "header split is on",
            [] { (void)bind_bare({3}, memory_fd()); }},
    refusal{"header split is off", EINVAL,
            "bind-rx dms0 queue 3 (kernel: tcp-data-split is disabled)", "header split is on",
            [] {
                header_split const split{ethtool::data_split::off};
                (void)bind_bare({3}, memory_fd());
            }},
    refusal{"short frames are not split", EINVAL,
            "bind-rx dms0 queue 3 (kernel: hds-thresh is not zero)", "hds-thresh 0",
            [] {
                header_split const split{ethtool::data_split::on, 100};
                (void)bind_bare({3}, memory_fd());
            }},
    refusal{"no such queue", EINVAL, "bind-rx dms0 queue 9: ", "the interface has no such RX queue",
            [] { bind_with_split({9}, memory_fd()); }},
    refusal{"no queue", EINVAL, "bind-rx dms0 without a queue", "name at least one RX queue",
            [] { bind_with_split({}, memory_fd()); }},
    refusal{"a closed descriptor", EBADF, "bind-rx dms0 queue 3: ", "the descriptor of the dmabuf is closed",
            [] { bind_with_split({3}, 999); }},
    refusal{"a descriptor of something else", EINVAL, "bind-rx dms0 queue 3: ", "the descriptor is a dmabuf",
            [] {
                unique_fd const null{::open("/dev/null", O_RDWR | O_CLOEXEC)};
                bind_with_split({3}, null.get());
            }},
    refusal{"an interface that has gone", ENODEV, "bind-rx dms0 queue 3: ", "the interface is gone",
            [] {
                std::array const queue{3U};
                (void)gpurx::detail::bind_rx("dms0", {12345, queue, memory_fd(), 0});
            }},
    refusal{"an interface without queue management", EOPNOTSUPP, "bind-rx lo queue 0: ",
            "needs queue management in the driver", [] { (void)bind_bare({0}, memory_fd(), "lo"); }},
    refusal{"a session on an interface without header split", EOPNOTSUPP, "get rings lo: ", "the interface cannot split headers",
            nullptr, [](transport how) { return open_with({.interface = "lo", .transport = how}); },
            transport_obstacle::no_header_split},
    refusal{"a session on no interface", ENODEV, "find interface nosuch0: ", "in this network namespace: lo",
            [] { (void)open_with({.interface = "nosuch0", .transport = transport::devmem}); }},
    refusal{"a queue that is bound", EEXIST,
            "bind-rx dms0 queue 3 (kernel: designated queue already memory provider bound)",
            "end the program that uses it",
            [] { while_bound([](auto&) { (void)bind_bare({3}, memory_fd()); }); }},
    refusal{"no right to", EPERM, "set tcp-data-split dms0: ", "run with CAP_NET_ADMIN",
            nullptr, open_without_net_admin, transport_obstacle::no_rights},
    refusal{"header split off while bound", EINVAL,
            "set tcp-data-split dms0 (kernel: can't disable tcp-data-split while device has memory provider enabled)",
            "another setting prevents header split",
            [] { while_bound([](auto& nic) { nic.set_data_split(ethtool::data_split::off); }); }},
    refusal{"a threshold while bound", EINVAL,
            "set hds-thresh dms0 (kernel: can't set non-zero hds_thresh while device is memory provider enabled)",
            "another program holds the setting",
            [] { while_bound([](auto& nic) { nic.set_hds_threshold(100); }); }},
    refusal{"fewer channels while bound", EINVAL, "set channels dms0 (kernel: requested channel counts are too low for "
            "existing memory provider setting (4))", "memory bound",
            [] { while_bound([](auto& nic) { set_combined_channels(nic, 2); }); }},
    refusal{"more channels than there are", EINVAL,
            "set channels dms0 (kernel: requested channel count exceeds maximum)", "ethtool -l",
            [] {
                gpurx::detail::kernel_nic nic{near_interface};
                set_combined_channels(nic, 99);
            }},
    refusal{"a session of all queues", ERANGE, "lease dms0 (16 queues wanted, 15 possible): ", "ask for fewer rx_queues",
            nullptr, [](transport how) { return open_with({.rx_queues = 16, .transport = how}); },
            transport_obstacle::too_few_queues},
};

constexpr std::array page_size_refusals{
    refusal{"pages larger than the memory's own", EINVAL,
            "bind-rx dms0 queue 3 (kernel: dmabuf sg entry (", "pages larger than the kernel's need huge pages",
            nullptr, open_with_large_pages_on_small_ones, transport_obstacle::not_bound},
    refusal{"pages larger than the driver's largest", ERANGE, "bind-rx dms0 queue 3 (kernel: devmemsim: rx-page-size",
            "the driver does not support this rx_page_size", nullptr,
            [](transport how) { return open_with({.transport = how, .rx_page_size = 128 << 10, .max_flows = 1}); },
            transport_obstacle::not_bound},
};
// clang-format on

// Another process with a session of one queue, until this is destroyed.
class other_process {
  public:
    other_process()
    {
        std::array<int, 2> ready{};
        std::array<int, 2> stop{};
        if (::pipe2(ready.data(), O_CLOEXEC) != 0 || ::pipe2(stop.data(), O_CLOEXEC) != 0)
            throw std::runtime_error{"no pipe"};
        pid_ = ::fork();
        if (pid_ == 0) {
            ::close(ready[0]);
            ::close(stop[1]);
            hold_a_queue(ready[1], stop[0]);
        }
        ::close(ready[1]);
        ::close(stop[0]);
        stop_.reset(stop[1]);
        unique_fd const started{ready[0]};
        char byte = 0;
        if (::read(started.get(), &byte, 1) != 1)
            throw std::runtime_error{"the other process has not opened its session"};
    }
    other_process(other_process const&) = delete;
    other_process& operator=(other_process const&) = delete;
    ~other_process()
    {
        stop_.reset();
        ::waitpid(pid_, nullptr, 0);
    }

    [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  private:
    [[noreturn]] static void hold_a_queue(int ready, int stop)
    {
        try {
            auto const session = open_session(roomy_memory);
            char byte = 0;
            (void)!::write(ready, &byte, 1);
            (void)!::read(stop, &byte, 1);
        } catch (std::exception const& failure) {
            fmt::print(stderr, "{}\n", failure.what());
        }
        ::_exit(0);
    }

    pid_t pid_ = -1;
    unique_fd stop_;
};

void expect_refusal(refusal const& row)
{
    INFO(row.cause);
    bool refused = false;
    try {
        if (row.open != nullptr)
            (void)row.open(transport::devmem);
        else
            row.provoke();
    } catch (gpurx::system_error const& failure) {
        refused = true;
        std::string const text = failure.what();
        fmt::print("{}: {}\n", row.cause, text);
        INFO(text);
        CHECK(failure.code() == gpurx::error_code{row.error, boost::system::system_category()});
        CHECK(text.starts_with(row.begins));
        CHECK(text.find(": " + failure.code().message()) != std::string::npos);
        CHECK(failure.why().advice.find(row.advises) != std::string::npos);
    }
    CHECK(refused);
    if (row.open != nullptr)
        CHECK(row.open(transport::automatic) == row.obstacle);
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "a refusal has the operation, the object, the reason and the advice", "[errors]")
{
    expect_refusal(GENERATE(from_range(refusals)));
}

TEST_CASE_METHOD(unchanged_nic, "a refusal of a page size has the supported sizes", "[smoke][errors]")
{
    if (!kernel_has_page_sizes())
        SKIP("bind-rx takes a page size since Linux 7.3");
    expect_refusal(GENERATE(from_range(page_size_refusals)));
}

TEST_CASE_METHOD(unchanged_nic, "a kernel without rx-page-size refuses it by name", "[errors]")
{
    if (kernel_has_page_sizes())
        SKIP("bind-rx takes a page size since Linux 7.3");
    expect_refusal({"pages of 16 KiB", EOPNOTSUPP,
                    "bind-rx dms0: ", "this kernel has no rx-page-size: leave rx_page_size 0", nullptr,
                    [](transport how) { return open_with({.transport = how, .rx_page_size = 16384, .max_flows = 1}); },
                    transport_obstacle::not_bound});
}

TEST_CASE_METHOD(unchanged_nic, "a queue that another process has is refused with its name", "[errors]")
{
    other_process const other;
    try {
        (void)open_with({.rx_queues = 15, .transport = transport::devmem});
        FAIL("the session got a queue of another process");
    } catch (gpurx::system_error const& failure) {
        std::string const text = failure.what();
        INFO(text);
        CHECK(failure.code() == gpurx::errc::queue_busy);
        CHECK(text.starts_with("lease dms0 (15 queues wanted, 15 possible): "));
        CHECK(text.find("queue 3 used by ") != std::string::npos);
        CHECK(text.find(fmt::format("{}", other.pid())) != std::string::npos);
    }
    CHECK(open_with({.rx_queues = 15}) == transport_obstacle::too_few_queues);
}
