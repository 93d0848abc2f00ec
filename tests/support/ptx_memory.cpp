// SPDX-License-Identifier: Apache-2.0
#include "ptx_memory.hpp"

#include <algorithm>
#include <array>

namespace ptx::inside {

namespace {

std::string words_for(access const& what)
{
    return std::to_string(what.size) + " bytes at " + std::to_string(what.address);
}

void check_alignment(access const& what)
{
    if (what.address % what.size != 0)
        throw fault{"not aligned: " + words_for(what)};
}

bool holds(view const& all, access const& what)
{
    return what.address >= all.begin && what.address - all.begin < all.size &&
           what.size <= all.size - (what.address - all.begin);
}

}  // namespace

std::byte* global_memory::find(access const& what)
{
    check_alignment(what);
    auto found = std::ranges::find_if(views_, [&](view const& all) { return holds(all, what); });
    if (found == views_.end()) {
        auto const there = of_.look(what.address);
        if (!there || !holds(*there, what))
            throw no_memory{"no such memory: " + words_for(what)};
        found = views_.insert(views_.begin(), *there);
    }
    return found->bytes + (what.address - found->begin);
}

global_memory::bits& global_memory::page_of(std::uint64_t address)
{
    auto const number = address / page;
    if (number != last_page_ || last_ == nullptr) {
        last_ = &stored_[number];
        last_page_ = number;
    }
    return *last_;
}

// An access is aligned to its size, which is 16 at most: its bytes have their bits in one word.
bool global_memory::note_store(access const& what)
{
    auto& word = page_of(what.address)[what.address % page / 64];
    auto const mask = ((std::uint64_t{1} << what.size) - 1) << what.address % 64;
    auto const first = (word & mask) == 0;
    word |= mask;
    return first;
}

// Forgets that the byte was stored; whether it was.
bool global_memory::take(std::uint64_t address)
{
    auto& word = page_of(address)[address % page / 64];
    auto const bit = std::uint64_t{1} << address % 64;
    auto const was = (word & bit) != 0;
    word &= ~bit;
    return was;
}

std::vector<std::string> global_memory::compare(std::vector<range> const& writes, std::vector<range> may_write)
{
    std::vector<std::string> wrong;
    for (auto const& all : writes) {
        std::uint64_t missing = 0;
        for (auto at = all.begin; at < all.begin + all.size; ++at)
            if (!take(at) && missing++ == 0)
                wrong.push_back("the byte at " + std::to_string(at) + " is not written");
    }
    for (auto const& all : may_write)
        for (auto at = all.begin; at < all.begin + all.size; ++at)
            static_cast<void>(take(at));
    for (auto const& [number, of_page] : stored_)
        for (std::uint64_t bit = 0; bit < page; ++bit)
            if ((of_page[bit / 64] >> bit % 64 & 1) != 0) {
                wrong.push_back("the byte at " + std::to_string(number * page + bit) + " is written");
                break;
            }
    return wrong;
}

std::byte* shared_memory::find(access const& what, bool store, unsigned warp)
{
    check_alignment(what);
    if (what.address > bytes_.size() || what.size > bytes_.size() - what.address)
        throw fault{"beyond shared memory: " + words_for(what)};
    for (auto at = what.address; at < what.address + what.size; ++at) {
        auto& of_word = words_[at / 4];
        auto const bit = 1U << at % 4;
        if (store) {
            of_word = {of_word.written | bit, warp, epoch_};
            continue;
        }
        if ((of_word.written & bit) == 0)
            throw fault{"shared memory that nothing was written to: " + words_for(what)};
        if (of_word.epoch == epoch_ && of_word.warp != warp)
            throw fault{"shared memory that another warp has written, without a barrier: " + words_for(what)};
    }
    return &bytes_[what.address];
}

unsigned sectors_of(std::span<access const> accesses)
{
    constexpr unsigned sector = 32;
    std::array<std::uint64_t, 2 * std::size_t{warp_lanes}> numbers{};
    auto end = numbers.begin();
    for (auto const& one : accesses) {
        *end++ = one.address / sector;
        *end++ = (one.address + one.size - 1) / sector;
    }
    std::sort(numbers.begin(), end);
    return static_cast<unsigned>(std::unique(numbers.begin(), end) - numbers.begin());
}

unsigned conflicts_of(std::span<access const> accesses)
{
    constexpr std::size_t banks = 32;
    constexpr std::size_t bytes_at_once = banks * 4;
    unsigned conflicts = 0;
    // Wide accesses go in groups of as many lanes as all banks can serve.
    for (std::size_t done = 0; done < accesses.size();) {
        auto const size = std::max(accesses[done].size, 4U);
        auto const group = accesses.subspan(done, std::min(bytes_at_once / size, accesses.size() - done));
        std::array<std::uint64_t, 2 * banks> words{};
        auto end = words.begin();
        for (auto const& one : group)
            for (auto at = one.address / 4; at <= (one.address + one.size - 1) / 4; ++at)
                *end++ = at;
        std::sort(words.begin(), end);
        end = std::unique(words.begin(), end);
        std::array<unsigned, banks> of_bank{};
        std::for_each(words.begin(), end, [&](std::uint64_t word) { ++of_bank[word % banks]; });
        conflicts += std::max(*std::ranges::max_element(of_bank), 1U) - 1;
        done += group.size();
    }
    return conflicts;
}

}  // namespace ptx::inside
