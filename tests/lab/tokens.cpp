// SPDX-License-Identifier: Apache-2.0
//
// The two kinds of tokens: which a session gets, what explain() says of it, and what becomes of pages that
// are not given back.
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
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bed.hpp"
#include "flow/devmem_cmsg.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
using gpurx::token_kind;
namespace asio = boost::asio;
namespace detail = gpurx::detail;
namespace uapi = gpurx::detail::uapi;

namespace {

constexpr std::uint64_t first_part = mebibyte;
constexpr std::uint64_t page_size = 4096;

bool kernel_has_array_tokens()
{
    return detail::kernel_nic{near_interface}.knows_autorelease();
}

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
    [[nodiscard]] int give_back(std::uint32_t token) const
    {
        uapi::dmabuf_token const one{.token_start = token, .token_count = 1};
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

TEST_CASE_METHOD(unchanged_nic, "a kernel has array tokens if it has the patches", "[tokens]")
{
    auto const* const kernel = std::getenv("GPURX_LAB");
    REQUIRE(kernel != nullptr);
    CHECK(kernel_has_array_tokens() == (std::string{kernel} == "branch" || std::string{kernel} == "debug"));
}

TEST_CASE_METHOD(unchanged_nic, "a session gets the tokens that it asks for, the best of them, or an error", "[tokens]")
{
    auto const asked = GENERATE(token_kind::automatic, token_kind::array, token_kind::xarray);
    gpurx::rx_session_options const options{
        .interface = near_interface, .transport = gpurx::transport::devmem, .tokens = asked, .max_flows = 1};
    CAPTURE(to_string(asked), kernel_has_array_tokens());
    if (asked == token_kind::array && !kernel_has_array_tokens()) {
        gpurx::error_code code;
        gpurx::diagnostics why;
        CHECK_FALSE(gpurx::rx_session::open(options, gpurx::device_memory::on_host(8 * mebibyte), code, why));
        CHECK(code == gpurx::error_code{EOPNOTSUPP, boost::system::system_category()});
        CHECK(describe(code, why).starts_with("bind-rx dms0: "));
        CHECK(why.advice.starts_with("this kernel has no array tokens: leave rx_session_options::tokens automatic"));
        return;
    }
    gpurx::rx_session session{options, gpurx::device_memory::on_host(8 * mebibyte)};
    auto const used =
        asked == token_kind::xarray || !kernel_has_array_tokens() ? token_kind::xarray : token_kind::array;
    auto const said = session.explain();
    INFO(said);
    CHECK(tokens_in_use(session) == used);
    CHECK((said.find("tokens, as asked for") != std::string::npos) == (asked != token_kind::automatic));

    waiting_flow flow{session};
    auto const seen = flow.peek(64);
    REQUIRE(seen.size() == 64);
    for (auto const& piece : seen) {
        CHECK((piece.token >> 31 != 0) == (used == token_kind::array));
        CHECK(flow.give_back(piece.token) == 1);
        CHECK(flow.give_back(piece.token) == 0);
    }
    auto const result = flow.receive_all();
    INFO(result);
    CHECK(intact(result, 2 * first_part));
}

// The library gives everything back; here somebody else took tokens through its socket.
TEST_CASE_METHOD(unchanged_nic, "pages that are not given back are out until the flow ends, or the session", "[tokens]")
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
    // A later flow uses the rest of the memory, again and again. The end of the session
    // brings back all (unchanged_nic).
    auto const used = pages_used(session, 8 * memory_size);
    auto const again = std::ranges::count_if(
        taken, [&](detail::devmem_piece const& piece) { return used.contains(piece.offset / page_size); });
    fmt::print("{} pages used, {} of {} not given back among them\n", used.size(), again, taken.size());
    CHECK((again > 0) == (tokens_in_use(session) == token_kind::xarray));
    CHECK(used.size() > 100);
}
