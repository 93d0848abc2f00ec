// SPDX-License-Identifier: Apache-2.0
//
// What gpurx costs on top of a hand-written C loop: the CPU time of this process for the same bytes, received by one
// and the other in turn. Run it in the lab with --exact, where a nanosecond of CPU time is one guest instruction.
//
//   overhead_bench ROUNDS TRANSPORT
//
// TRANSPORT: devmem compares the library with a C loop on devmem; zcrx adds both on io_uring, releases, and latencies.
// Prints one line per sample:
//   sample LOOP TRAFFIC INSTRUCTIONS FRAGMENTS RECEIVE_CALLS RELEASE_CALLS ALLOCATIONS
//   release LOOP INSTRUCTIONS  of the library's calls that give the pages of queued traffic back
//   latency LOOP NANOSECONDS   the median of a round, from the write of the sender to the end of the loop's call
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <gpurx/gpurx.hpp>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "../tokens/receive_queue.hpp"
#include "loops.hpp"
#include "sender.hpp"
#include "zcrx_nic.hpp"

namespace asio = boost::asio;

namespace {

std::atomic<std::uint64_t> allocations{0};

}  // namespace

void* operator new(std::size_t size)
{
    allocations.fetch_add(1, std::memory_order_relaxed);
    if (void* memory = std::malloc(size))
        return memory;
    throw std::bad_alloc{};
}
// Not inlined: where they are, the compiler sees free() meet operator new and warns.
[[gnu::noinline]] void operator delete(void* memory) noexcept
{
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept
{
    std::free(memory);
}

namespace {

constexpr std::size_t memory_bytes = 64u << 20;

struct traffic {
    char const* name;
    std::uint64_t bytes;
    std::uint64_t chunk;
    std::uint64_t pause_microseconds;
    bool wait_until_queued;  // all bytes are in the socket before the first is received
};

// queued: nothing but receive and release. paced: one 64 KiB write at a time, so that each has its wait.
constexpr traffic traffics[] = {
    {"queued", 8u << 20, 8u << 20, 0, true},
    {"paced", 8u << 20, 64u << 10, 3000, false},
};
constexpr traffic messages{"messages", 50 * 4096, 4096, 20'000, false};

std::uint64_t cpu_time()
{
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

// One connection of the sender, and what came through it before anything is measured.
class connection {
  public:
    connection(bench::sender& from, asio::ip::tcp::acceptor& acceptor)
        : from_{from}, accepted_{connect(from, acceptor)}, socket_{accepted_.native_handle()}
    {
        accepted_.non_blocking(true);
    }
    connection(connection const&) = delete;
    connection& operator=(connection const&) = delete;
    ~connection() { from_.close(); }

    void start(traffic const& what)
    {
        from_.send(what.bytes, what.chunk, what.pause_microseconds);
        if (what.wait_until_queued) {
            bench::wait_until_queued(socket_, what.bytes);
            ::usleep(50'000);  // the last acknowledgements
        }
    }
    [[nodiscard]] int socket() const noexcept { return socket_; }
    // Once. The number of the socket stays.
    [[nodiscard]] asio::ip::tcp::socket take() { return std::move(accepted_); }

  private:
    static asio::ip::tcp::socket connect(bench::sender& from, asio::ip::tcp::acceptor& acceptor)
    {
        auto const local = acceptor.local_endpoint();
        from.connect(local.address().to_string(), local.port());
        return acceptor.accept();
    }

    bench::sender& from_;
    asio::ip::tcp::socket accepted_;
    int socket_;
};

template <class Loop>
void warm_up(connection& through, Loop& loop)
{
    constexpr traffic what{"warm up", 1u << 20, 64u << 10, 1000, false};
    through.start(what);
    loop.run(what.bytes);
}

template <class Loop>
void measure(char const* name, traffic const& what, connection& through, Loop& loop)
{
    warm_up(through, loop);
    auto const before = loop.counts();
    through.start(what);
    std::uint64_t const allocated = allocations.load();
    std::uint64_t const start = cpu_time();
    loop.run(what.bytes);
    std::uint64_t const taken = cpu_time() - start;
    auto const after = loop.counts();
    fmt::print("sample {} {} {} {} {} {} {}\n", name, what.name, taken, after.fragments - before.fragments,
               after.receive_calls - before.receive_calls, after.release_calls - before.release_calls,
               allocations.load() - allocated);
    std::fflush(stdout);
}

void measure_release(char const* name, connection& through, bench::gpurx_loop& loop)
{
    through.start(traffics[0]);
    fmt::print("release {} {}\n", name, loop.run_and_clock_releases(traffics[0].bytes));
}

template <class Loop>
void measure_latency(char const* name, bench::sender const& from, connection& through, Loop& loop)
{
    warm_up(through, loop);
    std::vector<std::uint64_t> latencies(messages.bytes / messages.chunk);
    through.start(messages);
    for (std::size_t i = 0; i < latencies.size(); ++i) {
        loop.run(messages.chunk);
        latencies[i] = bench::monotonic_time() - from.time_of_write(i);
    }
    std::nth_element(latencies.begin(), latencies.begin() + latencies.size() / 2, latencies.end());
    fmt::print("latency {} {}\n", name, latencies[latencies.size() / 2]);
    std::fflush(stdout);
}

// Runs loops of one kind after another: each at a connection of its own for each traffic of each round.
class bed {
  public:
    bed(int rounds, bool in_depth) : rounds_{rounds}, in_depth_{in_depth} {}

    void zcrx()
    {
        int buffer = 0;
        for (std::uint32_t const page : {65536, 4096}) {
            auto session = open(gpurx::transport::zcrx, page);
            auto acceptor = listen();
            session.steer(acceptor);
            buffer = session.receive_buffer_size();
            run(page == 4096 ? "zcrx-gpurx" : "zcrx-gpurx-64k", acceptor, [&](connection& at) {
                return bench::gpurx_loop{io_, session, at.take()};
            });
        }
        bench::zcrx_nic nic{bench::port, memory_bytes};
        auto acceptor = listen();
        // As the session has it
        if (::setsockopt(acceptor.native_handle(), SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer) != 0)
            throw std::system_error{errno, std::system_category(), "SO_RCVBUFFORCE"};
        run("zcrx-c", acceptor, [&](connection& at) { return bench::zcrx_c_loop{nic.ring(), at.socket()}; });
    }
    // Both, as the session prepares the NIC for the loop in C as well.
    void devmem()
    {
        auto session = open(gpurx::transport::devmem);
        auto acceptor = listen();
        session.steer(acceptor);
        run("devmem-c", acceptor, [&](connection& at) { return bench::devmem_c_loop{at.socket()}; });
        run("devmem-gpurx", acceptor, [&](connection& at) { return bench::gpurx_loop{io_, session, at.take()}; });
    }

  private:
    static gpurx::rx_session open(gpurx::transport transport, std::uint32_t page_size = 4096)
    {
        return {{.interface = bench::interface, .transport = transport, .rx_page_size = page_size, .max_flows = 1},
                gpurx::device_memory::on_host(memory_bytes)};
    }
    asio::ip::tcp::acceptor listen() { return {io_, {asio::ip::make_address("10.77.0.1"), bench::port}}; }
    template <class Make>
    void run(char const* name, asio::ip::tcp::acceptor& acceptor, Make make)
    {
        for (int i = 0; i < rounds_; ++i) {
            for (traffic const& what : traffics) {
                connection at{from_, acceptor};
                auto loop = make(at);
                measure(name, what, at, loop);
            }
            if (in_depth_) {
                connection at{from_, acceptor};
                auto loop = make(at);
                measure_latency(name, from_, at, loop);
                if constexpr (std::is_same_v<decltype(loop), bench::gpurx_loop>)
                    measure_release(name, at, loop);
            }
        }
    }

    int rounds_;
    bool in_depth_;
    bench::sender from_{"peer"};
    asio::io_context io_{1};
};

void run(int rounds, std::string_view transport)
{
    bool const zcrx = transport == "zcrx";
    bed all{rounds, zcrx};
    if (zcrx)
        all.zcrx();
    all.devmem();
}

}  // namespace

int main(int argc, char** argv)
try {
    if (argc != 3)
        throw std::invalid_argument{"usage: overhead_bench ROUNDS TRANSPORT"};
    // A sender that has failed has said why.
    static_cast<void>(std::signal(SIGPIPE, SIG_IGN));
    run(std::atoi(argv[1]), argv[2]);
    return 0;
} catch (std::exception const& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "overhead: %s\n", error.what());
    return 1;
}
