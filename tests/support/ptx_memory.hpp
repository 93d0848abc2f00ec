// SPDX-License-Identifier: Apache-2.0
//
// What a launch of PTX does to memory, watched: for ptx_machine.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "ptx_machine.hpp"

namespace ptx::inside {

// Ends the launch.
class fault : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Of global memory.
class no_memory : public fault {
    using fault::fault;
};

// One access of one lane.
struct access {
    std::uint64_t address;
    unsigned size;
};

// Global memory, with what was stored.
class global_memory {
  public:
    explicit global_memory(memory& of) : of_{of} {}
    // Where the bytes are.
    [[nodiscard]] std::byte* find(access const& what);
    // A plain store: false if one of the bytes was stored before.
    [[nodiscard]] bool note_store(access const& what);
    // What is wrong with all the stores.
    [[nodiscard]] std::vector<std::string> compare(std::vector<range> const& writes, std::vector<range> may_write);

  private:
    static constexpr std::uint64_t page = 4096;
    using bits = std::array<std::uint64_t, page / 64>;

    bits& page_of(std::uint64_t address);
    [[nodiscard]] bool take(std::uint64_t address);

    memory& of_;
    std::vector<view> views_;
    std::unordered_map<std::uint64_t, bits> stored_;
    std::uint64_t last_page_ = ~std::uint64_t{};
    bits* last_ = nullptr;
};

// A block's shared memory, in words of 4 bytes.
class shared_memory {
  public:
    explicit shared_memory(std::size_t size) : bytes_(size), words_((size + 3) / 4) {}
    [[nodiscard]] std::byte* find(access const& what, bool store, unsigned warp);
    void pass_barrier() { ++epoch_; }

  private:
    struct word {
        std::uint32_t written = 0;  // bits: bytes
        std::uint32_t warp = 0;     // that wrote it last
        std::uint64_t epoch = 0;    // and when
    };
    std::vector<std::byte> bytes_;
    std::vector<word> words_;
    std::uint64_t epoch_ = 1;
};

// 32-byte sectors that the accesses of a warp lie in.
[[nodiscard]] unsigned sectors_of(std::span<access const> accesses);
// Rounds that the 32 banks of shared memory need beyond the least that their sizes take.
[[nodiscard]] unsigned conflicts_of(std::span<access const> accesses);

}  // namespace ptx::inside
