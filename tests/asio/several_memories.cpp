// SPDX-License-Identifier: Apache-2.0
//
// Several memories behind one port: which one a connection is put on, the rule that moves it there, and what came
// before that.
#include <boost/asio/read.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/acceptor.hpp>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "circumstances.hpp"
#include "completion.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

using way = fake_kernel::way;
using Catch::Matchers::ContainsSubstring;

constexpr std::uint32_t first_id = test_session::first_id;
constexpr std::uint32_t second_id = first_id + 1;

// A session of two memories, with an acceptor. Bytes arrive where a test says, else in the first.
class two_memories {
  public:
    explicit two_memories(transport kind, rx_session_options options = {}, std::size_t bytes = pages(2048))
        : in{kind, options, bytes}, second{kind, in.kernel, options, bytes, second_id}, kind_{kind}
    {
        auto const head = in.session.state().shared_from_this();
        static_cast<void>(detail::session_state::join({head, second.state().shared_from_this()}));
        from.emplace(in.io->get_executor(), *in.session, tcp::endpoint{asio::ip::address_v4::loopback(), 0});
    }
    ~two_memories()
    {
        from.reset();
        callers.clear();
    }
    two_memories(two_memories const&) = delete;
    two_memories& operator=(two_memories const&) = delete;

    // A connection that waits to be accepted.
    sender& call()
    {
        auto& caller = callers.emplace_back(std::make_unique<sender>(in.wires));
        caller->socket().connect(from->local_endpoint());
        caller->socket().set_option(tcp::no_delay{true});
        return *caller;
    }
    error_code accept(receiver& rx)
    {
        auto const got = make_completion();
        from->async_accept(rx, noting{got});
        in.run_until([&] { return got->done(); });
        return got->code;
    }
    // What `to` sends arrives in the first memory at first, and then in that of the flow.
    void check_bytes(receiver& rx, sender& to, std::uint32_t dmabuf_id)
    {
        if (kind_ != transport::copy)
            in.kernel.deliver({{way::device, 1000, first_id}, {way::device, 2000, dmabuf_id}});
        auto const at = to.sent();
        to.send(3000);
        for (std::size_t received = 0; received < 3000;) {
            auto const got = receive(in, rx);
            REQUIRE_FALSE(got->code);
            CHECK(is_pattern(got->loan, at + received));
            received += got->bytes;
        }
    }
    void settle()
    {
        in.session.settle_nic();
        second.settle_nic();
    }
    [[nodiscard]] std::size_t flows_of(std::size_t part)
    {
        auto& state = *in.session.state().part(part);
        return state.options().max_flows - state.free_places();
    }

    world in;
    test_session second;
    std::optional<acceptor> from;
    std::vector<std::unique_ptr<sender>> callers;

  private:
    transport kind_;
};

// As many as the issue asks for.
constexpr std::size_t many = 64;

rx_session_options room_for_many()
{
    return {.max_flows = many};
}

bool is_reset(tcp::socket& socket)
{
    std::byte nothing{};
    error_code code;
    asio::read(socket, asio::buffer(&nothing, 1), code);
    return code == asio::error::connection_reset;
}

}  // namespace

TEST_CASE("64 flows over two memories, however the memory is chosen")
{
    auto const kind = any_transport();
    enum class choice { turns, callback, named };
    auto const how = GENERATE(choice::turns, choice::callback, choice::named);
    two_memories of{kind, room_for_many(), 64 << 20};
    auto& session = *of.in.session;
    REQUIRE(session.parts() == 2);
    std::vector<unsigned short> asked;
    if (how == choice::callback)
        of.from->choose_memory([&](tcp::endpoint const& peer) {
            asked.push_back(peer.port());
            return asked.size() % 2 == 0 ? 1U : 0U;
        });
    std::vector<receiver> flows;
    std::vector<std::pair<tcp::endpoint, tcp::endpoint>> moved;
    for (std::size_t i = 0; i < many; ++i) {
        auto& to = of.call();
        auto part = session.part(i % 2);
        auto& rx = flows.emplace_back(*of.in.io, how == choice::named ? part : session);
        REQUIRE_FALSE(of.accept(rx));
        if (how == choice::callback)
            CHECK(asked.back() == to.socket().local_endpoint().port());
        if (kind != transport::copy && i % 2 == 1)
            moved.emplace_back(of.from->local_endpoint(), to.socket().local_endpoint());
        of.check_bytes(rx, to, i % 2 == 0 ? first_id : second_id);
        auto const stats = rx.stats();
        CHECK(stats.bytes() == 3000);
        if (kind != transport::copy) {
            CHECK(stats.resteered_bytes == (i % 2 == 0 ? 0U : 1000U));
            CHECK(stats.device_bytes == (i % 2 == 0 ? 3000U : 2000U));
        }
    }
    CHECK(asked.size() == (how == choice::callback ? many : 0));
    CHECK(of.flows_of(0) == many / 2);
    CHECK(of.flows_of(1) == many / 2);
    CHECK(session.stats().bytes() == many * 3000);
    CHECK(session.part(0).stats().bytes() == many / 2 * 3000);
    CHECK(session.part(1).stats().bytes() == many / 2 * 3000);
    of.settle();
    CHECK(of.second.nic().moved == moved);
    CHECK(of.in.session.nic().moved.empty());
    CHECK(of.second.nic().rules == static_cast<int>(moved.size()));
    CHECK(of.second.nic().ports.empty());

    flows.clear();
    of.settle();
    CHECK(of.second.nic().rules == 0);
    CHECK(of.flows_of(0) + of.flows_of(1) == 0);
    CHECK(of.in.kernel.tokens_out() == 0);
}

TEST_CASE("an accept that makes its receiver puts it on a memory as well")
{
    two_memories of{any_transport()};
    std::vector<receiver> flows;
    for (int i = 0; i < 4; ++i) {
        of.call();
        of.from->async_accept([&](error_code code, receiver rx) {
            CHECK_FALSE(code);
            flows.push_back(std::move(rx));
        });
        of.in.run_until([&] { return flows.size() == static_cast<std::size_t>(i) + 1; });
    }
    CHECK(of.flows_of(0) == 2);
    CHECK(of.flows_of(1) == 2);
}

TEST_CASE("a connection that Asio accepted is moved to the part that its receiver is of")
{
    two_memories of{nic_transport()};
    auto part = (*of.in.session).part(1);
    sender to{of.in.wires};
    receiver rx{*of.in.io, part, of.in.connection(to)};
    of.check_bytes(rx, to, second_id);
    CHECK(rx.stats().resteered_bytes == 1000);
    of.settle();
    REQUIRE(of.second.nic().moved.size() == 1);
    CHECK(of.second.nic().moved[0].second == to.socket().local_endpoint());
}

TEST_CASE("a moved flow whose rule is refused stays in its memory, with one notice")
{
    std::vector<std::string> notices;
    two_memories of{nic_transport(), {.notice = [&](std::string_view said) { notices.emplace_back(said); }}};
    auto part = (*of.in.session).part(1);
    for (int i = 0; i < 2; ++i) {
        of.second.nic().refusal = make_error_code(boost::system::errc::operation_not_supported);
        auto& to = of.call();
        receiver rx{*of.in.io, part};
        REQUIRE_FALSE(of.accept(rx));
        of.settle();
        of.check_bytes(rx, to, first_id);
        CHECK(rx.stats().resteered_bytes == 3000);
    }
    of.settle();
    CHECK(of.second.nic().rules == 0);
    REQUIRE(notices.size() == 1);
    CHECK_THAT(notices[0], ContainsSubstring("stays in the memory in which it arrived") &&
                               ContainsSubstring("no room") && ContainsSubstring("make some"));
}

TEST_CASE("a flow that is closed while its rule is made leaves none")
{
    two_memories of{nic_transport()};
    auto part = (*of.in.session).part(1);
    of.second.nic().hold();
    of.call();
    std::optional<receiver> rx{std::in_place, *of.in.io, part};
    REQUIRE_FALSE(of.accept(*rx));  // which waits for no rule
    auto const under_way = GENERATE(true, false);
    if (under_way)
        of.second.nic().wait_until_busy();
    rx.reset();
    CHECK(of.flows_of(1) == 0);
    of.second.nic().let_go();
    of.settle();
    CHECK(of.second.nic().rules == 0);
}

TEST_CASE("a function that names a part that there is not is an error, and the connection is reset")
{
    two_memories of{any_transport()};
    std::size_t answer = 2;
    of.from->choose_memory([&](tcp::endpoint const&) { return answer; });
    auto& to = of.call();
    receiver rx{*of.in.io, *of.in.session};
    CHECK(of.accept(rx) == boost::system::errc::invalid_argument);
    CHECK_FALSE(rx.is_open());
    CHECK_THAT(of.from->why().advice, ContainsSubstring("choose_memory"));
    CHECK(is_reset(to.socket()));
    // The acceptor goes on.
    answer = 1;
    auto& next = of.call();
    REQUIRE_FALSE(of.accept(rx));
    of.check_bytes(rx, next, second_id);
    CHECK(of.flows_of(1) == 1);
}

TEST_CASE("a part that is full is left out, and one that was named refuses")
{
    two_memories of{any_transport(), {.max_flows = 2}};
    auto second_part = (*of.in.session).part(1);
    std::vector<receiver> flows;
    auto const accept_into = [&](rx_session& session) {
        of.call();
        return of.accept(flows.emplace_back(*of.in.io, session));
    };
    CHECK_FALSE(accept_into(second_part));
    CHECK_FALSE(accept_into(second_part));
    CHECK(accept_into(second_part) == errc::too_many_flows);
    CHECK_FALSE(accept_into(*of.in.session));
    CHECK_FALSE(accept_into(*of.in.session));
    CHECK(of.flows_of(0) == 2);
    CHECK(accept_into(*of.in.session) == errc::too_many_flows);
    of.from->choose_memory([](tcp::endpoint const&) { return 1; });
    CHECK(accept_into(*of.in.session) == errc::too_many_flows);
}

TEST_CASE("a flow keeps the memory that it arrived in")
{
    two_memories of{nic_transport()};
    auto& to = of.call();
    std::optional<rx_session> part{(*of.in.session).part(1)};
    std::optional<receiver> rx{std::in_place, *of.in.io, *part};
    REQUIRE_FALSE(of.accept(*rx));
    of.settle();
    of.from.reset();
    part.reset();
    of.second.drop();
    of.in.session.drop();
    of.check_bytes(*rx, to, second_id);
    CHECK(rx->stats().resteered_bytes == 1000);
    CHECK_FALSE(of.in.session.ended());
    rx.reset();
    CHECK(of.in.session.ended());
    CHECK(of.second.ended());
}

TEST_CASE("explain() of a session describes its memories")
{
    auto const kind = any_transport();
    two_memories of{kind};
    auto& session = *of.in.session;
    CHECK(session.parts() == 2);
    CHECK_THROWS_AS(session.part(2), std::out_of_range);
    auto const first = session.part(0);
    auto const second = session.part(1);
    CHECK(second.parts() == 1);
    CHECK_THROWS_AS(second.part(1), std::out_of_range);
    CHECK(&first.memory() == &session.memory());
    CHECK(second.memory().span() != session.memory().span());
    CHECK(session.queues().size() == first.queues().size() + second.queues().size());
    CHECK(session.pool_stats()->pages == first.pool_stats()->pages);
    CHECK_THAT(session.explain(), ContainsSubstring("memory 0 of 2") && ContainsSubstring("memory 1 of 2"));
    CHECK_THAT(second.explain(), !ContainsSubstring(" of 2"));
}

}  // namespace gpurx::test
