// SPDX-License-Identifier: Apache-2.0
//
// What one connection's life costs, from async_connect to the removal of its rule, beside others that stand. Run it in
// the lab with --exact, where a nanosecond of CPU time is one guest instruction.
//
//   connect_bench ROUNDS STANDING...
//
// Prints one line per round: `sample STANDING INSTRUCTIONS ETHTOOL NETLINK JOURNAL SYNCS`,
// each of connections_per_round.
#include <sys/socket.h>
#include <time.h>

#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <gpurx/gpurx.hpp>

#include "calls.hpp"
#include "listener.hpp"
#include "session/session_state.hpp"

namespace asio = boost::asio;

namespace {

constexpr int connections_per_round = 10;
constexpr unsigned most_flows = 1010;
constexpr std::size_t memory_size = std::size_t{320} << 20;

std::uint64_t cpu_time()
{
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

class bench_session {
  public:
    explicit bench_session(asio::ip::tcp::endpoint peer)
        : peer_{peer},
          session_{{.interface = "dms0", .transport = gpurx::transport::devmem, .max_flows = most_flows},
                   gpurx::device_memory::on_host(memory_size)}
    {}

    void stand(std::size_t count)
    {
        while (flows_.size() < count)
            flows_.push_back(connect());
        settle();
    }
    // Connections that come and go, one after the other.
    void turn_over()
    {
        for (int i = 0; i < connections_per_round; ++i)
            connect().close();
        settle();
    }

  private:
    gpurx::receiver connect()
    {
        gpurx::receiver rx{io_, session_};
        gpurx::error_code outcome;
        rx.async_connect(peer_, [&outcome](gpurx::error_code code) { outcome = code; });
        io_.restart();
        io_.run();
        if (outcome)
            throw gpurx::system_error{outcome, rx.why()};
        return rx;
    }
    // Returns when all rules that are to go are gone.
    void settle() const
    {
        gpurx::detail::session_access::state(session_)->worker()->run([] {});
    }

    asio::ip::tcp::endpoint peer_;
    asio::io_context io_{1};
    gpurx::rx_session session_;
    std::deque<gpurx::receiver> flows_;
};

void run(int rounds, int count, char** standing)
{
    bench::listener const listener{"peer", "10.77.0.2", 9200};
    bench_session session{{asio::ip::make_address("10.77.0.2"), 9200}};
    for (int i = 0; i < count; ++i) {
        session.stand(std::strtoul(standing[i], nullptr, 10));
        session.turn_over();  // warms up
        for (int round = 0; round < rounds; ++round) {
            auto const before = bench::calls_so_far();
            auto const start = cpu_time();
            session.turn_over();
            auto const instructions = cpu_time() - start;
            auto const made = bench::calls_so_far() - before;
            std::printf("sample %s %llu %llu %llu %llu %llu\n", standing[i],
                        static_cast<unsigned long long>(instructions), static_cast<unsigned long long>(made.ethtool),
                        static_cast<unsigned long long>(made.netlink), static_cast<unsigned long long>(made.journal),
                        static_cast<unsigned long long>(made.syncs));
            std::fflush(stdout);
        }
    }
}

}  // namespace

int main(int argc, char** argv)
{
    if (argc < 3) {
        std::fputs("usage: connect_bench ROUNDS STANDING...\n", stderr);
        return 2;
    }
    try {
        run(std::atoi(argv[1]), argc - 2, argv + 2);
    } catch (std::exception const& failure) {
        std::fprintf(stderr, "connect_bench: %s\n", failure.what());
        return 1;
    }
    return 0;
}
