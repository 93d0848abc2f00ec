// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <boost/json.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "nic.hpp"

using namespace gpurx::doctor;
using namespace gpurx::doctor::test;
namespace detail = gpurx::detail;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

namespace {

// A NIC that is down, and a loopback.
facts spoilt_facts()
{
    auto seen = good_facts();
    seen.interfaces[0].up = false;
    interface_facts loopback;
    loopback.name = "lo";
    loopback.loopback = true;
    loopback.bind_probe = refusal{EOPNOTSUPP, "Operation not supported"};
    seen.interfaces.insert(seen.interfaces.begin(), loopback);
    return seen;
}

detail::journal_rule to_port_5000(std::optional<std::uint32_t> id, bool v6)
{
    return {id, {{v6, std::nullopt, 5000, std::nullopt}, detail::rule_target::queue, 3}};
}

}  // namespace

TEST_CASE("the report begins with the worst")
{
    auto const seen = spoilt_facts();
    auto const text = text_report(seen.interfaces[1], diagnose(seen, seen.interfaces[1]));
    CHECK_THAT(text, StartsWith("dms0: not possible\n"
                                "  blocking  link            the interface is down\n"
                                "                            seen: no IFF_UP\n"
                                "                            do:   ip link set dev dms0 up   (--fix does it)\n"
                                "  ok        kernel"));
}

TEST_CASE("the overview has a line for each interface and marks the best")
{
    auto seen = spoilt_facts();
    CHECK(
        text_overview(seen) ==
        "  lo    not possible  the loopback device cannot bind memory to its queues: use a NIC of mlx5_core, bnxt_en, "
        "gve, fbnic\n"
        "* dms0  not possible  the interface is down\n"
        "transport copy works: programs need no change, and the CPU copies each byte\n");
    seen.interfaces[1].up = true;
    CHECK_THAT(text_overview(seen), ContainsSubstring("\n* dms0  ready         a session can use it\n"));
    seen.machine.process.net_admin = false;
    CHECK_THAT(text_overview(seen), StartsWith("  blocking  rights"));
    CHECK_THAT(text_overview(seen), ContainsSubstring("\n* dms0  not possible  a session can use it\n"));
    seen.interfaces.clear();
    CHECK_THAT(text_overview(seen), ContainsSubstring("no interface"));
}

TEST_CASE("an overview without a NIC for devmem marks none, and names transport copy")
{
    auto seen = spoilt_facts();
    seen.interfaces.pop_back();
    auto const text = text_overview(seen);
    CHECK_THAT(text, !ContainsSubstring("*"));
    CHECK_THAT(text, ContainsSubstring("\nno interface here supports transport devmem\ntransport copy works: programs "
                                       "need no change"));
    CHECK(boost::json::parse(json_report(seen)).at("best").is_null());

    // A NIC that can be fixed is marked.
    CHECK_THAT(text_overview(spoilt_facts()), ContainsSubstring("\n* dms0  not possible"));
    CHECK_THAT(text_overview(spoilt_facts()), !ContainsSubstring("no interface here"));
    CHECK_THAT(text_overview(spoilt_facts()), ContainsSubstring("transport copy works"));
    CHECK_THAT(text_overview(good_facts()), !ContainsSubstring("ransport copy"));
}

TEST_CASE("a report of an interface without devmem names transport copy")
{
    auto const seen = spoilt_facts();
    constexpr char says[] = "transport copy works: programs need no change, and the CPU copies each byte";
    CHECK_THAT(text_report(seen.interfaces[0], diagnose(seen, seen.interfaces[0])), ContainsSubstring(says));
    CHECK_THAT(text_report(good_nic(), diagnose(good_facts(), good_nic())), !ContainsSubstring(says));
}

TEST_CASE("only what --fix does is among its commands")
{
    auto seen = spoilt_facts();
    seen.interfaces[1].rings = {detail::ethtool::data_split::off, 256, 65536};
    CHECK(commands_to_fix(diagnose(seen, seen.interfaces[1])) == "ip link set dev dms0 up\nethtool -G dms0 rx 4096\n");
    CHECK(commands_to_fix(diagnose(good_facts(), good_nic())) == "# --fix has nothing left to do\n");
    seen.interfaces[0].loopback = true;
    CHECK(commands_to_fix(diagnose(seen, seen.interfaces[0])) ==
          "# --fix has nothing to do; without --dry-run the report lists the obstacles\n");
}

TEST_CASE("a dry run of --fix has a line for each rule, context and setting of killed processes")
{
    auto seen = spoilt_facts();
    auto& nic = seen.interfaces[1];
    nic.sessions = {session(false), session(false)};
    nic.sessions[0].owner.rules = {to_port_5000(7, false), to_port_5000(std::nullopt, true)};
    nic.sessions[1].owner.key.pid = 78;
    nic.sessions[1].owner.queues = {2};
    nic.sessions[1].owner.contexts = {{1, {2, 3}}};
    nic.session_changes = {{detail::setting::ntuple_filters, {0}, {1}},
                           {detail::setting::rss_table, {0, 1, 2, 3}, {0, 1, 0, 1}}};
    std::string const steering =
        "# rule without a number yet (tcp6 * -> *:5000) is removed\n"
        "# rule 7 (tcp4 * -> *:5000) is removed\n"
        "# RSS context 1 over queues 2, 3 is removed\n";
    auto const said = [&] { return commands_to_fix(diagnose(seen, nic)); };
    CHECK(said() == "ip link set dev dms0 up\n" + steering +
                        "# rss-table: 0 1 0 1 -> 0 1 2 3\n"
                        "# ntuple-filters: on -> off\n");
    CHECK_THAT(text_report(nic, diagnose(seen, nic)),
               ContainsSubstring("      rule 7 (tcp4 * -> *:5000) is removed\n"));
    CHECK_THAT(json_report(seen), ContainsSubstring("\"ntuple-filters: on -> off\""));

    // What living sessions need stays.
    nic.sessions.push_back(session(true));
    CHECK(said() == "ip link set dev dms0 up\n" + steering + "# rss-table: queues 3, 2 are used again\n");

    nic.sessions = {session(false), session(std::nullopt)};
    nic.sessions[1].owner.rules = {to_port_5000(7, false)};
    CHECK(said() ==
          "ip link set dev dms0 up\n"
          "# rule 7 (tcp4 * -> *:5000) is removed, if process 77 has ended\n"
          "# rss-table: queues 3 are used again\n"
          "# rss-table: 0 1 0 1 -> 0 1 2 3, if no session is left\n"
          "# ntuple-filters: on -> off, if no session is left\n");
}

TEST_CASE("JSON has the same findings")
{
    auto const all = boost::json::parse(json_report(spoilt_facts())).as_object();
    CHECK(all.at("verdict") == "not possible");
    CHECK(all.at("best") == "dms0");
    CHECK(all.at("kernel") == "7.3.4");
    auto const& nics = all.at("interfaces").as_array();
    REQUIRE(nics.size() == 2);
    CHECK(nics[1].at("name") == "dms0");
    CHECK(nics[1].at("driver") == "devmemsim");
    auto const& worst = nics[1].at("findings").at(0);
    CHECK(worst.at("severity") == "blocking");
    CHECK(worst.at("topic") == "link");
    CHECK(worst.at("command") == "ip link set dev dms0 up");
    CHECK(worst.at("fixable") == true);

    facts nothing;
    CHECK(boost::json::parse(json_report(nothing)).at("best").is_null());
    CHECK(boost::json::parse(json_report(nothing)).at("verdict") == "not possible");
}
