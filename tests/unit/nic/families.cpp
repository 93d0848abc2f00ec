// SPDX-License-Identifier: Apache-2.0
//
// The messages of the genetlink families, as literal bytes of a little-endian machine.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "bytes.hpp"
#include "nic/families.hpp"
#include "nic/netlink.hpp"

using namespace gpurx::detail;
using netlink::attributes;
using netlink::bytes_view;
using test::bytes;

namespace {

constexpr std::uint16_t family = 0x1f;

// A request's attributes, its command and its flags beyond NLM_F_REQUEST.
bool is_request(netlink::request const& made, int command, int version, int flags, bytes const& attrs)
{
    bytes const head{static_cast<int>(20 + attrs.size()),
                     0,
                     0,
                     0,
                     family,
                     0,
                     (1 | flags) & 0xff,
                     (1 | flags) >> 8,
                     0,
                     0,
                     0,
                     0,
                     0,
                     0,
                     0,
                     0,
                     command,
                     version,
                     0,
                     0};
    bytes const expected = head + attrs;
    auto const all = made.bytes();
    return std::equal(all.begin(), all.end(), expected.begin(), expected.end());
}
constexpr int ack = 4;
constexpr int dump = 0x300;

}  // namespace

TEST_CASE("a family is asked for by name")
{
    auto const made = netlink::family_request("netdev");
    bytes const expected =
        bytes{32, 0, 0, 0, 0x10, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 2, 0, 0} + bytes{11, 0, 2, 0} + bytes{"netdev", 2};
    CHECK(std::equal(made.bytes().begin(), made.bytes().end(), expected.begin(), expected.end()));
}

TEST_CASE("a family is its number and its groups")
{
    bytes const answer = bytes{6, 0, 1, 0, 0x1f, 0, 0, 0}                                                      //
                         + bytes{52, 0, 7, 0x80}                                                               //
                         + bytes{28, 0, 1, 0x80, 8, 0, 2, 0, 9, 0, 0, 0, 14, 0, 1, 0} + bytes{"page-pool", 3}  //
                         + bytes{20, 0, 2, 0x80, 8, 0, 2, 0, 10, 0, 0, 0, 8, 0, 1, 0} + bytes{"mgm", 1};
    netlink::family expected{0x1f, {}};
    expected.groups.emplace("page-pool", 9);
    expected.groups.emplace("mgm", 10);
    CHECK(netlink::read_family(attributes{answer}) == expected);
    CHECK_FALSE(netlink::read_family(attributes{bytes_view{answer}.subspan(8)}));
}

TEST_CASE("a policy is the attributes of the request's own table")
{
    netlink::policy found;
    CHECK(found.accepted().empty());
    // bind-rx (13): its request has table 1, its dump table 0
    bytes const tables = bytes{24, 0, 9, 0x80, 20, 0, 13, 0x80, 8, 0, 1, 0, 1, 0, 0, 0, 8, 0, 2, 0, 0, 0, 0, 0};
    found.add(attributes{tables});
    bytes const ifindex{16, 0, 8, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0x80, 4, 0, 1, 0};
    bytes const page_size{16, 0, 8, 0x80, 12, 0, 1, 0x80, 8, 0, 5, 0x80, 4, 0, 1, 0};
    bytes const nested_id{16, 0, 8, 0x80, 12, 0, 0, 0x80, 8, 0, 7, 0x80, 4, 0, 1, 0};
    for (auto const* answer : {&ifindex, &page_size, &nested_id})
        found.add(attributes{*answer});
    CHECK(found.accepted() == netlink::attribute_rules{{1, {}}, {5, {}}});
}

namespace {

// bind-rx (13): its request has table 1.
bytes const bind_rx_tables{16, 0, 9, 0x80, 12, 0, 13, 0x80, 8, 0, 1, 0, 1, 0, 0, 0};
bytes const type_u32{8, 0, 1, 0, 4, 0, 0, 0};
bytes const at_least_0{12, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0};
bytes const at_most_1{12, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0};

// The answer that tells the rule of one attribute in one table.
bytes answer_on(int table, int attribute, bytes const& rule)
{
    auto const size = static_cast<int>(rule.size());
    return bytes{size + 12, 0, 8, 0x80, size + 8, 0, table, 0x80, size + 4, 0, attribute, 0x80} + rule;
}

netlink::attribute_rules rules_of(std::initializer_list<bytes> answers)
{
    netlink::policy found;
    for (auto const& answer : answers)
        found.add(attributes{answer});
    return found.accepted();
}

}  // namespace

TEST_CASE("a kernel has array tokens if bind-rx takes autorelease, a u32 of at most 1")
{
    auto const rule = type_u32 + at_least_0 + at_most_1;
    auto const knows = [](std::initializer_list<bytes> answers) { return netdev::has_array_tokens(rules_of(answers)); };
    CHECK(knows({bind_rx_tables, answer_on(1, 5, type_u32), answer_on(1, 9, rule)}));
    CHECK(rules_of({bind_rx_tables, answer_on(1, 9, rule)}) == netlink::attribute_rules{{9, {4, 1}}});

    CHECK_FALSE(knows({}));
    CHECK_FALSE(knows({bind_rx_tables, answer_on(1, 5, rule)}));
    // The same number in the table of what is nested in the request, and where the table of the request is not told.
    CHECK_FALSE(knows({bind_rx_tables, answer_on(0, 9, rule)}));
    CHECK_FALSE(knows({answer_on(1, 9, rule)}));
    // The same number for something else.
    CHECK_FALSE(knows({bind_rx_tables, answer_on(1, 9, type_u32)}));
    CHECK_FALSE(knows({bind_rx_tables, answer_on(1, 9, at_most_1)}));
    CHECK_FALSE(knows({bind_rx_tables, answer_on(1, 9, bytes{8, 0, 1, 0, 2, 0, 0, 0} + at_most_1)}));
    CHECK_FALSE(knows({bind_rx_tables, answer_on(1, 9, type_u32 + bytes{12, 0, 5, 0, 2, 0, 0, 0, 0, 0, 0, 0})}));
    CHECK_FALSE(knows({bind_rx_tables, answer_on(1, 9, type_u32 + bytes{12, 0, 5, 0, 1, 0, 0, 0, 1, 0, 0, 0})}));
}

TEST_CASE("an answer about a policy that is cut off anywhere, or lies about a length, tells of no array tokens")
{
    auto const whole = answer_on(1, 9, type_u32 + at_least_0 + at_most_1);
    for (std::size_t size = 0; size < whole.size(); ++size) {
        CAPTURE(size);
        auto cut = whole;
        cut.resize(size);
        CHECK_FALSE(netdev::has_array_tokens(rules_of({bind_rx_tables, cut})));
    }
    for (std::size_t const length : {0U, 4U, 8U, 12U, 20U, 32U}) {
        for (int const lie : {0, 1, 3, 0xff}) {
            CAPTURE(length, lie);
            auto changed = whole;
            changed[length] = static_cast<std::byte>(lie);
            CHECK_FALSE(netdev::has_array_tokens(rules_of({bind_rx_tables, changed})));
        }
    }
}

TEST_CASE("a policy is asked for by family and command")
{
    auto const made = netlink::policy_request(0x1f, 13);
    bytes const expected = bytes{36, 0, 0, 0, 0x10, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 10, 2, 0, 0} +
                           bytes{6, 0, 1, 0, 0x1f, 0, 0, 0} + bytes{8, 0, 10, 0, 13, 0, 0, 0};
    CHECK(std::equal(made.bytes().begin(), made.bytes().end(), expected.begin(), expected.end()));
}

TEST_CASE("bind-rx names the interface, the memory and each queue")
{
    std::vector<unsigned> const queues{6, 7};
    bytes const attrs = bytes{8, 0, 1, 0, 4, 0, 0, 0, 8, 0, 3, 0, 9, 0, 0, 0}                    //
                        + bytes{20, 0, 2, 0x80, 8, 0, 3, 0, 0, 0, 0, 0, 8, 0, 1, 0, 6, 0, 0, 0}  //
                        + bytes{20, 0, 2, 0x80, 8, 0, 3, 0, 0, 0, 0, 0, 8, 0, 1, 0, 7, 0, 0, 0};
    CHECK(is_request(netdev::bind_rx_request(family, {4, queues, 9, 0}), 13, 1, ack, attrs));
    CHECK(is_request(netdev::bind_rx_request(family, {4, queues, 9, 16384}), 13, 1, ack,
                     attrs + bytes{8, 0, 5, 0, 0, 0x40, 0, 0}));
    CHECK(is_request(netdev::bind_rx_request(family, {4, queues, 9, 0, false}), 13, 1, ack,
                     attrs + bytes{8, 0, 9, 0, 0, 0, 0, 0}));
    CHECK(is_request(netdev::bind_rx_request(family, {4, queues, 9, 16384, true}), 13, 1, ack,
                     attrs + bytes{8, 0, 5, 0, 0, 0x40, 0, 0} + bytes{8, 0, 9, 0, 1, 0, 0, 0}));
}

TEST_CASE("a refused attribute of bind-rx has a name")
{
    std::vector<unsigned> const queues{6, 7};
    auto const made = netdev::bind_rx_request(family, {4, queues, 9, 16384, false});
    auto const name_at = [&made](std::uint32_t offset) {
        netlink::verdict said;
        said.offset = offset;
        return netdev::bind_rx_attribute(made.bytes(), said);
    };
    CHECK(name_at(20) == "ifindex");
    CHECK(name_at(28) == "fd");
    CHECK(name_at(36) == "queues");
    CHECK(name_at(40) == "queues");
    CHECK(name_at(48) == "queues.id");
    CHECK(name_at(76) == "rx-page-size");
    CHECK(name_at(84) == "autorelease");
    CHECK(name_at(21).empty());

    netlink::verdict missing;
    CHECK(netdev::bind_rx_attribute(made.bytes(), missing).empty());
    missing.missing_type = 2;
    CHECK(netdev::bind_rx_attribute(made.bytes(), missing) == "queues");
    missing.missing_in = 36;
    CHECK(netdev::bind_rx_attribute(made.bytes(), missing).empty());
}

TEST_CASE("a binding's id is read")
{
    bytes const answer{8, 0, 4, 0, 12, 0, 0, 0};
    CHECK(netdev::read_binding(attributes{answer}) == 12U);
    CHECK_FALSE(netdev::read_binding({}));
}

TEST_CASE("queues are listed per interface")
{
    bytes const ifindex{8, 0, 2, 0, 4, 0, 0, 0};
    CHECK(is_request(netdev::queues_request(family, 4), 10, 1, dump, ifindex));
}

TEST_CASE("a queue has its memory provider")
{
    bytes const plain = bytes{8, 0, 1, 0, 3, 0, 0, 0, 8, 0, 3, 0, 0, 0, 0, 0, 8, 0, 2, 0, 4, 0, 0, 0};
    netdev::rx_queue expected;
    expected.id = 3;
    CHECK(netdev::read_rx_queue(attributes{plain}) == expected);
    CHECK_FALSE(expected.taken());

    bytes const bound = plain + bytes{8, 0, 4, 0, 20, 0, 0, 0, 8, 0, 5, 0, 12, 0, 0, 0};
    expected.dmabuf = 12;
    CHECK(netdev::read_rx_queue(attributes{bound}) == expected);
    CHECK(expected.taken());

    for (int const use : {6, 7, 8}) {  // io_uring, AF_XDP, lease
        bytes const used = plain + bytes{4, 0, use, 0x80};
        CHECK(netdev::read_rx_queue(attributes{used})->taken());
    }
    bytes const transmit = bytes{8, 0, 1, 0, 3, 0, 0, 0, 8, 0, 3, 0, 1, 0, 0, 0};
    CHECK_FALSE(netdev::read_rx_queue(attributes{transmit}));
    CHECK_FALSE(netdev::read_rx_queue({}));
}

TEST_CASE("a page pool has its binding and the number of its pages in use")
{
    CHECK(is_request(netdev::page_pools_request(family), 5, 1, dump, {}));
    bytes const small = bytes{8, 0, 2, 0, 4, 0, 0, 0, 8, 0, 4, 0, 0, 1, 0, 0, 8, 0, 7, 0, 12, 0, 0, 0};
    CHECK(netdev::read_page_pool(attributes{small}) == netdev::page_pool{.ifindex = 4, .dmabuf = 12, .inflight = 256});
    // Those of io_uring have no id of their memory.
    bytes const ring = bytes{8, 0, 1, 0, 9, 0, 0, 0, 8, 0, 2, 0, 4, 0, 0, 0, 4, 0, 8, 0x80};
    CHECK(netdev::read_page_pool(attributes{ring}) == netdev::page_pool{.id = 9, .ifindex = 4, .io_uring = true});
    // A count of 8 bytes, and a pool without device that waits for its last pages.
    bytes const left = bytes{12, 0, 4, 0, 1, 0, 0, 0, 1, 0, 0, 0, 8, 0, 6, 0, 5, 0, 0, 0};
    CHECK(netdev::read_page_pool(attributes{left}) == netdev::page_pool{.inflight = 0x100000001, .detached = true});
}

TEST_CASE("losses are read per RX queue, as far as the driver counts them")
{
    bytes const asked{8, 0, 1, 0, 4, 0, 0, 0, 8, 0, 4, 0, 1, 0, 0, 0};
    CHECK(is_request(netdev::queue_stats_request(family, 4), 12, 1, dump, asked));
    bytes const counted = bytes{8, 0, 3, 0, 3, 0, 0, 0, 8, 0, 2, 0, 0, 0, 0, 0, 8, 0, 12, 0, 7, 0, 0, 0};
    CHECK(netdev::read_rx_losses(attributes{counted}) == netdev::rx_losses{3, 7, {}, {}});
    bytes const all = counted + bytes{8, 0, 13, 0, 9, 0, 0, 0, 8, 0, 14, 0, 5, 0, 0, 0};
    CHECK(netdev::read_rx_losses(attributes{all}) == netdev::rx_losses{3, 7, 5, 9});
    bytes const transmit = bytes{8, 0, 3, 0, 3, 0, 0, 0, 8, 0, 2, 0, 1, 0, 0, 0, 8, 0, 12, 0, 7, 0, 0, 0};
    CHECK_FALSE(netdev::read_rx_losses(attributes{transmit}));
    bytes const uncounted = bytes{8, 0, 3, 0, 3, 0, 0, 0, 8, 0, 2, 0, 0, 0, 0, 0};
    CHECK(netdev::read_rx_losses(attributes{uncounted}) == netdev::rx_losses{3, {}, {}, {}});
}

namespace {

bytes const device4{12, 0, 1, 0x80, 8, 0, 1, 0, 4, 0, 0, 0};

}  // namespace

TEST_CASE("ring settings are asked for and set one by one")
{
    CHECK(is_request(ethtool::rings_request(family, 4), 15, 1, ack, device4));
    CHECK(is_request(ethtool::set_data_split_request(family, 4, ethtool::data_split::on), 16, 1, ack,
                     device4 + bytes{5, 0, 11, 0, 2, 0, 0, 0}));
    CHECK(is_request(ethtool::set_data_split_request(family, 4, ethtool::data_split::automatic), 16, 1, ack,
                     device4 + bytes{5, 0, 11, 0, 0, 0, 0, 0}));
    CHECK(is_request(ethtool::set_hds_threshold_request(family, 4, 1536), 16, 1, ack,
                     device4 + bytes{8, 0, 17, 0, 0, 6, 0, 0}));
}

TEST_CASE("ring settings that a driver lacks are absent")
{
    using ethtool::data_split;
    bytes const all = bytes{5, 0, 11, 0, 1, 0, 0, 0, 8, 0, 17, 0, 0, 1, 0, 0};
    CHECK(ethtool::read_rings(attributes{all}) == ethtool::rings{data_split::off, 256});
    bytes const sized = all + bytes{8, 0, 2, 0, 0, 16, 0, 0, 8, 0, 6, 0, 0, 4, 0, 0};
    CHECK(ethtool::read_rings(attributes{sized}) == ethtool::rings{data_split::off, 256, 1024});
    bytes const on{5, 0, 11, 0, 2, 0, 0, 0};
    CHECK(ethtool::read_rings(attributes{on}) == ethtool::rings{data_split::on, std::nullopt});
    bytes const unheard_of{5, 0, 11, 0, 9, 0, 0, 0};
    CHECK(ethtool::read_rings(attributes{unheard_of}).split == data_split::automatic);
    CHECK(ethtool::read_rings({}) == ethtool::rings{});
}

TEST_CASE("a notification of changed rings is told from others")
{
    CHECK(ethtool::is_rings_change({17, attributes{device4}}, 4));
    CHECK_FALSE(ethtool::is_rings_change({17, attributes{device4}}, 5));
    CHECK_FALSE(ethtool::is_rings_change({16, attributes{device4}}, 4));
    CHECK_FALSE(ethtool::is_rings_change({17, {}}, 4));
}

TEST_CASE("channels are read with their maxima and set without")
{
    bytes const answer = bytes{8, 0, 5, 0, 8, 0, 0, 0, 8, 0, 9, 0, 2, 0, 0, 0};
    ethtool::channels const combined{0, 0, 2, 0, 0, 8};
    CHECK(ethtool::read_channels(attributes{answer}) == combined);
    CHECK(combined.rx_queues() == 2);
    CHECK(is_request(ethtool::set_channels_request(family, 4, combined), 18, 1, ack,
                     device4 + bytes{8, 0, 9, 0, 2, 0, 0, 0}));

    bytes const separate_answer = bytes{8, 0, 2, 0, 8, 0, 0, 0, 8, 0, 3, 0, 9, 0, 0, 0,  //
                                        8, 0, 6, 0, 3, 0, 0, 0, 8, 0, 7, 0, 4, 0, 0, 0};
    ethtool::channels const separate{3, 4, 0, 8, 9, 0};
    CHECK(ethtool::read_channels(attributes{separate_answer}) == separate);
    CHECK(is_request(ethtool::set_channels_request(family, 4, separate), 18, 1, ack,
                     device4 + bytes{8, 0, 6, 0, 3, 0, 0, 0, 8, 0, 7, 0, 4, 0, 0, 0}));
}

TEST_CASE("features are named bits")
{
    using ethtool::feature;
    bytes const name = bytes{21, 0, 2, 0} + bytes{"rx-ntuple-filter", 4};
    bytes const header = bytes{20, 0, 1, 0x80, 8, 0, 1, 0, 4, 0, 0, 0, 8, 0, 3, 0, 2, 0, 0, 0};
    CHECK(is_request(ethtool::set_feature_request(family, 4, feature::ntuple_filters, true), 12, 1, ack,
                     header + bytes{40, 0, 3, 0x80, 36, 0, 3, 0x80, 32, 0, 1, 0x80} + name + bytes{4, 0, 3, 0}));
    CHECK(is_request(ethtool::set_feature_request(family, 4, feature::ntuple_filters, false), 12, 1, ack,
                     header + bytes{36, 0, 3, 0x80, 32, 0, 3, 0x80, 28, 0, 1, 0x80} + name));
    bytes const gro = bytes{14, 0, 2, 0} + bytes{"rx-gro-hw", 3};
    CHECK(is_request(ethtool::set_feature_request(family, 4, feature::hardware_gro, false), 12, 1, ack,
                     header + bytes{28, 0, 3, 0x80, 24, 0, 3, 0x80, 20, 0, 1, 0x80} + gro));

    // Active: checksums and filters. Changeable: GRO in hardware.
    bytes const other = bytes{20, 0, 1, 0x80, 16, 0, 2, 0} + bytes{"rx-checksum", 1};
    bytes const active = bytes{56, 0, 4, 0x80, 52, 0, 3, 0x80} + other + bytes{28, 0, 1, 0x80} + name;
    bytes const changeable = bytes{28, 0, 2, 0x80, 24, 0, 3, 0x80} + bytes{20, 0, 1, 0x80} + gro;
    bytes const answer = changeable + active;
    CHECK(ethtool::read_feature(attributes{answer}, feature::ntuple_filters) == ethtool::feature_state{true, false});
    CHECK(ethtool::read_feature(attributes{answer}, feature::hardware_gro) == ethtool::feature_state{false, true});
    bytes const wanted_only = bytes{36, 0, 3, 0x80, 32, 0, 3, 0x80, 28, 0, 1, 0x80} + name;
    CHECK(ethtool::read_feature(attributes{wanted_only}, feature::ntuple_filters) == ethtool::feature_state{});
}

TEST_CASE("RSS contexts are listed without the device's own table")
{
    CHECK(is_request(ethtool::rss_contexts_request(family, 4), 38, 1, dump, device4));
    bytes const table = bytes{20, 0, 4, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0};
    bytes const answer = bytes{8, 0, 2, 0, 5, 0, 0, 0} + table;
    CHECK(ethtool::read_rss_context(attributes{answer}) == ethtool::rss_context{5, {2, 3, 2, 3}});
    CHECK_FALSE(ethtool::read_rss_context(attributes{table}));
    bytes const odd = bytes{8, 0, 2, 0, 5, 0, 0, 0, 11, 0, 4, 0, 2, 0, 0, 0, 3, 0, 0, 0};
    CHECK(ethtool::read_rss_context(attributes{odd})->table == std::vector<std::uint32_t>{2});
}
