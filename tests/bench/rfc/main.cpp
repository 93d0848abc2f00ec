// SPDX-License-Identifier: Apache-2.0
//
// What it costs to receive into device memory and to give the pages back, in several ways. Run by rfc.py, in the lab
// with --exact, where a nanosecond of CPU time is one guest instruction.
//
//   rfc_bench ROUNDS KIND
//
// KIND: setsockopt, zcrx; with the prototypes of kernel-support/linux-7.3/rfc also netlink, netlink-ack, ring, runs
// (setsockopt, one cmsg for pages that follow each other). Prints lines of key=value; the first word says of what:
//   sample   one round of one traffic: CPU time of this process, and what it did
//   return   all pages of one round given back in calls of one size, by the clock around them
//   refill   pages of a ring that the NIC took while nobody received
//   memory   what the kernel and the process have taken when all is set up and nothing has come
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "../overhead/sender.hpp"
#include "../tokens/bound_nic.hpp"
#include "../tokens/receive_queue.hpp"
#include "drain.h"

namespace {

constexpr std::size_t memory_bytes = 48u << 20;
constexpr std::uint64_t largest_packet = 45 * 1448;  // what TCP gives the NIC in one piece

struct traffic {
    char const* name;
    std::uint64_t bytes;  // of all flows
    std::uint64_t chunk;
    std::uint64_t pause_microseconds;
    bool wait_until_queued;  // all bytes are in the sockets before the first is received
};

// queued: nothing but receive and give back. paced: one 64 KiB write at a time, so that each has its wait.
constexpr std::array traffics{
    traffic{"queued", 256 * largest_packet, 256 * largest_packet, 0, true},
    traffic{"paced", 8u << 20, 64u << 10, 3000, false},
};

void check(bool good, char const* what)
{
    if (!good)
        throw std::system_error{errno, std::system_category(), what};
}

std::uint64_t cpu_time()
{
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

long sleeps()
{
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return used.ru_nvcsw;
}

class connections {
  public:
    connections(int listener, std::deque<bench::sender>& senders, unsigned count) : senders_{senders}, count_{count}
    {
        for (unsigned i = 0; i < count; ++i) {
            senders_.at(i).connect("10.77.0.1", bench::port);
            fds_.emplace_back(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
            check(fds_.back().get() >= 0, "accept");
            sockets_.at(i) = fds_.back().get();
        }
    }
    connections(connections const&) = delete;
    connections& operator=(connections const&) = delete;
    ~connections()
    {
        for (unsigned i = 0; i < count_; ++i)
            senders_.at(i).close();
    }

    void send(traffic const& what)
    {
        std::uint64_t const bytes = what.bytes / count_;
        for (unsigned i = 0; i < count_; ++i)
            senders_.at(i).send(bytes, std::min(what.chunk, bytes), what.pause_microseconds);
        for (unsigned i = 0; what.wait_until_queued && i < count_; ++i)
            bench::wait_until_queued(sockets_.at(i), bytes);
        if (what.wait_until_queued)
            ::usleep(50'000);  // the last acknowledgements
    }
    [[nodiscard]] int const* sockets() const { return sockets_.data(); }

  private:
    std::deque<bench::sender>& senders_;
    unsigned count_;
    std::vector<gpurx::detail::unique_fd> fds_;
    std::array<int, most_flows> sockets_{};
};

return_way way_of(std::string_view kind)
{
    static std::map<std::string_view, return_way> const ways{{"setsockopt", by_setsockopt},
                                                             {"runs", by_setsockopt},
                                                             {"netlink", by_netlink},
                                                             {"netlink-ack", by_netlink_ack},
                                                             {"ring", by_ring}};
    auto const found = ways.find(kind);
    if (found == ways.end())
        throw std::invalid_argument{fmt::format("'{}': no way to give pages back", kind)};
    return found->second;
}

struct place {
    std::string_view kind;
    int listener;
    std::deque<bench::sender>& senders;
    zcrx_loop* zcrx;  // if it is that kind
};

template <class Run>
drain_counts measure(place const& where, traffic const& what, unsigned flows, unsigned round, Run run)
{
    long const slept = sleeps();
    std::uint64_t const start = cpu_time();
    drain_counts const counts = run();
    std::uint64_t const taken = cpu_time() - start;
    fmt::print(
        "sample kind={} traffic={} flows={} round={} instructions={} fragments={} pages={} bytes={} calls={} "
        "sleeps={}\n",
        where.kind, what.name, flows, round, taken, counts.fragments, counts.pages, what.bytes, counts.system_calls,
        sleeps() - slept);
    std::fflush(stdout);
    return counts;
}

void drain(place const& where, traffic const& what, unsigned flows, unsigned round)
{
    connections peers{where.listener, where.senders, flows};
    std::uint64_t const bytes = what.bytes / flows;
    if (where.zcrx) {
        peers.send(what);
        measure(where, what, flows, round, [&] {
            where.zcrx->counts = {};
            check(zcrx_run(where.zcrx, peers.sockets(), flows, bytes) == 0, "zcrx_run");
            return where.zcrx->counts;
        });
        if (where.zcrx->rearmed != 0)
            throw std::runtime_error{"the completion ring was too small"};
        return;
    }
    cmsg_loop loop;
    check(cmsg_open(&loop, way_of(where.kind), peers.sockets(), flows) == 0, "cmsg_open");
    peers.send(what);
    measure(where, what, flows, round, [&] {
        check(cmsg_run(&loop, bytes) == 0, "cmsg_run");
        return loop.counts;
    });
    cmsg_close(&loop);
}

// Takes all that is queued and gives nothing back.
std::vector<std::uint32_t> take_tokens(int socket, std::uint64_t bytes)
{
    std::vector<std::uint32_t> tokens;
    for (fragment_list list; bytes != 0;) {
        ssize_t const received = receive_tokens(socket, &list);
        check(received > 0, "recvmsg");
        bytes -= static_cast<std::uint64_t>(received);
        tokens.insert(tokens.end(), list.tokens, list.tokens + list.count);
    }
    return tokens;
}

// A receive that finds nothing: what a ring that is drained there adds to it.
std::uint64_t empty_receive(int socket)
{
    fragment_list list;
    std::uint64_t const start = __rdtsc();
    ssize_t const received = receive_tokens(socket, &list);
    std::uint64_t const taken = __rdtsc() - start;
    check(received < 0 && errno == EAGAIN, "recvmsg of nothing");
    return taken;
}

struct returned {
    std::uint64_t instructions = 0, drained = 0, idle = 0;
    unsigned calls = 0;
};

void give_back(returner& by, int socket, std::uint32_t const* tokens, unsigned count, returned& sum)
{
    std::uint64_t const start = __rdtsc();
    for (unsigned i = 0; i < count; ++i)
        check(return_add(&by, 0, socket, {tokens[i], 1}) == 0, "return_add");
    check(return_flush(&by, 0, socket) == 0, "return_flush");
    sum.instructions += __rdtsc() - start;
    ++sum.calls;
    if (by.way != by_ring)
        return;
    sum.drained += empty_receive(socket);
    sum.idle += empty_receive(socket);
}

// What is queued is given back in up to 64 calls of one size, and the rest without being counted.
void return_in_batches(place const& where, unsigned batch, bool separate, unsigned round)
{
    connections peers{where.listener, where.senders, 1};
    int const socket = peers.sockets()[0];
    returner by;
    check(return_open(&by, way_of(where.kind), peers.sockets(), 1) == 0, "return_open");
    by.separate = separate;
    peers.send(traffics[0]);
    std::vector<std::uint32_t> tokens = take_tokens(socket, traffics[0].bytes);
    if (!separate)
        std::sort(tokens.begin(), tokens.end());
    returned sum, rest;
    std::size_t at = 0;
    for (; at + batch <= tokens.size() && sum.calls < 64; at += batch)
        give_back(by, socket, &tokens[at], batch, sum);
    std::uint64_t const system_calls = by.system_calls;
    for (; at < tokens.size(); ++at)
        give_back(by, socket, &tokens[at], 1, rest);
    fmt::print(
        "return kind={} pages={} separate={} round={} instructions={} drained={} idle={} calls={} system_calls={}\n",
        where.kind, batch, int{separate}, round, sum.instructions, sum.drained, sum.idle, sum.calls, system_calls);
    return_close(&by);
}

// More than the memory holds comes through a socket that does not receive meanwhile: the pages have to be taken from
// the ring when the NIC needs them.
void prove_refill(place const& where)
{
    traffic const what{"dry", 64u << 20, 64u << 20, 0, false};
    static_assert(memory_bytes < 64u << 20);
    connections peers{where.listener, where.senders, 1};
    int const socket = peers.sockets()[0];
    returner by;
    check(return_open(&by, by_ring, peers.sockets(), 1) == 0, "return_open");
    peers.send(what);
    bench::wait_until_queued(socket, what.bytes / 2);
    std::uint64_t left = what.bytes;
    std::vector<std::uint32_t> tokens;
    for (fragment_list list; left > what.bytes / 2;) {
        ssize_t const received = receive_tokens(socket, &list);
        check(received > 0, "recvmsg");
        left -= static_cast<std::uint64_t>(received);
        tokens.insert(tokens.end(), list.tokens, list.tokens + list.count);
    }
    for (std::uint32_t const token : tokens)
        check(return_add(&by, 0, socket, {token, 1}) == 0, "return_add");
    check(return_flush(&by, 0, socket) == 0, "return_flush");
    bench::wait_until_queued(socket, left);
    fmt::print("refill kind={} pages={}\n", where.kind, tokens.size());
    return_close(&by);
}

void run_round(place const& where, unsigned round)
{
    for (unsigned const flows : {1u, 4u})
        for (traffic const& what : traffics)
            drain(where, what, flows, round);
    if (where.zcrx || where.kind == "runs")
        return;
    for (unsigned const batch : {1u, 32u, 128u, 1024u})
        for (bool const separate : {true, false})
            return_in_batches(where, batch, separate, round);
}

std::uint64_t available_memory()
{
    std::ifstream file{"/proc/meminfo"};
    std::string name, unit;
    for (std::uint64_t value = 0; file >> name >> value; std::getline(file, unit))
        if (name == "MemFree:")
            return value;
    throw std::runtime_error{"/proc/meminfo"};
}

void prototype(char const* name)
{
    std::ofstream file{std::string{"/sys/module/devmem_rfc/parameters/"} + name};
    check(static_cast<bool>(file << 1 << std::flush), name);
}

void run(unsigned rounds, std::string_view kind)
{
    std::deque<bench::sender> senders;
    for (unsigned i = 0; i < most_flows; ++i)
        senders.emplace_back("peer");
    bench::split_headers();
    bench::dmabuf const memory{bench::memory_kind::contiguous, memory_bytes};
    if (kind == "runs")
        prototype("runs");
    zcrx_loop ring;
    std::unique_ptr<gpurx::detail::rx_binding> binding;
    std::uint64_t const before = available_memory();
    if (kind == "zcrx") {
        zcrx_queue const where{bench::interface, bench::queue, memory.fd(), memory.size()};
        check(zcrx_open(&ring, &where) == 0, "zcrx_open");
        fmt::print("memory kind={} taken={} rings={} refill={}\n", kind, before - available_memory(),
                   (ring.rings_size + ring.submissions_size) / 1024, ring.refill_size / 1024);
    } else {
        binding = bench::bind(memory, 4096, false);
        fmt::print("memory kind={} taken={} rings=0 refill=0\n", kind, before - available_memory());
    }
    place const where{kind, bench::listen_with_large_buffer(), senders, kind == "zcrx" ? &ring : nullptr};
    if (kind == "ring")
        prove_refill(where);
    // Round 0 warms up: nobody counts it.
    for (unsigned number = 0; number <= rounds; ++number)
        run_round(where, number);
    if (where.zcrx)
        zcrx_close(&ring);
}

}  // namespace

int main(int argc, char** argv)
try {
    if (argc != 3)
        throw std::invalid_argument{"usage: rfc_bench ROUNDS KIND"};
    // A sender that has failed has said why.
    static_cast<void>(std::signal(SIGPIPE, SIG_IGN));
    run(static_cast<unsigned>(std::atoi(argv[1])), argv[2]);
    return 0;
} catch (std::exception const& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "rfc: %s\n", error.what());
    return 1;
}
