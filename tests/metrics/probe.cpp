// SPDX-License-Identifier: Apache-2.0
//
// Prints metrics, every family that there is, for promtool to check:  metrics_probe library|gpurxd
// Or writes those of a session to a file, as a user's program does:   metrics_probe FILE
#include <array>
#include <cstdio>
#include <gpurx/memory.hpp>
#include <gpurx/metrics.hpp>
#include <gpurx/session.hpp>
#include <string_view>
#include <vector>

#include "metrics.hpp"
#include "session/metrics_text.hpp"

namespace {

namespace detail = gpurx::detail;
namespace gpurxd = gpurx::gpurxd;

std::string library()
{
    std::vector<detail::session_sample> samples(2);
    samples[0] = {.name = R"(loader "one"\)",
                  .interface = "eth0",
                  .transport = "devmem",
                  .tokens = "array",
                  .obstacle = "none",
                  .zcrx_obstacle = "not_allowed",
                  .counted = {}};
    gpurx::pool_stats pool;
    pool.dry_time = std::chrono::milliseconds{1500};
    pool.ring_demand = 1;
    pool.allocation_failures = 2;
    pool.overruns = 3;
    pool.drops = 4;
    samples[0].pool = pool;
    samples[1] = {.name = "two",
                  .interface = "eth0",
                  .transport = "copy",
                  .tokens = "none",
                  .obstacle = "no_rights",
                  .zcrx_obstacle = "not_allowed",
                  .counted = {}};
    return detail::format_metrics(GPURX_VERSION, samples);
}

std::string daemon_page()
{
    gpurxd::daemon_metrics counted;
    counted.connections = 5;
    counted.clients.resize(2);
    counted.clients[0].interface = "eth0";
    counted.clients[0].queues = {6, 7};
    counted.clients[1].interface = "a\"b\\c";
    std::vector<gpurxd::interface_metrics> const seen{
        {.interface = "eth0", .pages_in_flight = 1, .losses = {{6, 1, 2, 3}, {7, 4, 5, 6}}}};
    return gpurxd::metrics_page(GPURX_VERSION, counted, seen);
}

void write(std::string_view file)
{
    gpurx::rx_session const one{{.transport = gpurx::transport::copy}, gpurx::device_memory::on_host(2 << 20)};
    std::array const sessions{gpurx::named_session{"one", one}};
    gpurx::write_metrics(file, sessions);
}

}  // namespace

int main(int argc, char** argv)
{
    if (argc != 2)
        return 2;
    std::string_view const which = argv[1];
    if (which != "library" && which != "gpurxd") {
        write(which);
        return 0;
    }
    auto const text = which == "library" ? library() : daemon_page();
    return std::fputs(text.c_str(), stdout) >= 0 ? 0 : 1;
}
