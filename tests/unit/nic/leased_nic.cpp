// SPDX-License-Identifier: Apache-2.0
#include "lease/leased_nic.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <string>
#include <vector>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "lease_bench.hpp"

using namespace gpurx::detail;
using namespace gpurx::detail::test;
using Catch::Matchers::ContainsSubstring;
using ethtool::data_split;
using queues = std::vector<unsigned>;

namespace {

// A netkit device, whose NIC has header split on: two queues are leased to it, beside its own.
class lessee_bench {
  public:
    lessee_bench()
    {
        hardware.driver = "netkit";
        hardware.has_table = false;
        hardware.state.channels = {0, 0, 3, 0, 0, 3};
        hardware.state.split = data_split::on;
        hardware.state.hds_threshold = 0;
    }

    fake_hardware hardware;
    leased_nic_config options{.dmabuf_fd = 5, .busy_timeout = std::chrono::milliseconds{50}};

    [[nodiscard]] std::unique_ptr<leased_nic> open(unsigned rx_queues = 1)
    {
        options.rx_queues = rx_queues;
        fake_device device{hardware};
        return leased_nic::open(options, device);
    }
    [[nodiscard]] gpurx::system_error failure(unsigned rx_queues = 1)
    {
        try {
            (void)open(rx_queues);
        } catch (gpurx::system_error const& error) {
            return error;
        }
        FAIL("it was opened");
        throw;
    }
};

}  // namespace

TEST_CASE("a leased queue is bound, and nothing else is done to the interface")
{
    lessee_bench bench;
    auto const before = bench.hardware.state;
    {
        auto const nic = bench.open(2);
        CHECK(nic->queues() == queues{1, 2});
        CHECK(nic->dmabuf_id() == 1);
        CHECK(nic->page_size() == sys::page_size());
        CHECK_FALSE(nic->steers());
        CHECK(nic->ring() == nic_ring{std::nullopt, 1500});
        CHECK_FALSE(nic->sample());
        gpurx::error_code code;
        gpurx::diagnostics why;
        auto const flow = nic->steer_flow(-1, here, there, code, why);
        CHECK(flow != nullptr);
        CHECK_FALSE(code);
        auto const port = nic->steer_port(-1, here, true, code, why);
        CHECK(port != nullptr);
        CHECK_FALSE(code);
        CHECK(bench.hardware.state.bound.size() == 2);
    }
    CHECK(bench.hardware.changes.front() == "bind");
    CHECK(bench.hardware.listings == 0);
    CHECK(bench.hardware.state == before);
}

TEST_CASE("netkit alone has its queues from elsewhere")
{
    CHECK(is_lessee("netkit"));
    CHECK_FALSE(is_lessee("mlx5_core"));
    CHECK_FALSE(is_lessee(""));
}

TEST_CASE("leased queues that are in use are passed over, and named when there are no others")
{
    lessee_bench bench;
    bench.hardware.state.bound[1] = 77;
    CHECK(bench.open()->queues() == queues{2});
    auto const error = bench.failure(2);
    CHECK(error.code() == gpurx::errc::queue_busy);
    CHECK_THAT(error.what(), ContainsSubstring("bind fake0 (2 leased queues wanted, 2 there)") &&
                                 ContainsSubstring("queue 1 used by memory of binding 77"));
    CHECK(bench.hardware.state.bound.size() == 1);
}

TEST_CASE("a leased queue whose last user is just being cleaned up is waited for")
{
    lessee_bench bench;
    bench.options.busy_timeout = std::chrono::seconds{30};
    bench.hardware.state.bound[2] = 77;
    int looks = 0;
    bench.hardware.looked_at_queues = [&] {
        if (++looks == 3)
            bench.hardware.state.bound.clear();
    };
    CHECK(bench.open(2)->queues() == queues{1, 2});
}

TEST_CASE("a session takes another queue if its leased queue is taken between look and bind")
{
    lessee_bench bench;
    bench.options.busy_timeout = std::chrono::seconds{30};
    int binds = 0;
    bench.hardware.before = [&](std::string const& name) {
        if (name == "bind" && ++binds == 1)
            bench.hardware.state.bound[1] = 77;
    };
    CHECK(bench.open()->queues() == queues{2});
    CHECK(binds == 2);
}

TEST_CASE("more queues than were leased are refused at once, and nothing is bound")
{
    lessee_bench bench;
    bench.options.busy_timeout = std::chrono::seconds{30};
    SECTION("some")
    {
        auto const error = bench.failure(3);
        CHECK(error.code() == errno_code(ERANGE));
        CHECK_THAT(error.what(), ContainsSubstring("3 leased queues wanted, 2 there"));
    }
    SECTION("none")
    {
        bench.hardware.state.channels.combined = 1;
        auto const error = bench.failure();
        CHECK(error.code() == errno_code(ERANGE));
        CHECK_THAT(error.why().advice, ContainsSubstring("lease a queue of a NIC to the interface"));
    }
    SECTION("none can be seen while the interface is down")
    {
        bench.hardware.up = false;
        CHECK(bench.failure().code() == errno_code(ENETDOWN));
    }
    CHECK(bench.hardware.changes.empty());
}

TEST_CASE("advice about a missing setting of the NIC addresses its owner")
{
    lessee_bench bench;
    bench.hardware.state.split = data_split::off;
    auto const error = bench.failure();
    CHECK(error.code() == errno_code(EINVAL));
    CHECK(error.why().operation == "bind-rx");
    CHECK(error.why().kernel_message == "tcp-data-split is disabled");
    CHECK_THAT(error.why().advice,
               ContainsSubstring("in its network namespace: ethtool -G NIC tcp-data-split on hds-thresh 0"));
}

TEST_CASE("a memory that is too small is refused before anything is bound")
{
    lessee_bench bench;
    bench.options.check_ring = [](nic_ring const& ring) {
        CHECK_FALSE(ring.frames);
        fail(gpurx::make_error_code(gpurx::errc::memory_too_small), "share out", "memory");
    };
    CHECK(bench.failure().code() == gpurx::errc::memory_too_small);
    CHECK(bench.hardware.changes.empty());
}

TEST_CASE("pages of another size are asked for, and the system's own are not")
{
    lessee_bench bench;
    auto const system_page = static_cast<std::uint32_t>(sys::page_size());
    bench.options.rx_page_size = 4 * system_page;
    CHECK(bench.open()->page_size() == 4 * system_page);
    CHECK(bench.hardware.asked_page_size == 4 * system_page);
    bench.options.rx_page_size = system_page;
    CHECK(bench.open()->page_size() == system_page);
    CHECK(bench.hardware.asked_page_size == 0);
}
