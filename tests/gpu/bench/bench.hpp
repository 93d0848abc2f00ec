// SPDX-License-Identifier: Apache-2.0
//
// The parts of gpu_bench.
#pragma once

#include <string>

#include "device.hpp"
#include "feeder.hpp"
#include "report.hpp"

namespace gpurx::bench {

struct options {
    int ordinal = 0;
    bool facts = false;  // say what the GPU and its driver are like, and do nothing else
    bool quick = false;  // small sizes, to see that it works; no bar is judged
    std::string trace;   // empty: none
    std::string json;    // where to write the JSON; empty: nowhere
    std::string only;    // one part; empty: all
};

void bench_gather(device const& on, options const& how, report& into);
void bench_transport(device const& on, options const& how, feeder& from, report& into);
void bench_release(device const& on, options const& how, report& into);

}  // namespace gpurx::bench
