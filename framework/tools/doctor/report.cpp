// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <iterator>

namespace gpurx::doctor {

namespace {

constexpr char copy_works[] = "transport copy works: programs need no change, and the CPU copies each byte\n";
constexpr int severity_width = 10;
constexpr int topic_width = 16;

void put_line(std::string& text, std::string_view line)
{
    fmt::format_to(std::back_inserter(text), "  {:{}}{}\n", "", severity_width + topic_width, line);
}

void put_finding(std::string& text, finding const& one)
{
    fmt::format_to(std::back_inserter(text), "  {:<{}}{:<{}}{}\n", to_string(one.level), severity_width, one.topic,
                   topic_width, one.what);
    put_line(text, "seen: " + one.evidence);
    if (!one.command.empty())
        put_line(text, "do:   " + one.command + (one.fix ? "   (--fix does it)" : ""));
    for (auto const& change : one.changes)
        put_line(text, "      " + change);
}

std::vector<finding> worst_first(std::vector<finding> findings)
{
    std::ranges::stable_sort(findings, std::ranges::greater{}, &finding::level);
    return findings;
}

// The worst finding, if it is degraded or blocking; else a sentence that says that all is well.
std::string summary_of(std::vector<finding> const& findings)
{
    auto const sorted = worst_first(findings);
    return sorted.empty() || sorted.front().level < severity::degraded ? std::string{"a session can use it"}
                                                                       : sorted.front().what;
}

std::vector<finding> findings_of_machine(facts const& seen)
{
    auto found = check_machine(seen.machine, seen.gpu.has_value(), seen.wanted);
    if (seen.gpu)
        std::ranges::move(check_gpu(*seen.gpu, seen.wanted), std::back_inserter(found));
    return found;
}

boost::json::object to_json(finding const& one)
{
    return {{"severity", to_string(one.level)},
            {"topic", one.topic},
            {"what", one.what},
            {"evidence", one.evidence},
            {"command", one.command},
            {"fixable", one.fix.has_value()},
            {"changes", boost::json::value_from(one.changes)}};
}

boost::json::object to_json(interface_facts const& interface, diagnosis const& found)
{
    boost::json::array all;
    for (auto const& one : worst_first(found.findings))
        all.push_back(to_json(one));
    return {{"name", interface.name},
            {"driver", interface.driver},
            {"verdict", to_string(found.outcome)},
            {"findings", std::move(all)}};
}

}  // namespace

std::string text_report(interface_facts const& interface, diagnosis const& found)
{
    auto text = fmt::format("{}: {}\n", interface.name, to_string(found.outcome));
    for (auto const& one : worst_first(found.findings))
        put_finding(text, one);
    if (found.outcome == verdict::not_possible)
        text += copy_works;
    return text;
}

std::string text_overview(facts const& seen)
{
    std::string text;
    for (auto const& one : worst_first(findings_of_machine(seen))) {
        if (one.level != severity::fine)
            put_finding(text, one);
    }
    auto const* const gpu = seen.gpu ? &*seen.gpu : nullptr;
    auto const* const best = best_interface(seen);
    if (best == nullptr)
        return text + "this network namespace has no interface\n";
    auto const outcome = diagnose(seen, *best);
    bool const has_nic = supports_devmem(outcome.findings);
    std::size_t width = 0;
    for (auto const& interface : seen.interfaces)
        width = std::max(width, interface.name.size());
    for (auto const& interface : seen.interfaces) {
        auto const own = check_interface(interface, seen.machine, gpu, seen.wanted);
        fmt::format_to(std::back_inserter(text), "{} {:<{}}  {:<14}{}\n", has_nic && &interface == best ? '*' : ' ',
                       interface.name, width, to_string(diagnose(seen, interface).outcome), summary_of(own));
    }
    if (!has_nic)
        text += "no interface here supports transport devmem\n";
    if (outcome.outcome == verdict::not_possible)
        text += copy_works;
    return text;
}

std::string commands_to_fix(diagnosis const& found)
{
    std::string text;
    for (auto const& one : found.findings) {
        if (one.fix && one.changes.empty())
            text += one.command + '\n';
        for (auto const& change : one.changes)
            text += "# " + change + '\n';
    }
    if (text.empty() && found.outcome == verdict::ready)
        return "# --fix has nothing left to do\n";
    if (text.empty())
        return "# --fix has nothing to do; without --dry-run the report lists the obstacles\n";
    return text;
}

std::string json_report(facts const& seen)
{
    boost::json::array interfaces;
    for (auto const& interface : seen.interfaces)
        interfaces.push_back(to_json(interface, diagnose(seen, interface)));
    auto const* const best = best_interface(seen);
    auto const found = best != nullptr ? diagnose(seen, *best) : diagnosis{verdict::not_possible, {}};
    bool const has_nic = best != nullptr && supports_devmem(found.findings);
    boost::json::object const all{{"version", GPURX_VERSION},
                                  {"kernel", seen.machine.kernel.release},
                                  {"verdict", to_string(found.outcome)},
                                  {"best", has_nic ? boost::json::value(best->name) : boost::json::value(nullptr)},
                                  {"interfaces", std::move(interfaces)}};
    return boost::json::serialize(all) + '\n';
}

}  // namespace gpurx::doctor
