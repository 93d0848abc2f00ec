// SPDX-License-Identifier: Apache-2.0
//
// What it costs to open a packet socket on dms0, in ways that are compared, and what a receiver feels of it. Run it in
// the lab.
//
//   tap_bench binds FLOWS REPEATS     beside so many busy flows; prints for each repeat of each way
//                                     `sample FLOWS WAY NANOSECONDS CPU-NANOSECONDS GRACE-PERIODS`
//   tap_bench gaps FLOWS WINDOWS MILLISECONDS
//                                     beside so many; prints for each of so many windows of this length, in which
//                                     nothing is opened, or it is in one of the ways, or as much CPU time is used as
//                                     the tap's opening and closing took
//                                     `gap FLOWS none|WAY|computing NANOSECONDS RECEIVES`, and how long that took and
//                                     how many receives there were meanwhile
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

constexpr auto between_windows = 10ms;

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

// The largest gap of any flow in a window, in the middle of which something is done. Returns the CPU time of that.
// Windows are as long whatever is done: in a longer one there are more gaps, and the largest of them is larger.
template <class Work>
std::chrono::nanoseconds measure_gap(bench::traffic& busy, std::chrono::milliseconds window, char const* name,
                                     Work const& work)
{
    std::this_thread::sleep_for(between_windows);
    auto const end = std::chrono::steady_clock::now() + window;
    busy.forget_gaps();
    auto const before = busy.receives();
    std::this_thread::sleep_for(window / 2);
    auto const before_work = busy.receives();
    auto const start = std::chrono::steady_clock::now();
    auto const cpu_start = bench::cpu_time();
    work();
    auto const taken = bench::cpu_time() - cpu_start;
    std::chrono::nanoseconds const time = std::chrono::steady_clock::now() - start;
    auto const meanwhile = busy.receives() - before_work;
    std::this_thread::sleep_until(end);
    std::printf("gap %zu %s %lld %llu %lld %llu\n", busy.flows(), name,
                static_cast<long long>(busy.largest_gap().count()),
                static_cast<unsigned long long>(busy.receives() - before), static_cast<long long>(time.count()),
                static_cast<unsigned long long>(meanwhile));
    return taken;
}

void measure_gaps(unsigned interface, unsigned flows, int windows, std::chrono::milliseconds window)
{
    bench::grace_periods const counter;
    bench::traffic busy{flows};
    for (int i = 0; i < windows; ++i) {
        measure_gap(busy, window, "none", [] {});
        std::chrono::nanoseconds taken{};
        for (auto const way : {opening::one_interface, opening::protocol_later, opening::tap})
            taken = measure_gap(busy, window, bench::to_string(way),
                                [&] { static_cast<void>(bench::measure(way, interface, counter)); });
        measure_gap(busy, window, "computing", [taken] {
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
    else if (what == "gaps" && argc == 5)
        measure_gaps(interface, static_cast<unsigned>(std::atoi(argv[2])), std::atoi(argv[3]),
                     std::chrono::milliseconds{std::atoi(argv[4])});
    else
        throw std::runtime_error{"usage: tap_bench binds FLOWS REPEATS | gaps FLOWS WINDOWS MILLISECONDS"};
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
