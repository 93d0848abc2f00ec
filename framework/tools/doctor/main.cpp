// SPDX-License-Identifier: Apache-2.0
//
// gpurx-doctor: checks a machine for device memory TCP, lists the changes that it needs, and shows its flows.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <gpurx/error.hpp>
#include <string_view>

#include "findings.hpp"
#include "fix.hpp"
#include "nic/kernel_nic.hpp"
#include "observe.hpp"
#include "options.hpp"
#include "report.hpp"
#include "tap/run.hpp"

namespace {

using namespace gpurx::doctor;

// A sibling of the sessions' directory: sessions keep their own files there only while they live.
std::string own_directory(options const& chosen)
{
    return chosen.state_directory + "-doctor";
}

void print(fix_report const& said)
{
    for (auto const& sentence : said.done)
        fmt::print(stderr, "done: {}\n", sentence);
    for (auto const& sentence : said.failed)
        fmt::print(stderr, "left: {}\n", sentence);
}

void fix(options const& chosen, diagnosis const& found)
{
    gpurx::detail::kernel_nic nic{chosen.interface};
    print(apply_fixes(found.findings, nic, gpurx::detail::this_environment(own_directory(chosen)),
                      gpurx::detail::this_environment(chosen.state_directory)));
}

int put_back(options const& chosen)
{
    gpurx::detail::kernel_nic nic{chosen.interface};
    auto const said = undo(nic, gpurx::detail::this_environment(own_directory(chosen)));
    print(said);
    return said.failed.empty() ? ready : degraded;
}

int status_of(verdict outcome)
{
    switch (outcome) {
        case verdict::ready:
            return ready;
        case verdict::degraded:
            return degraded;
        case verdict::not_possible:
            break;
    }
    return not_possible;
}

int examine(options const& chosen)
{
    observation const scope{.interface = chosen.interface,
                            .gpu = chosen.gpu,
                            .wanted = {chosen.memory},
                            .state_directory = chosen.state_directory,
                            .own_directory = own_directory(chosen),
                            .try_zcrx = chosen.try_zcrx};
    auto seen = observe(scope);
    if (chosen.fix && !chosen.dry_run) {
        fix(chosen, diagnose(seen, seen.interfaces.front()));
        seen = observe(scope);
    }
    auto const* const best = best_interface(seen);
    auto const found = best != nullptr ? diagnose(seen, *best) : diagnosis{verdict::not_possible, {}};
    if (chosen.json)
        fmt::print("{}", json_report(seen));
    else if (chosen.dry_run)
        fmt::print("{}", commands_to_fix(found));
    else
        fmt::print("{}", chosen.interface.empty() ? text_overview(seen) : text_report(*best, found));
    return status_of(found.outcome);
}

int run_tap(int argc, char** argv)
{
    int exit_code = 0;
    auto const chosen = tap::parse_command_line(argc, argv, exit_code);
    if (!chosen)
        return exit_code;
    tap::run(*chosen);
    return ready;
}

}  // namespace

int main(int argc, char** argv)
try {
    if (argc > 1 && argv[1] == std::string_view{"tap"})
        return run_tap(argc - 1, argv + 1);
    int exit_code = 0;
    auto const chosen = parse_command_line(argc, argv, exit_code);
    if (!chosen)
        return exit_code;
    return chosen->undo ? put_back(*chosen) : examine(*chosen);
} catch (gpurx::system_error const& error) {
    fmt::print(stderr, "gpurx-doctor: {}\n", error.what());
    return error.code().value() == ENODEV ? bad_usage : not_possible;
} catch (std::exception const& error) {
    fmt::print(stderr, "gpurx-doctor: {}\n", error.what());
    return not_possible;
}
