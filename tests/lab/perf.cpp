// SPDX-License-Identifier: Apache-2.0
//
// gpurx-perf over the lab's wire.
#include <catch2/catch_test_macros.hpp>
#include <thread>
#include <vector>

#include "bed.hpp"
#include "client.hpp"
#include "peer.hpp"
#include "server.hpp"

namespace gpurx::lab {

TEST_CASE("gpurx-perf compares transports and ways to receive, each byte checked", "[smoke][perf]")
{
    perf::setting const reads{.name = "reads", .session = {.interface = "dms0", .transport = transport::devmem}};
    auto loans = reads;
    loans.name = "loans";
    loans.loans = true;
    auto copies = reads;
    copies.name = "copies";
    copies.session.transport = transport::copy;
    perf::server_options const server{.settings = {reads, loans, copies}, .rounds = 3, .verify = true};

    std::vector<perf::round_result> rounds;
    std::thread client{[&rounds] {
        enter_peer_namespace();
        perf::client_options const wanted{.host = near_address(family::v4).to_string(),
                                          .port = "5210",
                                          .flows = 4,
                                          .message_size = 64 << 10,
                                          .warm_up = std::chrono::milliseconds{200},
                                          .measured = std::chrono::milliseconds{1000},
                                          .rounds = 3,
                                          .json = {}};
        send(wanted, [&rounds](perf::round_result const& one) { rounds.push_back(one); });
    }};
    auto const status = serve(server);
    client.join();
    CHECK(status == perf::measured);
    REQUIRE(rounds.size() == 3);
    for (std::size_t number = 0; number < 3; ++number) {
        auto const& [hello, received, latency] = rounds[number];
        CAPTURE(hello.setting);
        CHECK(hello.setting == server.settings[number].name);
        CHECK(hello.transport == to_string(server.settings[number].session.transport));
        CHECK(received.bytes > 0);
        CHECK(received.verified >= received.bytes);
        CHECK(received.wrong_words == 0);
        CHECK(latency.count() > 0);
        WARN(hello.setting << ": " << received.bytes << " bytes, p50 "
                           << std::chrono::duration_cast<std::chrono::microseconds>(latency.percentile(50)).count()
                           << " us");
    }
}

}  // namespace gpurx::lab
