// SPDX-License-Identifier: Apache-2.0
//
// What gpurx costs on top of a hand-written C loop: the CPU time of this process for the same bytes, received by one
// and the other in turn. Run it in the lab with --exact, where a nanosecond of CPU time is one guest instruction.
//
// Prints one line per sample: `sample LOOP TRAFFIC INSTRUCTIONS FRAGMENTS RECEIVE_CALLS RELEASE_CALLS ALLOCATIONS`.
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <gpurx/gpurx.hpp>
#include <new>
#include <string_view>
#include <system_error>

#include "baseline.h"
#include "sender.hpp"

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

struct traffic {
    char const* name;
    std::uint64_t bytes;
    std::uint64_t chunk;
    std::uint64_t pause_microseconds;
    bool wait_until_queued;  // all bytes are in the socket before the first is received
};

// queued: nothing but recvmsg and release. paced: one 64 KiB write at a time, so that each has its wait.
constexpr traffic traffics[] = {
    {"queued", 8u << 20, 8u << 20, 0, true},
    {"paced", 8u << 20, 64u << 10, 3000, false},
};

struct sample {
    std::uint64_t instructions = 0;
    std::uint64_t fragments = 0;
    std::uint64_t receive_calls = 0;
    std::uint64_t release_calls = 0;
    std::uint64_t allocations = 0;
};

std::uint64_t cpu_time()
{
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

void check(int result, char const* what)
{
    if (result != 0)
        throw std::system_error{errno, std::system_category(), what};
}

void wait_until_queued(int socket, std::uint64_t bytes)
{
    for (int queued = 0; static_cast<std::uint64_t>(queued) < bytes;) {
        ::usleep(20'000);
        check(::ioctl(socket, SIOCINQ, &queued), "SIOCINQ");
    }
    ::usleep(50'000);  // the last acknowledgements
}

class round {
  public:
    round(bench::sender& from, asio::io_context& io, gpurx::rx_session& session, asio::ip::tcp::acceptor& acceptor,
          traffic const& what)
        : from_{from}, io_{io}, session_{session}, what_{what}
    {
        auto const local = acceptor.local_endpoint();
        from_.connect(local.address().to_string(), local.port());
        accepted_ = acceptor.accept();
        accepted_.non_blocking(true);
    }
    round(round const&) = delete;
    round& operator=(round const&) = delete;
    ~round() { from_.close(); }

    sample with_baseline()
    {
        baseline loop;
        check(baseline_open(&loop, accepted_.native_handle()), "baseline_open");
        check(warm_up([&](std::uint64_t bytes) { return baseline_run(&loop, bytes); }), "baseline_run");
        sample before = read(loop);
        start(accepted_.native_handle());
        sample result = measure([&] { check(baseline_run(&loop, what_.bytes), "baseline_run"); });
        result.fragments = loop.fragments - before.fragments;
        result.receive_calls = loop.receive_calls - before.receive_calls;
        result.release_calls = loop.release_calls - before.release_calls;
        if (loop.host_bytes != 0)
            throw std::runtime_error{"the baseline received bytes in host memory"};
        baseline_close(&loop);
        return result;
    }

    sample with_gpurx()
    {
        gpurx::receiver receiver{io_, session_, std::move(accepted_)};
        auto const run = [&](std::uint64_t bytes) {
            remaining_ = bytes;
            receive(receiver);
            io_.restart();
            io_.run();
            return 0;
        };
        warm_up(run);
        gpurx::stats const before = receiver.stats();
        start(receiver.native_handle());
        sample result = measure([&] { run(what_.bytes); });
        gpurx::stats const after = receiver.stats();
        result.fragments = after.fragments - before.fragments;
        result.receive_calls = after.receive_calls - before.receive_calls;
        result.release_calls = after.release_calls - before.release_calls;
        if (after.device_bytes != after.bytes())
            throw std::runtime_error{"gpurx received bytes in host memory"};
        return result;
    }

  private:
    template <class Run>
    int warm_up(Run run)
    {
        constexpr std::uint64_t bytes = 1u << 20;
        from_.send(bytes, 64u << 10, 1000);
        return run(bytes);
    }

    void start(int socket)
    {
        from_.send(what_.bytes, what_.chunk, what_.pause_microseconds);
        if (what_.wait_until_queued)
            wait_until_queued(socket, what_.bytes);
    }

    template <class Run>
    static sample measure(Run run)
    {
        sample result;
        std::uint64_t const allocated = allocations.load();
        std::uint64_t const start = cpu_time();
        run();
        result.instructions = cpu_time() - start;
        result.allocations = allocations.load() - allocated;
        return result;
    }

    static sample read(baseline const& loop)
    {
        return {.fragments = loop.fragments, .receive_calls = loop.receive_calls, .release_calls = loop.release_calls};
    }

    void receive(gpurx::receiver& receiver)
    {
        receiver.async_receive([this, &receiver](gpurx::error_code code, gpurx::rx_buffer loan) {
            if (code)
                throw boost::system::system_error{code, "async_receive"};
            remaining_ -= loan.size();
            loan.release();
            if (remaining_ > 0)
                receive(receiver);
        });
    }

    bench::sender& from_;
    asio::io_context& io_;
    gpurx::rx_session& session_;
    traffic const& what_;
    asio::ip::tcp::socket accepted_{io_};
    std::uint64_t remaining_ = 0;
};

void print(char const* loop, traffic const& what, sample const& result)
{
    std::printf("sample %s %s %llu %llu %llu %llu %llu\n", loop, what.name,
                static_cast<unsigned long long>(result.instructions), static_cast<unsigned long long>(result.fragments),
                static_cast<unsigned long long>(result.receive_calls),
                static_cast<unsigned long long>(result.release_calls),
                static_cast<unsigned long long>(result.allocations));
    std::fflush(stdout);
}

void run(int rounds)
{
    bench::sender from{"peer"};
    gpurx::rx_session session{{.interface = "dms0", .transport = gpurx::transport::devmem, .max_flows = 1},
                              gpurx::device_memory::on_host(64u << 20)};
    asio::io_context io{1};
    asio::ip::tcp::acceptor acceptor{io};
    acceptor.open(asio::ip::tcp::v4());
    acceptor.bind({asio::ip::make_address("10.77.0.1"), 9099});
    session.steer(acceptor);
    acceptor.listen();

    for (int i = 0; i < rounds; ++i) {
        for (traffic const& what : traffics) {
            print("c", what, round{from, io, session, acceptor, what}.with_baseline());
            print("gpurx", what, round{from, io, session, acceptor, what}.with_gpurx());
        }
    }
}

}  // namespace

int main(int argc, char** argv)
try {
    run(argc > 1 ? std::atoi(argv[1]) : 7);
    return 0;
} catch (std::exception const& error) {
    std::fprintf(stderr, "overhead: %s\n", error.what());
    return 1;
}
