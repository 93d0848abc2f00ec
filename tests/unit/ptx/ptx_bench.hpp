// SPDX-License-Identifier: Apache-2.0
//
// A few lines of PTX, run: for tests of the interpreter.
#pragma once

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ptx_machine.hpp"

namespace ptx::test {

// Memory that starts at an address of its own, with nothing around it.
class bench_memory : public memory {
  public:
    static constexpr std::uint64_t base = 0x7'0000'0000;
    explicit bench_memory(std::size_t size) : bytes(size) {}
    std::optional<view> look(std::uint64_t address) override
    {
        if (address < base || address - base >= bytes.size())
            return std::nullopt;
        return view{base, bytes.size(), bytes.data()};
    }
    template <class T>
    [[nodiscard]] T at(std::size_t index) const
    {
        T value;
        std::memcpy(&value, &bytes[index * sizeof value], sizeof value);
        return value;
    }
    template <class T>
    void put(std::size_t index, T value)
    {
        std::memcpy(&bytes[index * sizeof value], &value, sizeof value);
    }
    std::vector<std::byte> bytes;
};

// A kernel of this body. %rd0 is where the memory begins, %r0 the thread's number in the block, %rd1 where its own word
// of 4 bytes is; %r9 and below, %rd9 and below are free from 1 and 2 on.
inline kernel kernel_of(std::string const& body, std::string const& declarations = "")
{
    auto const text = R"(
        .version 7.0
        .target sm_80
        .address_size 64
        .visible .entry snippet(.param .u64 base) .maxntid 128, 1, 1
        {
            .reg .pred %p<10>;
            .reg .b16 %rs<10>;
            .reg .b32 %r<20>;
            .reg .b64 %rd<20>;
        )" + declarations +
                      R"(
            ld.param.u64 %rd0, [base];
            mov.u32 %r0, %tid.x;
            mul.wide.u32 %rd1, %r0, 4;
            add.s64 %rd1, %rd0, %rd1;
        )" + body + "\nret;\n}\n";
    return parse(text).at("snippet");
}

inline launch launch_of(unsigned threads = warp_lanes, unsigned blocks = 1)
{
    launch how;
    how.blocks = blocks;
    how.threads = threads;
    how.parameters.resize(8);
    std::memcpy(how.parameters.data(), &bench_memory::base, 8);
    return how;
}

inline bool faults_with(report const& what, std::string const& words)
{
    INFO("the fault is " << what.fault.value_or("none"));
    CHECK(what.fault.has_value());
    return what.fault.has_value() && what.fault->find(words) != std::string::npos;
}

}  // namespace ptx::test
