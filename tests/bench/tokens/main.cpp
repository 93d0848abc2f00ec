// SPDX-License-Identifier: Apache-2.0
//
// What tokens cost: guest instructions of recvmsg and of SO_DEVMEM_DONTNEED per fragment. The receive queues are filled
// first and then drained, so that nothing else goes on. Run by tokens.py, in the lab with --exact.
//
//   tokens_bench ROUNDS all|profile KIND...
//
// KIND of tokens: stock, or xarray and array. profile: only 4 flows with whole pages of 4 KiB, given back
// 128 at a time.
//
// Prints lines of key=value; the first word says of what:
//   calibration  what reading the clock costs, and a loop of 40,000,000 instructions
//   receive      all calls of one round: instructions fragments calls
//   call         each call of a round with a small control buffer: instructions delivered, packets finished, fragments
//                left of the packet in which it ended
//   release      all calls of one round with one batch size: instructions fragments calls ranges
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "bound_nic.hpp"
#include "round.hpp"

namespace {

using bench::series;
using bench::token_kind;

constexpr std::uint16_t port = 9099;  // as in guest.sh
constexpr std::uint64_t segment = 1448;
constexpr std::uint64_t largest_packet = 45 * segment;  // what TCP gives the NIC in one piece: whole segments of 64 KiB

// Page pools keep up to 16384 free pages in their ring (devmemsim asks for the largest there is), and never give any
// to the allocator behind it, which is slow, as long as there are no more.
constexpr std::size_t memory_4k = 48u << 20, memory_64k = 160u << 20;

// Enough for several calls with 128 fragments of each flow, for each size of release.
series make_series(std::uint32_t page_size, bool segmented, unsigned flows, unsigned control,
                   bench::batches const& released = {1, 32, 128})
{
    bool const large = page_size != 4096 && !segmented;
    std::uint64_t const fragments = (large ? 1536u : 4608u) / flows;
    std::uint64_t const per_packet = (largest_packet + page_size - 1) / page_size;
    return {
        page_size, segmented, flows, control, segmented ? fragments * segment : fragments / per_packet * largest_packet,
        released};
}

std::vector<series> make_all_series(std::uint32_t page_size)
{
    std::vector<series> result;
    for (bool const segmented : {false, true}) {
        for (unsigned const flows : {1u, 4u})
            result.push_back(make_series(page_size, segmented, flows, bench::whole_control));
        if (page_size == 4096)
            for (unsigned const control : {4u, 16u})
                result.push_back(make_series(page_size, segmented, 1, control));
    }
    return result;
}

int listen_with_large_buffer()
{
    int const fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int const on = 1, buffer = 1 << 29;
    sockaddr_in local{};
    local.sin_family = AF_INET;
    local.sin_port = htons(port);
    if (fd < 0 || ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer) != 0 ||
        ::bind(fd, reinterpret_cast<sockaddr const*>(&local), sizeof local) != 0 || ::listen(fd, 16) != 0)
        throw std::system_error{errno, std::system_category(), "listen"};
    return fd;
}

token_kind parse_kind(std::string_view name)
{
    if (name == "stock")
        return token_kind::stock;
    if (name == "xarray")
        return token_kind::xarray;
    if (name == "array")
        return token_kind::array;
    throw std::invalid_argument{fmt::format("'{}': no kind of tokens", name)};
}

void run_round(std::string_view kind, series const& what, int listener, std::deque<bench::sender>& senders,
               unsigned number)
{
    // Segments that do not fill a large page share it.
    bench::set_arrival({.segmented = what.segmented, .packed = what.segmented && what.page_size != 4096});
    auto label = fmt::format("tokens={} page={} fragment={} flows={} control={} round={}", kind, what.page_size,
                             what.segmented ? "segment" : "page", what.flows, what.control, number);
    bench::round one{std::move(label), what, number};
    one.fill(listener, senders);
    one.drain(kind == "array");
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

std::vector<series> make_profiled_series(std::uint32_t page_size)
{
    if (page_size != 4096)
        return {};
    return {make_series(page_size, false, 4, bench::whole_control, {128, 128, 128})};
}

using make_series_of = std::vector<series> (*)(std::uint32_t page_size);

void run(unsigned rounds, make_series_of series_of, std::vector<std::string> const& kinds)
{
    std::deque<bench::sender> senders;
    for (int i = 0; i < 4; ++i)
        senders.emplace_back("peer");
    bench::split_headers();
    int const listener = listen_with_large_buffer();
    // Round 0 warms up: nobody counts it.
    for (unsigned number = 0; number <= rounds; ++number) {
        calibrate();
        for (std::string const& kind : kinds) {
            for (std::uint32_t const page_size : {4096u, 65536u}) {
                bench::bound_memory const memory{page_size == 4096 ? memory_4k : memory_64k, page_size,
                                                 parse_kind(kind)};
                for (series const& what : series_of(page_size))
                    run_round(kind, what, listener, senders, number);
            }
            fmt::print("done round={} tokens={}\n", number, kind);
            std::fflush(stdout);
        }
    }
}

}  // namespace

int main(int argc, char** argv)
try {
    std::string_view const what = argc < 4 ? "" : argv[2];
    if (what != "all" && what != "profile")
        throw std::invalid_argument{"usage: tokens_bench ROUNDS all|profile KIND..."};
    run(static_cast<unsigned>(std::atoi(argv[1])), what == "all" ? make_all_series : make_profiled_series,
        {argv + 3, argv + argc});
    return 0;
} catch (std::exception const& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "tokens: %s\n", error.what());
    return 1;
}
