// SPDX-License-Identifier: Apache-2.0
//
// Every fault that the software NIC can inject: the stream stays whole, and the counters say what happened.
#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <functional>
#include <memory>
#include <string>

#include "bed.hpp"
#include "nic.hpp"

using namespace gpurx::lab;

namespace {

struct fault_row {
    char const* fault;
    unsigned value;
    std::uint64_t bytes;
    // What must have happened to the bytes, besides arriving.
    std::function<bool(gpurx::stats const&)> counted;
};

bool all_in_device_memory(gpurx::stats const& stats)
{
    return stats.linear_bytes == 0 && stats.host_bytes == 0;
}

fault_row const rows[] = {
    {"drop", 37, 4 * mebibyte, all_in_device_memory},
    {"duplicate", 5, 8 * mebibyte, all_in_device_memory},
    {"reorder", 23, 4 * mebibyte, all_in_device_memory},
    {"delay_us", 2000, 2 * mebibyte, all_in_device_memory},
    {"alloc_fail", 41, 4 * mebibyte, all_in_device_memory},
    // So much of each frame's payload stays on the host: part of it, or all of the small ones.
    {"linear_bytes", 100, 8 * mebibyte,
     [](gpurx::stats const& stats) { return stats.linear_bytes > 0 && stats.device_bytes > stats.linear_bytes; }},
    {"linear_bytes", 65535, 4 * mebibyte,
     [](gpurx::stats const& stats) { return stats.host_bytes > 0 && stats.host_bytes > stats.device_bytes; }},
    {"no_split", 7, 8 * mebibyte,
     [](gpurx::stats const& stats) { return stats.host_bytes > 0 && stats.device_bytes > stats.host_bytes; }},
    {"no_split", 1, 4 * mebibyte,
     [](gpurx::stats const& stats) { return stats.host_bytes > 0 && stats.device_bytes == 0; }},
    {"pack", 1, 8 * mebibyte, all_in_device_memory},
    {"pack", 2, 8 * mebibyte, all_in_device_memory},
};

// A large frame would need more fragments than a packet has.
bool for_small_frames(fault_row const& row)
{
    return std::string{row.fault} == "pack" && row.value == 2;
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "a stream survives every fault of the NIC", "[faults]")
{
    auto const version = GENERATE(family::v4, family::v6);
    auto const small = GENERATE(false, true);
    // zcrx loses a flow whose linear payload GRO has put behind pages (errc::mixed_fragments).
    without_gro const frames{small, lab_transport() == gpurx::transport::zcrx};
    std::uint64_t seed = 100;
    for (auto const& row : rows) {
        if (for_small_frames(row) && !small)
            continue;
        auto const& [name, value, bytes, counted] = row;
        for (auto const how : {way::read, way::loan}) {
            auto session = open_session(32 * mebibyte, {.max_flows = 2});
            nic_fault const fault{name, value};
            auto const failures = allocation_failures();
            // A fault that loses frames waits for retransmissions: small frames are many.
            auto const each = small ? bytes / 8 : bytes / 2;
            auto const outcomes = transfer(session, {{seed++, each}, {seed++, each}}, version, how, role::accepts);
            CAPTURE(name, value, version == family::v4, small, how == way::read);
            for (auto const& result : outcomes) {
                INFO(result);
                CHECK(intact(result, each));
            }
            CHECK(fault.injected() > 0);
            CHECK(counted(session.stats()));
            if (std::string{name} == "alloc_fail")
                CHECK(allocation_failures() > failures);
        }
    }
}
