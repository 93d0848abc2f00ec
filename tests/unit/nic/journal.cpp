// SPDX-License-Identifier: Apache-2.0
#include "lease/journal.hpp"

#include <boost/asio/ip/address.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <string>

using namespace gpurx::detail;
using boost::asio::ip::make_address;
using boost::asio::ip::tcp;

namespace {

std::string const small =
    "gpurx-journal 1\n"
    "boot 0f-1\n"
    "device dms0 4 1\n"
    "end\n";

std::string const full =
    "gpurx-journal 1\n"
    "boot 5b2e-77\n"
    "device dms0 4 18446744073709551615\n"
    "change tcp-data-split 0 -> 2\n"
    "change hds-thresh 256 -> 0\n"
    "change ntuple-filters 0 -> 1\n"
    "change channels 0 0 2 -> 0 0 4\n"
    "change rss-table 0 1 0 1 -> 0 1 0 0\n"
    "owner 1234 567890 4026531836 1\n"
    "binding 77\n"
    "queues 2 3\n"
    "rule 1023 tcp4 10.77.0.1 5000 10.77.0.2 4000 queue 3\n"
    "rule pending tcp6 * 5000 * * context 1\n"
    "context 1 2 3\n"
    "context pending 3\n"
    "owner 1234 567890 4026531836 2\n"
    "binding pending\n"
    "owner 1234 567890 4026531836 3\n"
    "rule 7 tcp6 fd77::1 65535 fd77::2 1 queue 0\n"
    "owner 1234 567890 4026531836 4\n"
    "binding io_uring\n"
    "queues 1\n"
    "end\n";

journal parsed(std::string const& text)
{
    auto const result = parse_journal(text);
    if (auto const* const found = std::get_if<journal_damage>(&result))
        FAIL("line " << found->line << ": " << found->what);
    return std::get<journal>(result);
}

// `full` with the first `old` replaced.
std::string with(std::string const& old, std::string const& fresh)
{
    std::string text = full;
    auto const at = text.find(old);
    REQUIRE(at != std::string::npos);
    return text.replace(at, old.size(), fresh);
}

unsigned damaged_line(std::string const& text)
{
    auto const result = parse_journal(text);
    REQUIRE(std::holds_alternative<journal_damage>(result));
    CHECK_FALSE(std::get<journal_damage>(result).what.empty());
    return std::get<journal_damage>(result).line;
}

}  // namespace

TEST_CASE("every setting is written and read by its name")
{
    journal log;
    log.device = {"5b2e-77", "dms0", 4, 7};
    for (auto const what : {setting::hardware_gro, setting::data_split, setting::hds_threshold, setting::ntuple_filters,
                            setting::rx_ring, setting::link})
        log.record({what, {0}, {1}});
    log.record({setting::channels, {0, 0, 2}, {0, 0, 3}});
    log.record({setting::rss_table, {0, 1}, {0, 0}});
    CHECK(parsed(serialise(log)) == log);
}

TEST_CASE("a journal reads as what was written")
{
    auto const read = parsed(full);
    CHECK(read.device == device_key{"5b2e-77", "dms0", 4, 18446744073709551615U});
    REQUIRE(read.changes.size() == 5);
    CHECK(read.changes[3] == setting_change{setting::channels, {0, 0, 2}, {0, 0, 4}});
    CHECK(read.changes[4] == setting_change{setting::rss_table, {0, 1, 0, 1}, {0, 1, 0, 0}});
    REQUIRE(read.owners.size() == 4);
    auto const& first = read.owners[0];
    CHECK(first.key == owner_key{1234, 567890, 4026531836, 1});
    CHECK(first.queues == std::vector<unsigned>{2, 3});
    REQUIRE(first.rules.size() == 2);
    flow_match connection;
    connection.local = make_address("10.77.0.1");
    connection.local_port = 5000;
    connection.remote = tcp::endpoint{make_address("10.77.0.2"), 4000};
    CHECK(first.rules[0] == journal_rule{1023, {connection, rule_target::queue, 3}});
    flow_match port;
    port.v6 = true;
    port.local_port = 5000;
    CHECK(first.rules[1] == journal_rule{std::nullopt, {port, rule_target::context, 1}});
    CHECK(first.contexts == std::vector<journal_context>{{1, {2, 3}}, {std::nullopt, {3}}});
    CHECK(read.owners[1].queues.empty());
    CHECK(first.binding == journal_binding{77});
    CHECK(read.owners[1].binding == journal_binding{std::nullopt});
    CHECK(read.owners[2].binding == std::nullopt);
    CHECK(read.owners[3].binding == journal_binding{.id = std::nullopt, .io_uring = true});
    CHECK(read.leased_queues() == std::set<unsigned>{1, 2, 3});
}

TEST_CASE("a journal writes as what was read")
{
    auto const text = GENERATE_COPY(small, full);
    CHECK(serialise(parsed(text)) == text);
}

TEST_CASE("lines added to a journal update its rules")
{
    auto const added =
        "at 1 pending tcp4 10.77.0.1 6000 10.77.0.2 7000 queue 2\n"
        "at 0 12 tcp6 * 5000 * * context 1\n"
        "at 1 5 tcp4 10.77.0.1 6000 10.77.0.2 7000 queue 2\n"
        "at 0 pending tcp4 10.77.0.1 5000 10.77.0.2 4000 queue 3\n"
        "at 0 gone tcp4 10.77.0.1 5000 10.77.0.2 4000 queue 3\n";
    auto const read = parsed(full + added);
    auto plain = parsed(full);
    plain.owners[0].rules.erase(plain.owners[0].rules.begin());
    plain.owners[0].rules[0].id = 12;
    CHECK(read.owners[0] == plain.owners[0]);
    REQUIRE(read.owners[1].rules.size() == 1);
    CHECK(read.owners[1].rules[0].id == 5U);
    CHECK(read.owners[1].rules[0].rule.match.local_port == 6000);
    CHECK(read.owners[2] == plain.owners[2]);
    CHECK(parsed(serialise(read)) == read);

    journal_record const record{1, read.owners[1].rules[0], false};
    CHECK(serialise(record) == "at 1 5 tcp4 10.77.0.1 6000 10.77.0.2 7000 queue 2\n");
    CHECK(serialise(journal_record{2, {}, true}) == "at 2 gone tcp4 * 0 * * queue 0\n");
}

TEST_CASE("a line that was being added when its writer was killed was not written yet")
{
    std::string const first = "at 1 5 tcp4 10.77.0.1 6000 10.77.0.2 7000 queue 2\n";
    std::string const second = "at 1 gone tcp4 10.77.0.1 6000 10.77.0.2 7000 queue 2\n";
    for (std::size_t length = 0; length < second.size(); ++length)
        CHECK(parsed(full + first + second.substr(0, length)) == parsed(full + first));
    CHECK(parsed(full + first + second) == parsed(full));
}

TEST_CASE("damage in an added line is found in that line")
{
    auto const damaged =
        GENERATE("at 4 5 tcp4 * 1 * * queue 2\n", "at 0 gone tcp4 * 1 * * queue 2\n", "at 0 tcp4 * 1 * * queue 2\n",
                 "at 0 5 tcp4 * 1 * * queue\n", "at 0 5 tcp4 * 1 * * queue 2 \n", "at 00 5 tcp4 * 1 * * queue 2\n",
                 "rule 5 tcp4 * 1 * * queue 2\n", "\n", "at");
    std::string const text{damaged};
    if (text == "at")  // cut off, but not the last
        CHECK(damaged_line(full + text + "\nat 0 5 tcp4 * 1 * * queue 2\n") == 24);
    else
        CHECK(damaged_line(full + text) == 24);
}

TEST_CASE("which device a damaged journal speaks of can be read")
{
    CHECK(parse_device(small.substr(0, small.size() - 4)) == device_key{"0f-1", "dms0", 4, 1});
    CHECK(parse_device(full.substr(0, 120) + std::string(100, '\0'))->boot_id == "5b2e-77");
    CHECK(parse_device(small.substr(0, 20)) == std::nullopt);
    CHECK(parse_device("") == std::nullopt);
}

TEST_CASE("an empty journal has no owner and no change")
{
    CHECK(parsed(small).empty());
    CHECK_FALSE(parsed(full).empty());
}

TEST_CASE("a journal that stops anywhere before its end is damaged")
{
    for (std::size_t length = 0; length < full.size(); ++length)
        CHECK(std::holds_alternative<journal_damage>(parse_journal(std::string_view{full}.substr(0, length))));
}

TEST_CASE("damage is found in its line")
{
    CHECK(damaged_line("") == 1);
    CHECK(damaged_line("gpurx-journal 2\n") == 1);
    CHECK(damaged_line("\x7f"
                       "ELF") == 1);
    CHECK(damaged_line("gpurx-journal 1 \n") == 1);
    CHECK(damaged_line(with("boot ", "boto ")) == 2);
    CHECK(damaged_line(with("dms0 4", "dms0 4294967296")) == 3);
    CHECK(damaged_line(with("dms0 4", "dms0 -4")) == 3);
    CHECK(damaged_line(with("dms0 4", "dms0  4")) == 3);
    CHECK(damaged_line(with("tcp-data-split", "tcp-data")) == 4);
    CHECK(damaged_line(with("0 -> 2", "0 2")) == 4);
    CHECK(damaged_line(with("0 -> 2", "0 ->")) == 4);
    CHECK(damaged_line(with("0 -> 2", "-> 2")) == 4);
    CHECK(damaged_line(with("0 -> 2", "0 1 -> 2")) == 4);
    CHECK(damaged_line(with("0 -> 2", "00 -> 2")) == 4);
    CHECK(damaged_line(with("0 -> 2", "0 -> 2 ")) == 4);
    CHECK(damaged_line(with("0 0 4", "0 4")) == 7);
    CHECK(damaged_line(with("owner 1234", "owner -1234")) == 9);
    CHECK(damaged_line(with("owner 1234", "owner 99999999999")) == 9);
    CHECK(damaged_line(with("4026531836 1", "4026531836")) == 9);
    CHECK(damaged_line(with("queues 2 3", "queues")) == 11);
    CHECK(damaged_line(with("queues 2 3", "queues 2 2")) == 11);
    CHECK(damaged_line(with("tcp4", "udp4")) == 12);
    CHECK(damaged_line(with("10.77.0.1", "10.77.0.256")) == 12);
    CHECK(damaged_line(with("10.77.0.1", "10.77.0.01")) == 12);
    CHECK(damaged_line(with("10.77.0.1", "fd77::1")) == 12);
    CHECK(damaged_line(with("5000 10.77", "65536 10.77")) == 12);
    CHECK(damaged_line(with("queue 3", "queue")) == 12);
    CHECK(damaged_line(with("queue 3", "qeue 3")) == 12);
    CHECK(damaged_line(with("* * context", "* 1 context")) == 13);
    CHECK(damaged_line(with("context 1 2 3", "context 1")) == 14);
    CHECK(damaged_line(with("4026531836 2", "4026531836 1")) == 16);
    CHECK(damaged_line(with("binding 77", "binding")) == 10);
    CHECK(damaged_line(with("binding 77", "binding none")) == 10);
    CHECK(damaged_line(with("fd77::1", "fd77:0:0::1")) == 19);
    CHECK(damaged_line(with("fd77::1", "fe80::1%2")) == 19);
    CHECK(damaged_line(full + "end\n") == 24);
    CHECK(damaged_line(full + "x") == 24);
}

TEST_CASE("lines out of order are damage")
{
    CHECK(damaged_line(with("change tcp-data-split 0 -> 2\nchange hds-thresh 256 -> 0\n",
                            "change hds-thresh 256 -> 0\nchange tcp-data-split 0 -> 2\n")) == 5);
    CHECK(damaged_line(with("change hds-thresh 256 -> 0\n", "change tcp-data-split 0 -> 2\n")) == 5);
    CHECK(damaged_line(with("end\n", "change hds-thresh 256 -> 0\nend\n")) == 23);
    CHECK(damaged_line(with("owner 1234 567890 4026531836 1\n", "")) == 9);
    CHECK(damaged_line(with("rule 7", "context 2 1\nrule 7")) == 20);
    CHECK(damaged_line(with("rule 7", "queues 2\nrule 7")) == 19);
    CHECK(damaged_line(with("binding 77\nqueues 2 3\n", "queues 2 3\nbinding 77\n")) == 11);
    CHECK(damaged_line(with("binding 77\n", "binding 77\nbinding 78\n")) == 11);
    CHECK(damaged_line(with("owner 1234 567890 4026531836 1\n", "binding 5\nowner 1234 567890 4026531836 1\n")) == 9);
    CHECK(damaged_line(with("rule 1023", "queues 9\nrule 1023")) == 12);
}

TEST_CASE("more than any NIC can have is damage, and found at once")
{
    std::string table;
    for (int i = 0; i < 20'000; ++i)
        table += "1 ";
    CHECK(damaged_line(with("rss-table 0 1 0 1", "rss-table " + table + "1")) == 8);

    std::string owners;
    for (int i = 0; i < 2000; ++i)
        owners += "owner 1 1 1 " + std::to_string(i) + "\n";
    CHECK(damaged_line(with("owner 1234", owners + "owner 1234")) == 9 + 1024);
}

TEST_CASE("settings are recorded once each, in the order of change")
{
    journal log;
    log.record({setting::rss_table, {0}, {1}});
    log.record({setting::data_split, {0}, {2}});
    log.record({setting::channels, {0, 0, 2}, {0, 0, 3}});
    log.record({setting::channels, {0, 0, 2}, {0, 0, 4}});
    REQUIRE(log.changes.size() == 3);
    CHECK(log.changes[0].what == setting::data_split);
    CHECK(log.changes[1].what == setting::channels);
    CHECK(log.changes[1].ours == setting_value{0, 0, 4});
    CHECK(log.changes[2].what == setting::rss_table);
    log.forget(setting::channels);
    CHECK(log.find(setting::channels) == nullptr);
    CHECK(log.find(setting::rss_table) != nullptr);
}

TEST_CASE("sessions of one process are owners of their own")
{
    journal log;
    owner_key const first{10, 20, 30, 1};
    owner_key const second{10, 20, 30, 2};
    log.owners.push_back({first, {5}, {}, {}});
    log.owners.push_back({second, {6}, {}, {}});
    CHECK(log.leased_queues() == std::set<unsigned>{5, 6});
    log.forget(first);
    CHECK(log.find(first) == nullptr);
    REQUIRE(log.find(second) != nullptr);
    CHECK(log.leased_queues() == std::set<unsigned>{6});
}
