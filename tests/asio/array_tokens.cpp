// SPDX-License-Identifier: Apache-2.0
//
// Array tokens against the fake kernel: each names a page, which one socket has, so flows that share it get both kinds.
// What holds for tokens of either kind, the other tests show for both.
#include <sys/socket.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <memory>
#include <vector>

#include "base/syscalls.hpp"
#include "completion.hpp"
#include "flow/devmem_uapi.hpp"
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
    auto const all = in.session.state().memory().span().size() / pages(1);
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

TEST_CASE("a page comes again and again in one loan, with one array token, and goes back as often")
{
    world in{transport::devmem, {.loan_limit = pages(256)}};
    in.kernel.set_packing(true);
    in.kernel.set_fragment_size(pages(1) / 64);
    in.kernel.set_ascending(true);
    sender to{in.wires};
    auto rx = in.flow(to);
    for (std::size_t sent = 0; sent < 10; ++sent) {
        auto const loan = lend(in, to, rx, pages(3));
        CHECK(loan.fragments().size() == 1);
        CHECK(is_pattern(loan, sent * pages(3)));
    }
    CHECK(in.kernel.tokens_out() == 0);
    CHECK(rx.stats().tokens_high_water == 3 * 64);
    CHECK(rx.stats().xarray_tokens == (in.kernel.has_array_tokens() ? 0 : 10 * 3 * 64));
    CHECK(rx.stats().release_shortfalls == 0);
}

TEST_CASE("the 1024th token of a page and those behind it are xarray tokens, and all go back")
{
    world in{transport::devmem, {.receive_memory = pages(2048), .loan_limit = pages(1500)}};
    in.kernel.set_packing(true);
    in.kernel.set_fragment_size(2);
    sender to{in.wires};
    auto rx = in.flow(to);
    std::vector<rx_buffer> loans;
    for (int i = 0; i < 11; ++i)
        loans.push_back(lend(in, to, rx, 200));
    CHECK(in.kernel.free_pages(own) == in.session.state().memory().span().size() / pages(1) - 1);
    CHECK(rx.stats().xarray_tokens == 1100 - (in.kernel.has_array_tokens() ? 1023 : 0));
    loans.clear();
    CHECK(in.kernel.tokens_out() == 0);
    CHECK(rx.stats().release_shortfalls == 0);
}

TEST_CASE("a socket that knows as many memories as it can gets xarray tokens of the next, and all go back")
{
    world in{transport::devmem};
    std::vector<std::unique_ptr<test_session>> others;
    for (std::uint32_t i = 0; i < 20; ++i)
        others.push_back(
            std::make_unique<test_session>(transport::devmem, in.kernel, rx_session_options{}, pages(256), other + i));
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
    CHECK(rx.stats().xarray_tokens == 3 * 2 * (in.kernel.has_array_tokens() ? 5 : 20));
    CHECK(rx.stats().release_shortfalls == 0);
}

TEST_CASE("a page that two flows share is free when both have given it back, in either order")
{
    auto const first_goes_first = GENERATE(false, true);
    world in{transport::devmem};
    in.kernel.set_packing(true);
    in.kernel.set_fragment_size(1024);
    sender to_first{in.wires};
    sender to_second{in.wires};
    auto first = in.flow(to_first);
    auto second = in.flow(to_second);
    auto loans = std::array{lend(in, to_first, first, 1024), lend(in, to_second, second, 2048)};
    auto const all = in.session.state().memory().span().size() / pages(1);
    REQUIRE(in.kernel.free_pages(own) == all - 1);

    auto& later = loans[first_goes_first ? 1 : 0];
    loans[first_goes_first ? 0 : 1].release();
    CHECK(in.kernel.free_pages(own) == all - 1);
    CHECK(is_pattern(later, 0));
    later.release();
    CHECK(in.kernel.free_pages(own) == all);
    CHECK(first.stats().xarray_tokens == (in.kernel.has_array_tokens() ? 0 : 1));
    CHECK(second.stats().xarray_tokens == 2);
}

TEST_CASE("a socket can give back what it has, once, and nothing of another's")
{
    world in{transport::devmem};
    in.kernel.set_packing(true);
    in.kernel.set_fragment_size(2048);
    std::array<sender, 2> to{sender{in.wires}, sender{in.wires}};
    std::array<receiver, 2> rx{in.flow(to[0]), in.flow(to[1])};
    std::array<rx_buffer, 2> loans{lend(in, to[0], rx[0], 8192), lend(in, to[1], rx[1], 40960)};
    // Behind the library's back: all the numbers that tokens of the first 1024 pages, or fragments, can have, each as
    // often as it is out.
    auto const give_all_back = [](receiver& through) {
        int all_taken = 0;
        for (auto const first : {std::uint32_t{1}, detail::uapi::xarray_token}) {
            detail::uapi::dmabuf_token const all{first, detail::uapi::max_dontneed_pages};
            for (int taken = 1; taken > 0; all_taken += taken)
                taken = detail::sys::setsockopt(through.native_handle(), SOL_SOCKET, detail::uapi::so_devmem_dontneed,
                                                &all, sizeof all);
        }
        return all_taken;
    };
    CHECK(give_all_back(rx[0]) == 4);
    CHECK(give_all_back(rx[0]) == 0);
    CHECK(in.kernel.tokens_out() == 20);
    CHECK(is_pattern(loans[1], 0));
    loans[0].release();
    CHECK(rx[0].stats().release_shortfalls == 4);
    CHECK(is_pattern(loans[1], 0));
    loans[1].release();
    CHECK(rx[1].stats().release_shortfalls == 0);
    CHECK(in.kernel.tokens_out() == 0);
    CHECK_FALSE(in.kernel.take_violations().empty());
}

}  // namespace gpurx::test
