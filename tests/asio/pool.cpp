// SPDX-License-Identifier: Apache-2.0
//
// Where the pages of a memory are, as a session tells it: each in one place, under every fault of the fake kernel.
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <list>
#include <thread>
#include <vector>

#include <gpurx/read.hpp>

#include "completion.hpp"
#include "session/watchdog.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

using way = fake_kernel::way;

constexpr std::uint32_t own = test_session::first_id;
constexpr std::uint64_t in_ring = 100;  // pages that the NIC holds, and the fake kernel knows nothing of

// What the program holds, against what the kernel has out.
enum class agreement {
    exact,
    less,     // a token goes back, and the kernel does not take it; or there is no byte that belongs to it
    unknown,  // what the kernel tells is not what it did
};

struct fault {
    char const* name;
    std::function<void(fake_kernel&)> make;
    agreement held = agreement::exact;
};

fault const faults[] = {
    {"none", [](fake_kernel&) {}},
    {"neighbouring pages", [](fake_kernel& kernel) { kernel.set_ascending(true); }},
    {"a page for each small packet", [](fake_kernel& kernel) { kernel.set_fragment_size(700); }},
    {"several packets in a page",
     [](fake_kernel& kernel) {
         kernel.set_packing(true);
         kernel.set_fragment_size(700);
     }},
    {"neighbouring pages of several packets",
     [](fake_kernel& kernel) {
         kernel.set_packing(true);
         kernel.set_ascending(true);
         kernel.set_fragment_size(900);
     }},
    {"noise", [](fake_kernel& kernel) { kernel.set_noise(true); }},
    {"linear",
     [](fake_kernel& kernel) {
         kernel.deliver({{way::linear, 3000, 0}, {way::device, 9000, own}});
     }},
    {"plain",
     [](fake_kernel& kernel) {
         kernel.deliver({{way::plain, 3000, 0}, {way::device, 9000, own}});
     }},
    {"calls that are interrupted", [](fake_kernel& kernel) { kernel.fail_receive(EINTR, 3); }},
    {"tokens that are back already", [](fake_kernel& kernel) { kernel.shorten_release(2); }},
    {"a release that fails", [](fake_kernel& kernel) { kernel.fail_release(ENOMEM); }, agreement::less},
    {"a lie about sizes", [](fake_kernel& kernel) { kernel.lie_about_size(5); }, agreement::unknown},
    {"a lie about offsets", [](fake_kernel& kernel) { kernel.lie_about_offset(); }, agreement::less},
};

// What the session says, after it was held against what the fake kernel knows.
pool_stats account_of(test_session& session, fake_kernel& kernel, agreement wanted, std::uint32_t id = own)
{
    auto const all = session.state().memory().span().size() / pages(1);
    auto const out = all - kernel.free_pages(id);
    session.nic().in_flight = in_ring + out;
    auto const said = (*session).pool_stats();
    REQUIRE(said);
    CHECK(said->pages == all);
    CHECK(said->page_size == pages(1));
    CHECK(said->free + said->in_ring + said->in_queues + said->on_loan + said->parked + said->in_reads == all);
    CHECK(said->free == all - in_ring - out);
    auto const held = said->on_loan + said->parked + said->in_reads;
    if (wanted == agreement::less)
        CHECK(held <= out);
    else if (wanted == agreement::exact)
        CHECK(held == out);
    std::uint64_t of_flows = 0;
    for (auto const& flow : said->flows)
        of_flows += flow.on_loan + flow.parked + flow.in_reads;
    CHECK(of_flows == held);
    CHECK(said->high_water >= in_ring + out);
    return *said;
}

}  // namespace

TEST_CASE("every page is in one place, under every fault of the kernel")
{
    world in{nic_transport()};
    for (auto const& [name, make, wanted] : faults) {
        CAPTURE(name);
        in.kernel.set_ascending(false);
        in.kernel.set_packing(false);
        in.kernel.set_noise(false);
        in.kernel.set_fragment_size(pages(1));
        std::list<rx_buffer> loans;
        {
            sender first{in.wires};
            sender second{in.wires};
            auto lends = in.flow(first);
            auto reads = in.flow(second);
            std::vector<std::byte> bytes(1000);
            make(in.kernel);
            for (int turn = 0; turn < 6; ++turn) {
                first.send(10'000);
                auto got = receive(in, lends);
                loans.push_back(std::move(got->loan));
                account_of(in.session, in.kernel, wanted);
                // The rest of what was received stays for the next read.
                second.send(5'000);
                auto const read = make_completion();
                async_read(reads, host_span{bytes.data(), bytes.size()}, noting{read});
                in.run_until([&] { return read->done(); });
                auto const said = account_of(in.session, in.kernel, wanted);
                CHECK(said.flows.size() == 2);
                if (turn % 2 == 1)
                    loans.pop_front();
                account_of(in.session, in.kernel, wanted);
            }
            REQUIRE(!loans.empty());
        }
        // The receivers are gone, and the loans are not.
        account_of(in.session, in.kernel, wanted);
        loans.clear();
        in.kernel.reap_closed();
        auto const last = account_of(in.session, in.kernel, agreement::exact);
        CHECK(last.in_ring + last.in_queues == in_ring);
        CHECK(last.flows.empty());
    }
    static_cast<void>(in.kernel.take_violations());
}

TEST_CASE("loans and what reads have left over are told apart, and by flow")
{
    world in{nic_transport()};
    in.kernel.set_fragment_size(pages(1));
    sender first{in.wires};
    sender second{in.wires};
    auto lends = in.flow(first);
    auto reads = in.flow(second);
    first.send(pages(3));
    auto const loan = receive(in, lends);
    second.send(pages(2));
    std::vector<std::byte> bytes(pages(1) + 1);
    auto const read = make_completion();
    async_read(reads, host_span{bytes.data(), bytes.size()}, noting{read});
    in.run_until([&] { return read->done(); });
    auto said = account_of(in.session, in.kernel, agreement::exact);
    CHECK(said.on_loan == 3);
    // The page that was read out is part of the batch, which goes back as a whole.
    CHECK(said.in_reads == 2);
    CHECK(said.parked == 0);
    CHECK(said.in_ring + said.in_queues == in_ring);
    REQUIRE(said.flows.size() == 2);
    CHECK(said.flows[0].on_loan == 3);
    CHECK(said.flows[1].in_reads == 2);
    CHECK(said.flows[0].connection == detail::connection_name(lends.native_handle()));

    // The rest is lent, and the loan is all of the batch.
    auto const rest = receive(in, reads);
    said = account_of(in.session, in.kernel, agreement::exact);
    CHECK(said.on_loan == 5);
    CHECK(said.in_reads == 0);
}

TEST_CASE("pages of another session's memory are that session's")
{
    constexpr std::uint32_t other = 8;
    world in{nic_transport()};
    test_session second{(*in.session).transport(), in.kernel, {}, pages(1024), other};
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.deliver({{way::device, 5000, own}, {way::device, 9000, other}});
    to.send(14000);
    auto got = receive(in, rx);
    auto const of_own = std::move(got->loan);
    if (of_own.size() < 14000)  // a request of a ring ends where the memory does
        got = receive(in, rx);
    CHECK(of_own.size() + (of_own.size() < 14000 ? got->bytes : 0) == 14000);
    CHECK(account_of(in.session, in.kernel, agreement::exact).on_loan == 2);
    auto const said = account_of(second, in.kernel, agreement::exact, other);
    CHECK(said.on_loan == 3);
    REQUIRE(said.flows.size() == 1);
    CHECK(said.flows[0].on_loan == 3);
    CHECK(said.in_sockets == 0);
}

TEST_CASE("pages of transport copy add up as well")
{
    world in{transport::copy};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const before = (*in.session).pool_stats();
    REQUIRE(before);
    CHECK(before->free == before->pages);
    CHECK(before->pages * before->page_size == in.session.state().memory().span().size());
    to.send(100'000);
    auto const got = receive(in, rx);
    auto const during = (*in.session).pool_stats();
    REQUIRE(during);
    CHECK(during->on_loan >= 100'000 / during->page_size);
    CHECK(during->free + during->in_queues + during->on_loan == during->pages);
    CHECK(during->in_ring == 0);
    CHECK_FALSE(during->ring_demand);
    CHECK_FALSE(during->dry_time);
    CHECK_FALSE(during->overruns);
}

// For the thread sanitizer, too.
TEST_CASE("pages are counted while they are received, read and given back")
{
    world in{nic_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    in.session.nic().in_flight = 2048;
    std::atomic<bool> done{false};
    std::thread counter{[&] {
        while (!done) {
            auto const said = (*in.session).pool_stats();
            if (!said || said->free + said->in_ring + said->in_queues + said->on_loan + said->parked + said->in_reads !=
                             said->pages)
                std::abort();
        }
    }};
    std::vector<std::byte> bytes(3000);
    for (int turn = 0; turn < 200; ++turn) {
        to.send(20'000);
        auto const read = make_completion();
        async_read(rx, host_span{bytes.data(), bytes.size()}, noting{read});
        in.run_until([&] { return read->done(); });
        for (std::size_t left = 17'000; left > 0;) {
            auto const got = receive(in, rx);
            REQUIRE_FALSE(got->code);
            left -= got->bytes;
        }
    }
    done = true;
    counter.join();
}

}  // namespace gpurx::test
