// SPDX-License-Identifier: Apache-2.0
//
// What it costs to open a packet socket on dms0, in ways that are compared, and what a receiver feels of it. Run it in
// the lab.
//
//   tap_bench binds FLOWS REPEATS     beside so many busy flows; prints for each repeat of each way
//                                     `sample FLOWS WAY NANOSECONDS CPU-NANOSECONDS GRACE-PERIODS`
//   tap_bench gaps WINDOWS            prints for each of so many windows, in which nothing is opened, or it is in one
//                                     of the ways, or as much CPU time is used as the tap's opening and closing took
//                                     `gap none|WAY|computing NANOSECONDS RECEIVES`
// What cannot be measured is said in lines `absent WHAT: WHY`.
#include <net/if.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "openings.hpp"
#include "traffic.hpp"
#include "waits.hpp"

namespace {

using namespace std::chrono_literals;
using bench::opening;

constexpr auto window = 50ms;

void say_what_is_absent(bench::grace_periods const& counter)
{
    if (!counter.refusal().empty())
        std::printf("absent grace periods: %s\n", counter.refusal().c_str());
    if (auto const refusal = bench::instructions_refused(); !refusal.empty())
        std::printf("absent instructions: %s\n", refusal.c_str());
}

void measure_binds(unsigned interface, unsigned flows, int repeats)
{
    bench::grace_periods const counter;
    say_what_is_absent(counter);
    std::optional<bench::traffic> busy;
    if (flows > 0)
        busy.emplace(flows);
    // The first round warms up.
    for (int i = -1; i < repeats; ++i) {
        for (auto const way : bench::every_opening) {
            auto const cost = bench::measure(way, interface, counter);
            if (i >= 0)
                std::printf("sample %u %s %lld %lld %llu\n", flows, bench::to_string(way),
                            static_cast<long long>(cost.time.count()), static_cast<long long>(cost.cpu_time.count()),
                            static_cast<unsigned long long>(cost.grace_periods));
        }
    }
}

// The largest gap of a flow in a window, in the middle of which something is done. Returns the CPU time of that.
template <class Work>
std::chrono::nanoseconds measure_gap(bench::traffic& busy, char const* name, Work const& work)
{
    std::this_thread::sleep_for(window / 4);
    busy.forget_gaps();
    auto const before = busy.receives();
    std::this_thread::sleep_for(window / 2);
    auto const start = bench::cpu_time();
    work();
    auto const taken = bench::cpu_time() - start;
    std::this_thread::sleep_for(window / 2);
    std::printf("gap %s %lld %llu\n", name, static_cast<long long>(busy.largest_gap().count()),
                static_cast<unsigned long long>(busy.receives() - before));
    return taken;
}

void measure_gaps(unsigned interface, int windows)
{
    bench::grace_periods const counter;
    bench::traffic busy{1};
    for (int i = 0; i < windows; ++i) {
        measure_gap(busy, "none", [] {});
        std::chrono::nanoseconds taken{};
        for (auto const way : {opening::one_interface, opening::protocol_later, opening::tap})
            taken = measure_gap(busy, bench::to_string(way),
                                [&] { static_cast<void>(bench::measure(way, interface, counter)); });
        measure_gap(busy, "computing", [taken] {
            auto const end = bench::cpu_time() + taken;
            while (bench::cpu_time() < end) {
            }
        });
    }
}

void run(int argc, char** argv)
{
    std::string_view const what = argc > 1 ? argv[1] : "";
    auto const interface = ::if_nametoindex("dms0");
    if (what == "binds" && argc == 4)
        measure_binds(interface, static_cast<unsigned>(std::atoi(argv[2])), std::atoi(argv[3]));
    else if (what == "gaps" && argc == 3)
        measure_gaps(interface, std::atoi(argv[2]));
    else
        throw std::runtime_error{"usage: tap_bench binds FLOWS REPEATS | gaps WINDOWS"};
}

}  // namespace

int main(int argc, char** argv)
{
    try {
        run(argc, argv);
        return 0;
    } catch (std::exception const& failure) {
        std::fprintf(stderr, "tap_bench: %s\n", failure.what());
        return 1;
    }
}
