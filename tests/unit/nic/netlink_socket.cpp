// SPDX-License-Identifier: Apache-2.0
//
// Against the kernel that runs the tests: only what every kernel has and every user may ask.
#include "nic/netlink.hpp"

#include <fcntl.h>
#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <set>

#include "nic/uapi.hpp"

using namespace gpurx::detail;

TEST_CASE("the kernel tells a family's number", "[native]")
{
    netlink::socket via;
    std::optional<netlink::family> found;
    auto request = netlink::family_request("nlctrl");
    auto const said = via.exchange(
        request, [&found](netlink::generic_message const& answer) { found = netlink::read_family(answer.attrs); });
    CHECK(said == netlink::verdict{});
    REQUIRE(found);
    CHECK(found->id == uapi::nlctrl::family_id);
    CHECK(found->groups.contains("notify"));
}

TEST_CASE("the kernel's refusal is a verdict", "[native]")
{
    netlink::socket via;
    auto request = netlink::family_request("no-such-family");
    CHECK(via.exchange(request, {}).error == ENOENT);
    // An attribute of the wrong size: the kernel says which.
    netlink::request odd{uapi::nlctrl::family_id, uapi::nlctrl::cmd_getfamily, uapi::nlctrl::version, NLM_F_ACK};
    odd.put(uapi::nlctrl::attr_family_name, std::string_view{"a name that is longer than any family's"});
    auto const said = via.exchange(odd, {});
    CHECK(said.error != 0);
    CHECK_FALSE(said.text.empty());
    REQUIRE(said.offset);
    CHECK(netlink::path_at(odd.bytes(), *said.offset) == std::vector<std::uint16_t>{uapi::nlctrl::attr_family_name});
}

TEST_CASE("a dump is read to its end, and the socket serves the next request", "[native]")
{
    netlink::socket via;
    for (int round = 0; round < 3; ++round) {
        std::set<std::uint16_t> families;
        netlink::request all{uapi::nlctrl::family_id, uapi::nlctrl::cmd_getfamily, uapi::nlctrl::version, NLM_F_DUMP};
        auto const said = via.exchange(
            all,
            [&families](netlink::generic_message const& answer) {
                if (auto const found = netlink::read_family(answer.attrs))
                    families.insert(found->id);
            },
            [&families] { families.clear(); });
        CHECK(said.error == 0);
        CHECK(families.contains(uapi::nlctrl::family_id));
    }
}

TEST_CASE("a policy is known by the attributes that the kernel lists", "[native]")
{
    netlink::socket via;
    netlink::policy found;
    auto request = netlink::policy_request(uapi::nlctrl::family_id, uapi::nlctrl::cmd_getfamily);
    auto const said =
        via.exchange(request, [&found](netlink::generic_message const& answer) { found.add(answer.attrs); });
    CHECK(said.error == 0);
    CHECK(found.accepted().contains(uapi::nlctrl::attr_family_name));
}

TEST_CASE("no notification is no wait", "[native]")
{
    netlink::socket via;
    int count = 0;
    via.take_notifications([&count](netlink::generic_message const&) { ++count; });
    CHECK(count == 0);
}

TEST_CASE("an answer of another socket's request is not taken for ours", "[native]")
{
    netlink::socket first;
    netlink::socket second;
    auto one = netlink::family_request("nlctrl");
    auto two = netlink::family_request("nlctrl");
    int answers = 0;
    for (int round = 0; round < 10; ++round) {
        CHECK(first.exchange(one, [&answers](netlink::generic_message const&) { ++answers; }).error == 0);
        CHECK(second.exchange(two, [&answers](netlink::generic_message const&) { ++answers; }).error == 0);
    }
    CHECK(answers == 20);
}
