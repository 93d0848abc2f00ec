// SPDX-License-Identifier: Apache-2.0
//
// Where the pages of a memory are, as a session tells it, on a real pool: under every fault of the software NIC parts
// add up and agree with what the kernel says; and a ring that takes the memory is refused, or said.
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "bed.hpp"
#include "eventually.hpp"
#include "nic.hpp"
#ifdef GPURX_LAB_HAS_GPU
#include "../gpu/bed.hpp"
#endif

using namespace gpurx::lab;
using Catch::Matchers::ContainsSubstring;
using gpurx::test::eventually;

namespace {

constexpr std::size_t pool_memory = 8 * mebibyte;
constexpr std::uint64_t ring = 128;

std::uint64_t held(gpurx::pool_stats const& said)
{
    return said.on_loan + said.parked + said.in_reads;
}

// What holds of every account, whatever happens.
gpurx::pool_stats account_of(gpurx::rx_session const& session)
{
    auto const said = session.pool_stats();
    REQUIRE(said);
    INFO(session.explain());
    CHECK(said->pages == pool_memory / 4096);
    CHECK(said->free + said->in_ring + said->in_queues + held(*said) == said->pages);
    CHECK(said->ring_demand == ring);
    // While packets come the ring lacks those that wait to be posted anew.
    CHECK(said->in_ring <= ring);
    std::uint64_t of_flows = 0;
    for (auto const& flow : said->flows)
        of_flows += flow.on_loan + flow.parked + flow.in_reads;
    CHECK(of_flows == held(*said));
    CHECK(said->high_water >= said->pages - said->free);
    return *said;
}

// One line of the adding-up.
void print_row(std::string_view fault, unsigned value, gpurx::pool_stats const& said)
{
    fmt::print("{:>12} {:>5}: {:>4} + {:>4} + {:>5} + {:>4} + {:>6} + {:>5} = {:>5}; {:>10} {:>8} {:>5}\n", fault,
               value, said.free, said.in_ring, said.in_queues, said.on_loan, said.parked, said.in_reads, said.pages,
               said.high_water, said.allocation_failures.value(), said.drops.value());
}

// Connections to this port of which all that is ever sent has come, in order, and waits to be received: their peers
// have ended them, they themselves have not (CLOSE_WAIT).
unsigned whole_connections(unsigned port)
{
    std::ifstream file{"/proc/net/tcp"};
    unsigned found = 0;
    auto const end = fmt::format(":{:04X}", port);
    std::string number;
    std::string local;
    std::string remote;
    std::string state;
    for (std::string line; std::getline(file, line);) {
        std::istringstream{line} >> number >> local >> remote >> state;
        found += local.ends_with(end) && state == "08" ? 1 : 0;
    }
    return found;
}

// A flow that lends for a while without giving back, and one beside it that reads; what is held is counted while both
// stand still.
class two_flows {
  public:
    two_flows(gpurx::rx_session& session, std::uint64_t bytes)
        : session_{session},
          acceptor_{listen_on(session, context_.get_executor(), family::v4)},
          lent_to_{acceptor_.local_endpoint(), {71, bytes}}
    {
        lends_.emplace(context_, session, acceptor_.accept());
        read_by_.emplace(acceptor_.local_endpoint(), stream{72, bytes});
        reads_.emplace(context_, session, acceptor_.accept());
    }

    // Receives so many bytes into loans that stay.
    void lend(std::size_t bytes)
    {
        asio::co_spawn(
            context_,
            [&]() -> asio::awaitable<void> {
                for (std::size_t so_far = 0; so_far < bytes;) {
                    auto [error, loan] = co_await lends_->async_receive(token);
                    if (error == asio::error::eof)  // on a slow machine a loan is all that has come meanwhile
                        co_return;
                    REQUIRE_FALSE(error);
                    so_far += loan.size();
                    loans_.push_back(std::move(loan));
                }
            },
            rethrow);
        run();
    }
    void read(std::size_t bytes)
    {
        asio::co_spawn(
            context_,
            [&]() -> asio::awaitable<void> {
                std::vector<std::byte> landing(bytes);
                auto const [error, size] =
                    co_await async_read(*reads_, gpurx::host_span{landing.data(), landing.size()}, token);
                REQUIRE_FALSE(error);
            },
            rethrow);
        run();
    }
    [[nodiscard]] bool all_waits() const { return whole_connections(acceptor_.local_endpoint().port()) == 2; }
    void give_back(std::size_t loans)
    {
        loans_.erase(loans_.begin(), loans_.begin() + static_cast<std::ptrdiff_t>(std::min(loans, loans_.size())));
    }
    // The same, once the stream has passed.
    void give_back_after(gpurx::cuda_stream_ref stream, std::size_t loans)
    {
        for (std::size_t i = 0; i < std::min(loans, loans_.size()); ++i) {
            auto const pieces = loans_[i].fragments();
            parked_.insert(parked_.end(), pieces.begin(), pieces.end());
            loans_[i].release_after(stream);
        }
        give_back(loans);
    }
    // Pages that lie in device memory, of all loans: each once.
    [[nodiscard]] std::uint64_t pages_lent() const { return pages_of(lent()); }
    // The same of those, too, that were given back after a stream.
    [[nodiscard]] std::uint64_t pages_lent_or_parked() const
    {
        auto pieces = lent();
        pieces.insert(pieces.end(), parked_.begin(), parked_.end());
        return pages_of(pieces);
    }

  private:
    [[nodiscard]] std::vector<gpurx::fragment> lent() const
    {
        std::vector<gpurx::fragment> pieces;
        for (auto const& loan : loans_)
            pieces.insert(pieces.end(), loan.fragments().begin(), loan.fragments().end());
        return pieces;
    }
    [[nodiscard]] std::uint64_t pages_of(std::vector<gpurx::fragment> const& pieces) const
    {
        auto const memory = session_.memory().span();
        std::vector<bool> seen(memory.size() / 4096);
        for (auto const& piece : pieces) {
            if (piece.address < memory.address() || piece.address >= memory.address() + memory.size())
                continue;
            auto const begin = piece.address - memory.address();
            for (auto page = begin / 4096; page <= (begin + piece.size - 1) / 4096; ++page)
                seen[page] = true;
        }
        return static_cast<std::uint64_t>(std::count(seen.begin(), seen.end(), true));
    }
    void run()
    {
        context_.restart();
        context_.run();
    }

    gpurx::rx_session& session_;
    asio::io_context context_{1};
    tcp::acceptor acceptor_;
    peer_sender lent_to_;
    std::optional<peer_sender> read_by_;
    std::optional<gpurx::receiver> lends_;
    std::optional<gpurx::receiver> reads_;
    std::vector<gpurx::rx_buffer> loans_;
    std::vector<gpurx::fragment> parked_;  // of loans that were given back after a stream
};

struct fault_row {
    char const* name;
    unsigned value;
};

constexpr fault_row rows[] = {
    {"drop", 37},       {"duplicate", 5}, {"reorder", 23},       {"delay_us", 2000},
    {"alloc_fail", 41}, {"corrupt", 29},  {"linear_bytes", 100}, {"linear_bytes", 65535},
    {"no_split", 7},    {"no_split", 1},  {"pack", 1},
};

// The account divides by subtraction what the kernel has. So what is said to wait in sockets is taken out of them,
// while nothing else comes: it has to be these pages that are missed there afterwards.
void check_what_waits(gpurx::rx_session& session)
{
    constexpr std::uint64_t bytes = 128 * 1024;
    two_flows flows{session, bytes};
    REQUIRE(eventually([&] { return flows.all_waits(); }));
    auto const before = account_of(session);
    CHECK(held(before) == 0);
    flows.lend(2 * bytes);
    auto const after = account_of(session);
    CHECK(after.on_loan == flows.pages_lent());
    CHECK(after.in_queues + flows.pages_lent() == before.in_queues);
    CHECK(after.free == before.free);
}

// The kernel's own list of page pools, read once more.
bool kernel_says_the_same(gpurx::rx_session const& session)
{
    return eventually([&] {
        auto const said = session.pool_stats();
        return said && said->in_ring == ring && pools_now().in_flight == said->pages - said->free;
    });
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "the pages of a memory add up under every fault of the NIC", "[faults][pool]")
{
    // Frames of the MTU's size, so that packed pages are shared by many loans.
    without_gro const frames{true, lab_transport() == gpurx::transport::zcrx};
    fmt::print("{:>18}: {:>4} + {:>4} + {:>5} + {:>4} + {:>6} + {:>5} = {:>5}; {:>10} {:>8} {:>5}\n", "fault", "free",
               "ring", "queue", "loan", "parked", "reads", "pages", "high water", "failures", "drops");
    for (auto const& [name, value] : rows) {
        CAPTURE(name, value);
        REQUIRE(pools_vanish());  // of the session before
        auto session = open_session(pool_memory, {.max_flows = 2, .loan_limit = 6 * mebibyte});
        auto const idle = account_of(session);
        CHECK(idle.free == idle.pages - ring);
        CHECK(idle.in_ring == ring);
        CHECK(idle.in_queues == 0);
        CHECK(idle.allocation_failures == 0U);
        CHECK(idle.overruns == 0U);
        nic_fault const fault{name, value};
        {
            two_flows flows{session, 2 * mebibyte};
            for (int turn = 0; turn < 4; ++turn) {
                flows.lend(200'000);
                flows.read(100'000);
                auto const said = account_of(session);
                CHECK(said.on_loan == flows.pages_lent());
                CHECK(said.parked == 0);
                if (turn == 3)
                    print_row(name, value, said);
                flows.give_back(3);
                CHECK(account_of(session).on_loan == flows.pages_lent());
            }
            CHECK(session.stats().release_shortfalls == 0);
        }
        check_what_waits(session);
        CHECK(kernel_says_the_same(session));
        CHECK(fault.injected() > 0);
        auto const after = account_of(session);
        CHECK(held(after) == 0);
        CHECK(after.flows.empty());
        if (std::string_view{name} == "alloc_fail")
            CHECK(after.allocation_failures > 0U);
    }
}

#ifdef GPURX_LAB_HAS_GPU
TEST_CASE_METHOD(unchanged_nic, "the pages add up under every fault, too, while a GPU's stream keeps some",
                 "[faults][pool][gpu]")
{
    auto& on = gpurx::test::gpu_or_skip();
    without_gro const frames{true, lab_transport() == gpurx::transport::zcrx};
    for (auto const& [name, value] : rows) {
        CAPTURE(name, value);
        gpurx::test::gpu_test_stream stream{on};
        auto session =
            open_session(gpurx::device_memory::on_gpu(0, pool_memory), {.max_flows = 2, .loan_limit = 6 * mebibyte});
        nic_fault const fault{name, value};
        two_flows flows{session, 2 * mebibyte};
        stream.hold();
        for (int turn = 0; turn < 3; ++turn) {
            flows.lend(200'000);
            flows.read(100'000);
            flows.give_back_after(stream.ref(), 3);
            auto const said = account_of(session);
            // What is on loan and parked, too, is on loan.
            CHECK(said.on_loan == flows.pages_lent());
            CHECK(said.on_loan + said.parked == flows.pages_lent_or_parked());
            // Where nothing was split nothing is in device memory.
            CHECK((said.parked > 0) == (flows.pages_lent_or_parked() > flows.pages_lent()));
            if (turn == 2)
                print_row(name, value, said);
        }
        stream.let_go();
        stream.finish();
        CHECK(eventually([&] { return session.pool_stats()->parked == 0; }));
        CHECK(account_of(session).on_loan == flows.pages_lent());
        CHECK(session.stats().release_shortfalls == 0);
    }
}
#endif

TEST_CASE_METHOD(unchanged_nic, "pool_stats() counts pages in sockets apart from pages in the ring", "[smoke][pool]")
{
    auto session = open_session(pool_memory, {.max_flows = 2});
    two_flows flows{session, 4 * mebibyte};
    // Nobody reads: sockets fill.
    CHECK(eventually([&] { return account_of(session).in_queues >= mebibyte / 4096; }));
    CHECK(eventually([&] { return account_of(session).in_ring == ring; }));
    auto const said = account_of(session);
    CHECK(held(said) == 0);
    CHECK(said.in_sockets > 0);
}

TEST_CASE_METHOD(unchanged_nic, "pool_stats() names loans as holders while they have most of the pages", "[pool]")
{
    auto session = open_session(pool_memory, {.max_flows = 2, .receive_memory = mebibyte, .loan_limit = 64 * mebibyte});
    two_flows flows{session, 64 * mebibyte};
    flows.lend(pool_memory / 2);
    auto const said = account_of(session);
    CHECK(said.on_loan == flows.pages_lent());
    CHECK(2 * said.on_loan >= said.pages);
    auto const text = session.explain();
    fmt::print("{}\n", text);
    CHECK_THAT(text, ContainsSubstring(fmt::format(" {} on loan", said.on_loan)) &&
                         ContainsSubstring("128 in the NIC's ring by its size, which needs at least 128") &&
                         ContainsSubstring("the ring of dms0 keeps at least 512 KiB of it posted"));
    flows.give_back(100'000);
    CHECK(account_of(session).on_loan == 0);
}

TEST_CASE_METHOD(unchanged_nic, "a ring that takes the memory is refused, and one that takes much of it gets a notice",
                 "[smoke][pool]")
{
    std::string notices;
    auto const open = [&](std::size_t size) {
        return open_session(size, {.max_flows = 1, .notice = [&](std::string_view sentence) {
                                       notices.append(sentence).append("\n");
                                   }});
    };
    run_command("ethtool -G dms0 rx 1024");
    try {
        auto const session = open(4 * mebibyte);
        FAIL("a session without memory for its flows");
    } catch (gpurx::system_error const& refusal) {
        INFO(refusal.what());
        CHECK(refusal.code() == gpurx::errc::memory_too_small);
        CHECK_THAT(refusal.what(), ContainsSubstring("keeps at least 4 MiB of it posted (1024 frames of 4 KiB)") &&
                                       ContainsSubstring("ethtool -G dms0 rx 512"));
    }
    CHECK(notices.empty());
    {
        auto const session = open(8 * mebibyte);
        CHECK_THAT(notices, ContainsSubstring("keeps at least 4 MiB of it posted") &&
                                ContainsSubstring("ethtool -G dms0 rx 512"));
        CHECK(session.pool_stats()->ring_demand == 1024U);
        CHECK(session.pool_stats()->in_ring == 1024U);
    }
    notices.clear();
    run_command("ethtool -G dms0 rx 512");
    {
        auto const session = open(8 * mebibyte);
        CHECK(notices.empty());
        CHECK(session.pool_stats()->in_ring == 512U);
    }
    // As mlx5: frames of 16 KiB.
    run_command("ip link set dms0 mtu 9000");
    CHECK_THROWS_AS(open(8 * mebibyte), gpurx::system_error);
    {
        auto const session = open(16 * mebibyte);
        CHECK(session.pool_stats()->in_ring == 2048U);
        CHECK(session.pool_stats()->ring_demand == 2048U);
    }
    run_command("ip link set dms0 mtu 1500");
    run_command("ethtool -G dms0 rx 128");
}
