// SPDX-License-Identifier: Apache-2.0
#include "parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <string_view>
#include <utility>

#include "nic.hpp"

namespace gpurx::lab {

using namespace std::chrono_literals;

rx_session open_parts(std::vector<device_memory> memories, unsigned max_flows)
{
    rx_session_options options{.interface = near_interface,
                               .transport = transport::devmem,
                               .max_flows = max_flows,
                               .notice = [](std::string_view said) { fmt::print(stderr, "note: {}\n", said); }};
    return {std::move(options), std::move(memories)};
}

std::size_t rules_of_flows(std::uint16_t port)
{
    detail::kernel_nic nic{near_interface};
    auto const rules = nic.rules();
    return static_cast<std::size_t>(std::ranges::count_if(rules, [&](auto const& found) {
        return found.rule && found.rule->match.local_port == port && found.rule->match.remote;
    }));
}

bool run_until(boost::asio::io_context& context, std::function<bool()> const& ready)
{
    auto const deadline = std::chrono::steady_clock::now() + 300s;  // a machine may be slow
    while (!ready()) {
        if (std::chrono::steady_clock::now() > deadline)
            return false;
        context.restart();
        context.run_for(20ms);
    }
    return true;
}

void check_empty(rx_session const& part)
{
    auto const pool = part.pool_stats();
    REQUIRE(pool);
    CHECK(pool->free + pool->in_ring + pool->in_queues + pool->on_loan + pool->parked + pool->in_reads == pool->pages);
    CHECK(pool->on_loan + pool->parked + pool->in_reads == 0);
    CHECK(pool->in_sockets == 0);
    CHECK(pool->flows.empty());
    auto const stats = part.stats();
    CHECK(stats.tokens_out == 0);
    CHECK(stats.tokens_high_water > 0);
    CHECK(stats.release_shortfalls == 0);
    CHECK(stats.release_failures == 0);
}

}  // namespace gpurx::lab
