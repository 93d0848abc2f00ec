// SPDX-License-Identifier: Apache-2.0
//
// The two kinds of tokens: which a session gets, what explain() and stats() say of it, and what becomes of
// pages that are not given back.
#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#include "bed.hpp"
#include "flow/devmem_cmsg.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
namespace asio = boost::asio;
namespace detail = gpurx::detail;
namespace uapi = gpurx::detail::uapi;

namespace {

constexpr std::uint64_t first_part = mebibyte;
constexpr std::uint64_t page_size = 4096;

// One connection that has its first part in the receive queue, and whose sender holds on.
class waiting_flow {
  public:
    explicit waiting_flow(gpurx::rx_session& session)
        : acceptor_{listen_on(session, context_.get_executor(), family::v4)},
          sender_{acceptor_.local_endpoint(), {71, 2 * first_part}, first_part}
    {
        rx_.emplace(context_, session, acceptor_.accept());
        for (int queued = 0; queued < static_cast<int>(first_part); std::this_thread::sleep_for(1ms))
            ::ioctl(rx_->native_handle(), SIOCINQ, &queued);
    }

    // Behind the library's back: what is at the front of the queue, which stays there, with tokens.
    [[nodiscard]] std::vector<detail::devmem_piece> peek(std::size_t most) const
    {
        std::vector<std::byte> control(detail::devmem_control_size(most));
        std::array<std::byte, 64> bytes{};
        iovec where{.iov_base = bytes.data(), .iov_len = first_part};  // device memory writes nothing there
        msghdr message{};
        message.msg_iov = &where;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        REQUIRE(::recvmsg(rx_->native_handle(), &message, uapi::msg_sock_devmem | MSG_PEEK | MSG_DONTWAIT) > 0);
        detail::devmem_cmsg_reader reader{{control.data(), message.msg_controllen}};
        std::vector<detail::devmem_piece> pieces;
        for (detail::devmem_piece piece; reader.next(piece);)
            pieces.push_back(piece);
        return pieces;
    }
    [[nodiscard]] int give_back(std::uint32_t first, std::uint32_t count = 1) const
    {
        uapi::dmabuf_token const one{.token_start = first, .token_count = count};
        return ::setsockopt(rx_->native_handle(), SOL_SOCKET, uapi::so_devmem_dontneed, &one, sizeof one);
    }
    [[nodiscard]] outcome receive_all()
    {
        sender_.resume();
        outcome result;
        asio::co_spawn(context_, consume(*std::exchange(rx_, std::nullopt), way::loan, result), rethrow);
        context_.run();
        return result;
    }

  private:
    asio::io_context context_{1};
    tcp::acceptor acceptor_;
    peer_sender sender_;
    std::optional<gpurx::receiver> rx_;
};

// Pages of the session's memory that a stream of so many bytes uses.
std::set<std::uint64_t> pages_used(gpurx::rx_session& session, std::uint64_t bytes)
{
    asio::io_context context{1};
    auto acceptor = listen_on(session, context.get_executor(), family::v4);
    peer_sender sender{acceptor.local_endpoint(), {72, bytes}};
    gpurx::receiver rx{context, session, acceptor.accept()};
    std::set<std::uint64_t> pages;
    asio::co_spawn(
        context,
        [&]() -> asio::awaitable<void> {
            for (;;) {
                auto const [error, loan] = co_await rx.async_receive(token);
                if (error)
                    co_return;
                for (auto const& fragment : loan.fragments()) {
                    auto const offset = fragment.address - session.memory().span().address();
                    for (auto page = offset / page_size; page <= (offset + fragment.size - 1) / page_size; ++page)
                        pages.insert(page);
                }
            }
        },
        rethrow);
    context.run();
    CHECK(rx.stats().device_bytes == bytes + 8);
    return pages;
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "a kernel has array tokens if it has the patches", "[smoke][tokens]")
{
    auto const* const name = std::getenv("GPURX_LAB");
    REQUIRE(name != nullptr);
    std::string_view const kernel = name;
    if (kernel == "branch" || kernel == "debug")
        CHECK(kernel_has_array_tokens());
    else if (kernel.starts_with("debian"))
        CHECK_FALSE(kernel_has_array_tokens());
    else  // built of whatever source was named
        fmt::print("kernel {}: {} array tokens\n", kernel, kernel_has_array_tokens() ? "has" : "has no");
}

TEST_CASE_METHOD(unchanged_nic, "a socket gets the best tokens that the kernel has, and explain() names them",
                 "[smoke][tokens]")
{
    auto session = open_session(8 * mebibyte, {.max_flows = 1});
    auto const said = session.explain();
    INFO(said);
    CHECK(said.find(kernel_has_array_tokens() ? "with array tokens" : "with xarray tokens") != std::string::npos);

    waiting_flow flow{session};
    auto const seen = flow.peek(64);
    auto const again = flow.peek(64);
    REQUIRE(seen.size() == 64);
    REQUIRE(again.size() == 64);
    for (std::uint32_t i = 0; i < 64; ++i) {
        auto const page = static_cast<std::uint32_t>(seen[i].offset / page_size);
        CAPTURE(i, page, seen[i].token, again[i].token);
        REQUIRE(again[i].offset == seen[i].offset);
        // An array token is the number of the page, each time; an xarray token is the next that is free.
        CHECK(seen[i].token == (kernel_has_array_tokens() ? page : i) + 1);
        CHECK(again[i].token == (kernel_has_array_tokens() ? page : 64 + i) + 1);
        CHECK(flow.give_back(seen[i].token) == 1);
        CHECK(flow.give_back(seen[i].token) == (kernel_has_array_tokens() ? 1 : 0));
        CHECK(flow.give_back(seen[i].token) == 0);
    }
    CHECK(flow.give_back(again[0].token, 64) == (kernel_has_array_tokens() ? 0 : 64));
    auto const result = flow.receive_all();
    INFO(result);
    CHECK(intact(result, 2 * first_part));
}

TEST_CASE_METHOD(unchanged_nic, "stats() tell how many tokens were not the best", "[tokens]")
{
    auto const how = GENERATE(way::read, way::loan);
    auto session = open_session(8 * mebibyte, {.max_flows = 2});
    auto const outcomes = transfer(session, {{73, 8 * mebibyte}, {74, 8 * mebibyte}}, family::v4, how, role::accepts);
    for (auto const& result : outcomes) {
        INFO(result);
        CHECK(intact(result, 8 * mebibyte));
        auto const pages = result.stats.device_bytes / page_size;
        fmt::print("{} xarray tokens, {} pages at the least\n", result.stats.xarray_tokens, pages);
        if (kernel_has_array_tokens())
            CHECK(result.stats.xarray_tokens < pages / 100);  // a page whose bytes were received in two parts has one
        else
            CHECK(result.stats.xarray_tokens >= pages);
    }
}

// The library gives everything back; here somebody else took tokens through its socket.
TEST_CASE_METHOD(unchanged_nic, "pages that are not given back are out until the flow ends", "[smoke][tokens]")
{
    constexpr std::uint64_t memory_size = 4 * mebibyte;
    auto session = open_session(memory_size, {.max_flows = 1});
    std::vector<detail::devmem_piece> taken;
    {
        waiting_flow flow{session};
        taken = flow.peek(200);
        REQUIRE(taken.size() == 200);
        auto const result = flow.receive_all();
        INFO(result);
        CHECK(intact(result, 2 * first_part));
    }
    // A later flow uses the memory, again and again.
    auto const used = pages_used(session, 8 * memory_size);
    auto const again = std::ranges::count_if(
        taken, [&](detail::devmem_piece const& piece) { return used.contains(piece.offset / page_size); });
    fmt::print("{} pages used, {} of {} not given back among them\n", used.size(), again, taken.size());
    CHECK(again == std::ssize(taken));
}
