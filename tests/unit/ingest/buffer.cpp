// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <cstdint>
#include <fstream>
#include <gpurx/ingest/buffer.hpp>
#include <span>
#include <string>

namespace gpurx::ingest {

namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

std::span<std::byte> bytes_of(buffer const& of)
{
    return {reinterpret_cast<std::byte*>(of.span().address()), of.size()};
}

bool has_huge_pages()
{
    std::string words;
    std::getline(std::ifstream{"/sys/kernel/mm/transparent_hugepage/enabled"}, words);
    return words.find("[madvise]") != std::string::npos || words.find("[always]") != std::string::npos;
}

// KiB in huge pages of the mapping that has the address, as /proc/self/smaps tells.
std::size_t huge_kibibytes_at(std::uintptr_t address)
{
    std::ifstream smaps{"/proc/self/smaps"};
    auto is_there = false;
    for (std::string line; std::getline(smaps, line);) {
        char* end = nullptr;
        auto const begin = std::strtoull(line.c_str(), &end, 16);
        if (*end == '-')
            is_there = begin <= address && address < std::strtoull(end + 1, nullptr, 16);
        else if (is_there && line.starts_with("AnonHugePages:"))
            return std::stoul(line.substr(line.find(':') + 1));
    }
    return 0;
}

}  // namespace

TEST_CASE("buffer: bytes of at least a huge page begin with one, and others with a page")
{
    auto const size = GENERATE(huge_page, huge_page + 1, 3 * huge_page - 1, 4 * huge_page, 9 * huge_page + 4096);
    auto const large = buffer::on_host(size);
    CHECK(large.size() == size);
    CHECK(large.span().address() % huge_page == 0);
    auto const small = buffer::on_host(GENERATE(std::size_t{1}, std::size_t{4096}, huge_page - 1));
    CHECK(small.span().address() % 4096 == 0);
    for (auto const& each : {bytes_of(large), bytes_of(small)}) {
        CHECK(std::ranges::all_of(each, [](std::byte one) { return one == std::byte{0}; }));
        std::ranges::fill(each, std::byte{1});
    }
    CHECK(buffer::on_host(0).size() == 0);
}

TEST_CASE("buffer: all whole huge pages of the bytes are huge, and no more")
{
    if (!has_huge_pages())
        SKIP("the system provides no huge pages: /sys/kernel/mm/transparent_hugepage/enabled");
    auto const whole = GENERATE(1U, 2U, 5U);
    auto const buffer = buffer::on_host(whole * huge_page + GENERATE(std::size_t{0}, std::size_t{5000}));
    std::ranges::fill(bytes_of(buffer), std::byte{1});
    CHECK(huge_kibibytes_at(buffer.span().address()) == whole * (huge_page >> 10));
}

}  // namespace gpurx::ingest
