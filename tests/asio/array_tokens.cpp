// SPDX-License-Identifier: Apache-2.0
//
// Array tokens against the fake kernel: each names a page, so it comes as often as the page does, and a flow may get
// tokens of both kinds. What holds for tokens of either kind, the other tests show for both.
#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <vector>

#include "completion.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

using way = fake_kernel::way;

constexpr std::uint32_t own = test_session::first_id;
constexpr std::uint32_t other = 8;

rx_buffer lend(world& in, sender& to, receiver& rx, std::size_t size)
{
    to.send(size);
    auto const got = make_completion();
    rx.async_receive(noting{got});
    in.run_until([&] { return got->done(); });
    REQUIRE(got->bytes == size);
    return std::move(got->loan);
}

}  // namespace

TEST_CASE("a page that was received in pieces is free when the last of them is back, in whatever order")
{
    world in{transport::devmem};
    in.kernel.set_packing(true);
    in.kernel.set_fragment_size(1024);
    sender to{in.wires};
    auto rx = in.flow(to);
    std::vector<rx_buffer> loans;
    for (int i = 0; i < 4; ++i)
        loans.push_back(lend(in, to, rx, 1024));
    auto const all = in.session.state().memory().span().size() / fake_kernel::page_size;
    for (auto const i : {2U, 0U, 3U}) {
        loans[i].release();
        CHECK(in.kernel.free_pages(own) == all - 1);
        CHECK(is_pattern(loans[1], 1024));
    }
    CHECK(rx.stats().tokens_out == 1);
    loans[1].release();
    CHECK(in.kernel.free_pages(own) == all);
    CHECK(rx.stats().tokens_high_water == 4);
}

TEST_CASE("a page comes again and again in one loan, and goes back as often")
{
    world in{transport::devmem, {.loan_limit = 1 << 20}};
    in.kernel.set_packing(true);
    in.kernel.set_fragment_size(64);
    in.kernel.set_ascending(true);
    sender to{in.wires};
    auto rx = in.flow(to);
    for (std::size_t sent = 0; sent < 10; ++sent) {
        auto const loan = lend(in, to, rx, 3 * fake_kernel::page_size);
        CHECK(loan.fragments().size() == 1);
        CHECK(is_pattern(loan, sent * 3 * fake_kernel::page_size));
    }
    CHECK(in.kernel.tokens_out() == 0);
    CHECK(rx.stats().tokens_high_water == 3 * 64);
    CHECK(rx.stats().release_shortfalls == 0);
}

TEST_CASE("a socket that knows as many memories as it can gets xarray tokens of the next, and all go back")
{
    world in{transport::devmem};
    in.kernel.set_tokens(token_kind::array);
    std::vector<std::unique_ptr<test_session>> others;
    for (std::uint32_t i = 0; i < 20; ++i)
        others.push_back(std::make_unique<test_session>(transport::devmem, in.kernel, rx_session_options{},
                                                        std::size_t{1} << 20, other + i));
    sender to{in.wires};
    auto rx = in.flow(to);
    std::vector<rx_buffer> loans;
    for (int round = 0; round < 3; ++round) {
        std::vector<fake_kernel::route> routes;
        for (std::uint32_t i = 0; i < 20; ++i)
            routes.push_back({way::device, 5000, other + i});
        in.kernel.deliver(routes);
        loans.push_back(lend(in, to, rx, 20 * 5000));
        CHECK(is_pattern(loans.back(), static_cast<std::size_t>(round) * 20 * 5000));
    }
    CHECK(in.kernel.tokens_out() == 3 * 20 * 2);
    loans.clear();
    CHECK(in.kernel.tokens_out() == 0);
    CHECK(rx.stats().resteered_bytes == 3 * 20 * 5000);
    CHECK(rx.stats().release_shortfalls == 0);
}

TEST_CASE("memory that was unbound before a flow first received from it gives xarray tokens")
{
    world in{transport::devmem};
    in.kernel.set_tokens(token_kind::array);
    test_session second{transport::devmem, in.kernel, {}, 1 << 20, other};
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.unbind(other);
    in.kernel.deliver({{way::device, 5000, own}, {way::device, 5000, other}});
    auto loan = lend(in, to, rx, 10000);
    CHECK(is_pattern(loan, 0));
    loan.release();
    CHECK(in.kernel.tokens_out() == 0);
    CHECK(rx.stats().release_shortfalls == 0);
}

}  // namespace gpurx::test
