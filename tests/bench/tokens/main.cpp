// SPDX-License-Identifier: Apache-2.0
//
// What tokens cost: guest instructions of recvmsg and of SO_DEVMEM_DONTNEED per fragment. The receive queues are filled
// first and then drained, so that nothing else goes on. Run by tokens.py, in the lab with --exact.
//
//   tokens_bench ROUNDS all|profile|race KIND...
//
// KIND of tokens: stock, owner, shared, again (round.hpp). profile: only 4 flows with whole pages of 4 KiB, given
// back 128 at a time. race: 4 flows as well, drained by two threads at once; for two CPUs, and without --exact.
//
// Prints lines of key=value; the first word says of what:
//   calibration  what reading the clock costs, and a loop of 40,000,000 instructions
//   receive      all calls of one round: instructions fragments calls
//   call         each call of a round with a small control buffer: instructions delivered, packets finished, fragments
//                left of the packet in which it ended
//   release      all calls of one round with one batch size: instructions fragments calls ranges
//   race         one round of two threads: nanoseconds fragments
//   close        close() of a socket that has one page of a large binding: instructions

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "bound_nic.hpp"
#include "receive_queue.hpp"
#include "round.hpp"

namespace {

using bench::memory_kind;
using bench::series;
using bench::token_kind;

constexpr std::uint64_t segment = 1448;
constexpr std::uint64_t largest_packet = 45 * segment;  // what TCP gives the NIC in one piece: whole segments of 64 KiB

// Both have more pages than the ring of a page pool, 1024: what is given back while that is full goes to the provider.
constexpr std::size_t memory_4k = 48u << 20, memory_64k = 160u << 20;

// Enough for several calls with 128 fragments of each flow, for each size of release: also where segments that share a
// large page are one fragment.
std::uint64_t fragments_of(std::uint32_t page_size, bool segmented)
{
    if (page_size == 4096)
        return 4608;
    return segmented ? 18432 : 1536;
}

series make_series(std::uint32_t page_size, bool segmented, unsigned flows, unsigned control,
                   bench::batches const& released = {1, 32, 128})
{
    std::uint64_t const fragments = fragments_of(page_size, segmented) / flows;
    std::uint64_t const per_packet = (largest_packet + page_size - 1) / page_size;
    // Segments that do not fill a large page share it.
    unsigned const packing = segmented && page_size != 4096 ? 1 : 0;
    return {page_size, segmented, packing,
            flows,     control,   segmented ? fragments * segment : fragments / per_packet * largest_packet,
            released,  false,     false};
}

// Two segments in each page, neither of which follows the one before.
series make_halves(std::uint32_t page_size)
{
    auto result = make_series(page_size, true, 1, bench::whole_control);
    result.packing = 2;
    return result;
}

std::vector<series> make_all_series(memory_kind memory, std::uint32_t page_size)
{
    std::vector<series> result;
    if (memory == memory_kind::scattered) {
        for (bool const segmented : {false, true})
            result.push_back(make_series(page_size, segmented, 4, bench::whole_control));
        return result;
    }
    for (bool const segmented : {false, true}) {
        for (unsigned const flows : {1u, 4u})
            result.push_back(make_series(page_size, segmented, flows, bench::whole_control));
        if (page_size == 4096)
            for (unsigned const control : {4u, 16u})
                result.push_back(make_series(page_size, segmented, 1, control));
    }
    if (page_size == 4096)
        result.push_back(make_halves(page_size));
    return result;
}

token_kind parse_kind(std::string_view name)
{
    if (name == "stock")
        return token_kind::stock;
    if (name == "owner")
        return token_kind::owner;
    if (name == "shared")
        return token_kind::shared;
    if (name == "again")
        return token_kind::again;
    throw std::invalid_argument{fmt::format("'{}': no kind of tokens", name)};
}

void run_round(std::string_view kind, std::string_view memory, series const& what, int listener,
               std::deque<bench::sender>& senders, unsigned number)
{
    bench::set_arrival({.segmented = what.segmented, .packing = what.packing});
    char const* const fragment = what.packing == 2 ? "half" : what.segmented ? "segment" : "page";
    auto label = fmt::format("tokens={} memory={} page={} fragment={} flows={} control={} round={}", kind, memory,
                             what.page_size, fragment, what.flows, what.control, number);
    bench::round one{parse_kind(kind), std::move(label), what, number};
    one.fill(listener, senders);
    if (what.raced)
        one.race();
    else if (what.closed)
        one.close_with_one();
    else
        one.drain();
}

void calibrate()
{
    std::uint64_t const start = read_clock();
    std::uint64_t const pair = read_clock() - start;
    std::uint64_t const loop = read_clock();
    std::uint64_t left = 20'000'000;
    asm volatile("1: dec %0\n\tjnz 1b" : "+r"(left) : : "cc");
    fmt::print("calibration pair={} loop={}\n", pair, read_clock() - loop);
}

std::vector<series> make_profiled_series(memory_kind memory, std::uint32_t page_size)
{
    if (memory != memory_kind::contiguous || page_size != 4096)
        return {};
    return {make_series(page_size, false, 4, bench::whole_control, {128, 128, 128})};
}

std::vector<series> make_raced_series(memory_kind memory, std::uint32_t page_size)
{
    auto result = make_profiled_series(memory, page_size);
    for (series& one : result)
        one.raced = true;
    return result;
}

using make_series_of = std::vector<series> (*)(memory_kind memory, std::uint32_t page_size);

struct place {
    char const* name;
    memory_kind memory;
    std::uint32_t page_size;
    std::size_t bytes;
};

// Large pages are contiguous in themselves.
constexpr place places[] = {
    {"contiguous", memory_kind::contiguous, 4096, memory_4k},
    {"scattered", memory_kind::scattered, 4096, memory_4k},
    {"contiguous", memory_kind::contiguous, 65536, memory_64k},
};

// close() of a socket that has one page of 12,288. Not for other kinds: shared tokens stay out, and pages that
// were received again are no different here.
void run_close(std::string const& kind, int listener, std::deque<bench::sender>& senders, unsigned number)
{
    if (kind != "stock" && kind != "owner")
        return;
    bench::dmabuf const memory{memory_kind::contiguous, memory_4k};
    auto const binding = bench::bind(memory, 4096, false);
    auto what = make_series(4096, false, 1, bench::whole_control);
    what.closed = true;
    run_round(kind, "contiguous", what, listener, senders, number);
}

void run(unsigned rounds, make_series_of series_of, std::vector<std::string> const& kinds)
{
    std::deque<bench::sender> senders;
    for (int i = 0; i < 4; ++i)
        senders.emplace_back("peer");
    bench::split_headers();
    int const listener = bench::listen_with_large_buffer();
    // Round 0 warms up: nobody counts it.
    for (unsigned number = 0; number <= rounds; ++number) {
        calibrate();
        for (std::string const& kind : kinds) {
            for (place const& where : places) {
                auto const each = series_of(where.memory, where.page_size);
                if (each.empty())
                    continue;
                bench::dmabuf const memory{where.memory, where.bytes};
                auto const binding = bench::bind(memory, where.page_size, kind == "shared");
                for (series const& what : each)
                    run_round(kind, where.name, what, listener, senders, number);
            }
            if (series_of == make_all_series)
                run_close(kind, listener, senders, number);
            fmt::print("done round={} tokens={}\n", number, kind);
            std::fflush(stdout);
        }
    }
}

}  // namespace

int main(int argc, char** argv)
try {
    std::string_view const what = argc < 4 ? "" : argv[2];
    make_series_of const series_of = what == "all"       ? make_all_series
                                     : what == "profile" ? make_profiled_series
                                     : what == "race"    ? make_raced_series
                                                         : nullptr;
    if (series_of == nullptr)
        throw std::invalid_argument{"usage: tokens_bench ROUNDS all|profile|race KIND..."};
    run(static_cast<unsigned>(std::atoi(argv[1])), series_of, {argv + 3, argv + argc});
    return 0;
} catch (std::exception const& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "tokens: %s\n", error.what());
    return 1;
}
