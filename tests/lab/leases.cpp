// SPDX-License-Identifier: Apache-2.0
//
// Queues of dms0 that were leased to a netkit device: what a session in a container has of them, and what nobody on the
// host gets of them any more.
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/zcrx_support.hpp"
#include "bed.hpp"
#include "container.hpp"
#include "lease/leased_nic.hpp"
#include "memory/memory_state.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
using Catch::Matchers::ContainsSubstring;
using gpurx::test::child_report;
namespace detail = gpurx::detail;

namespace {

constexpr std::uint16_t leased_port = 9710;
constexpr std::uint64_t leased_bytes = 4 * mebibyte;

tcp::endpoint inside()
{
    return {asio::ip::make_address(leased_address), leased_port};
}

void expect_text(child_report& child, std::string const& text, std::string_view part)
{
    child.expect(text.find(part) != std::string::npos, fmt::format("'{}' in: {}", part, text).c_str());
}

gpurx::rx_session open_leased(unsigned queues = 1)
{
    return gpurx::rx_session{
        {.interface = leased_interface, .rx_queues = queues, .transport = gpurx::transport::devmem, .max_flows = 1},
        gpurx::device_memory::on_host(8 * mebibyte)};
}

outcome accept_one(gpurx::rx_session& session, way how)
{
    outcome result;
    asio::io_context context{1};
    tcp::acceptor acceptor{context};
    acceptor.open(tcp::v4());
    acceptor.set_option(tcp::acceptor::reuse_address{true});
    acceptor.bind(inside());
    session.steer(acceptor);
    acceptor.listen(1);
    gpurx::receiver rx{context.get_executor(), session, acceptor.accept()};
    asio::co_spawn(context, consume(std::move(rx), how, result), rethrow);
    context.run();
    return result;
}

// What a session says that must fail.
std::string refusal_inside(unsigned queues = 1)
{
    try {
        auto const session = open_leased(queues);
        return "it was opened";
    } catch (gpurx::system_error const& failure) {
        return failure.what();
    }
}

class leased_nic_fixture : public unchanged_nic {
  public:
    leased_nic_fixture()
    {
        if (auto const why = why_no_leases(); !why.empty())
            SKIP(why);
    }
};

}  // namespace

TEST_CASE_METHOD(leased_nic_fixture, "the kernel shows a lease on the NIC's side, and its use on both",
                 "[smoke][lease]")
{
    leased_queues leased{{3}};
    detail::kernel_nic nic{near_interface};
    CHECK(nic.rx_queues().at(3).lease);
    CHECK_FALSE(nic.rx_queues().at(2).lease);
    container one{rights::of_the_host, [](child_report& child) {
                      detail::kernel_nic netkit{leased_interface};
                      child.expect(detail::is_lessee(netkit.driver()), "netkit is known by its driver");
                      auto const before = netkit.rx_queues();
                      child.expect(before.size() == 2, "two queues");
                      child.expect(!before.at(1).taken(), "nothing is shown of the lease");
                      auto const memory = detail::make_host_memory(mebibyte);
                      std::array const queue{1U};
                      auto const bound = netkit.bind_rx(queue, memory->dmabuf_fd(), 0);
                      child.expect(netkit.rx_queues().at(1).dmabuf == bound->id(), "the binding is shown");
                      child.expect(netkit.page_pools().empty(), "the page pools are not");
                      child.expect(netkit.rx_losses().empty(), "nor losses");
                      std::array const own{0U};
                      try {
                          (void)netkit.bind_rx(own, memory->dmabuf_fd(), 0);
                          child.expect(false, "the first queue is its own");
                      } catch (gpurx::system_error const&) {
                      }
                  }};
    one.enter(leased);
    CHECK(one.report().empty());
}

TEST_CASE_METHOD(leased_nic_fixture, "a session on a leased queue receives in a network namespace, and only binds",
                 "[lease]")
{
    auto const how = GENERATE(way::read, way::loan);
    auto const whose = GENERATE(rights::of_the_host, rights::of_nobody_else);
    CAPTURE(how == way::read, whose == rights::of_the_host);
    leased_queues leased{{3}};
    leased.steer(leased_port);
    peer_sender sender{inside(), {31, leased_bytes}};
    container one{whose, [how](child_report& child) {
                      auto session = open_leased();
                      child.expect(session.queues() == std::vector<unsigned>{1}, "queue 1");
                      child.expect(!session.pool_stats().has_value(), "the pool cannot be looked at");
                      auto const said = session.explain();
                      expect_text(child, said, "devmem: in use: nk0 writes into the memory from queue 1");
                      expect_text(child, said, "steering: not possible here: the queues are leased");
                      auto const result = accept_one(session, how);
                      child.expect(intact(result, leased_bytes),
                                   fmt::format("intact: {}", fmt::streamed(result)).c_str());
                      child.expect(result.stats.host_bytes == 0, "no byte arrived in host memory");
                  }};
    one.enter(leased);
    auto const said = one.report();
    INFO(said);
    CHECK(said.empty());
}

TEST_CASE_METHOD(leased_nic_fixture, "transport zcrx is refused on leased queues, and automatic takes devmem",
                 "[lease]")
{
    if (auto const why = gpurx::detail::describe(gpurx::detail::observe_zcrx()); !why.empty())
        SKIP("transport zcrx: " << why);
    leased_queues leased{{1}};
    auto const arrays = kernel_has_array_tokens();  // the container does not see dms0
    container one{rights::of_the_host, [arrays](child_report& child) {
                      gpurx::rx_session_options options{
                          .interface = leased_interface, .transport = gpurx::transport::zcrx, .max_flows = 1};
                      gpurx::error_code code;
                      gpurx::diagnostics why;
                      child.expect(
                          !gpurx::rx_session::open(options, gpurx::device_memory::on_host(8 * mebibyte), code, why),
                          "it is refused");
                      child.expect(code == boost::system::errc::operation_not_supported, code.message().c_str());
                      expect_text(child, why.operation, "use leased queues");
                      options.transport = gpurx::transport::automatic;
                      options.allow_zcrx = true;
                      gpurx::rx_session const taken{options, gpurx::device_memory::on_host(8 * mebibyte)};
                      child.expect(taken.transport() == gpurx::transport::devmem, "devmem");
                      child.expect(taken.why_not_zcrx() == (arrays ? gpurx::transport_obstacle::better_in_use
                                                                   : gpurx::transport_obstacle::leased_queues),
                                   std::string{to_string(taken.why_not_zcrx())}.c_str());
                  }};
    one.enter(leased);
    auto const said = one.report();
    INFO(said);
    CHECK(said.empty());
}

TEST_CASE_METHOD(leased_nic_fixture, "a program in a user namespace of its own learns that zcrx needs the host's",
                 "[lease]")
{
    if (auto const why = gpurx::detail::describe(gpurx::detail::observe_zcrx()); !why.empty())
        SKIP("transport zcrx: " << why);
    leased_queues leased{{1}};
    auto const arrays = kernel_has_array_tokens();  // the container does not see dms0
    container one{rights::of_nobody_else, [arrays](child_report& child) {
                      gpurx::rx_session const taken{{.interface = leased_interface, .allow_zcrx = true, .max_flows = 1},
                                                    gpurx::device_memory::on_host(8 * mebibyte)};
                      child.expect(taken.transport() == gpurx::transport::devmem, "devmem");
                      child.expect(taken.why_not_zcrx() == (arrays ? gpurx::transport_obstacle::better_in_use
                                                                   : gpurx::transport_obstacle::no_rights),
                                   std::string{to_string(taken.why_not_zcrx())}.c_str());
                      if (!arrays)
                          expect_text(child, taken.explain(), "CAP_NET_ADMIN in the initial user namespace");
                  }};
    one.enter(leased);
    auto const said = one.report();
    INFO(said);
    CHECK(said.empty());
}

TEST_CASE_METHOD(leased_nic_fixture,
                 "a session binds what was leased, changes nothing on the NIC, and leaves no journal", "[smoke][lease]")
{
    leased_queues leased{{1, 2}};
    auto const before = nic_settings();
    container one{rights::of_the_host, [](child_report& child) {
                      auto const both = open_leased(2);
                      child.expect(both.queues() == std::vector<unsigned>{1, 2}, "both queues");
                  }};
    one.enter(leased);
    CHECK(one.report().empty());
    CHECK(nic_settings() == before);
    CHECK(journal_now().empty());
}

TEST_CASE_METHOD(leased_nic_fixture, "several memories on leased queues are refused, with advice", "[lease]")
{
    leased_queues leased{{1, 2}};
    auto const before = nic_settings();
    container one{rights::of_nobody_else, [](child_report& child) {
                      gpurx::rx_session_options options{
                          .interface = leased_interface, .transport = gpurx::transport::devmem, .max_flows = 1};
                      auto const two = [] {
                          return std::vector{gpurx::device_memory::on_host(8 * mebibyte),
                                             gpurx::device_memory::on_host(8 * mebibyte)};
                      };
                      gpurx::error_code code;
                      gpurx::diagnostics why;
                      child.expect(!gpurx::rx_session::open(options, two(), code, why), "it is refused");
                      child.expect(code == gpurx::errc::transport_unavailable, code.message().c_str());
                      expect_text(child, why.object, "for memory 0 of 2");
                      expect_text(child, why.advice, "open a session for each memory, each with a port of its own");
                      options.transport = gpurx::transport::automatic;
                      gpurx::rx_session const fallen_back{options, two()};
                      expect_text(child, fallen_back.explain(), "open a session for each memory");
                      child.expect(fallen_back.why_not_devmem() == gpurx::transport_obstacle::flows_not_movable,
                                   "a program learns that, too");
                      child.expect(open_leased(2).queues().size() == 2, "both queues are free");
                  }};
    one.enter(leased);
    CHECK(one.report().empty());
    CHECK(nic_settings() == before);
    CHECK(journal_now().empty());
}

TEST_CASE_METHOD(leased_nic_fixture, "a flow that no rule sends to the leased queue arrives in host memory",
                 "[smoke][lease]")
{
    leased_queues leased{{3}};
    peer_sender sender{inside(), {33, leased_bytes}};
    container one{rights::of_nobody_else, [](child_report& child) {
                      auto session = open_leased();
                      auto const result = accept_one(session, way::read);
                      child.expect(intact(result, leased_bytes),
                                   fmt::format("intact: {}", fmt::streamed(result)).c_str());
                      child.expect(result.stats.device_bytes == 0, "no byte arrived in the leased queue");
                  }};
    one.enter(leased);
    auto const said = one.report();
    INFO(said);
    CHECK(said.empty());
}

TEST_CASE_METHOD(leased_nic_fixture, "an error of a lease advises its owner", "[lease]")
{
    leased_queues leased{{3}};
    SECTION("header split")
    {
        leased.split_headers(false);
        container one{rights::of_nobody_else, [](child_report& child) {
                          auto const said = refusal_inside();
                          expect_text(child, said, "bind-rx nk0 queue 1 (kernel: tcp-data-split is disabled)");
                          expect_text(child, said, "ethtool -G NIC tcp-data-split on hds-thresh 0");
                      }};
        one.enter(leased);
        CHECK(one.report().empty());
    }
    SECTION("rights")
    {
        container one{rights::none_in_network, [](child_report& child) {
                          auto const said = refusal_inside();
                          expect_text(child, said, "bind-rx nk0 queue 1");
                          expect_text(child, said, "run with CAP_NET_ADMIN in the user namespace that owns");
                      }};
        one.enter(leased);
        CHECK(one.report().empty());
    }
    SECTION("too few queues, queues in use, and an interface that is down")
    {
        container one{rights::of_the_host, [](child_report& child) {
                          expect_text(child, refusal_inside(2), "bind nk0 (2 leased queues wanted, 1 there)");
                          auto const other = open_leased();
                          expect_text(child, refusal_inside(), "queue 1 used by memory of binding");
                          detail::kernel_nic{leased_interface}.set_up(false);
                          expect_text(child, refusal_inside(), "set the interface up");
                      }};
        one.enter(leased);
        CHECK(one.report().empty());
    }
}

TEST_CASE_METHOD(leased_nic_fixture, "an interface without a leased queue is an error with advice", "[lease]")
{
    leased_queues leased{{}};
    container one{rights::of_the_host, [](child_report& child) {
                      expect_text(child, refusal_inside(), "bind nk0 (1 leased queue wanted, 0 there)");
                  }};
    one.enter(leased);
    CHECK(one.report().empty());
}

TEST_CASE_METHOD(leased_nic_fixture, "receive_file receives in a container", "[lease]")
{
    leased_queues leased{{3}};
    leased.steer(leased_port);
    auto const output = std::filesystem::temp_directory_path() / "leased-file";
    peer_sender sender{inside(), {32, leased_bytes}};
    container one{
        rights::of_nobody_else, [&](child_report&) {
            auto const command = fmt::format(
                "exec {} --interface {} --transport devmem --memory-size 8MiB --listen {}:{} --json --output {}",
                GPURX_RECEIVE_FILE, leased_interface, leased_address, leased_port, output.string());
            ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
        }};
    one.enter(leased);
    CHECK(one.report().empty());
    std::ifstream file{output, std::ios::binary};
    std::string const arrived{std::istreambuf_iterator<char>{file}, {}};
    std::filesystem::remove(output);
    REQUIRE(arrived.size() == sizeof(std::uint64_t) + leased_bytes);
    pattern_check check{32};
    check.take(reinterpret_cast<std::uintptr_t>(arrived.data()) + sizeof(std::uint64_t), leased_bytes);
    CHECK(check.wrong_pieces() == 0);
}

TEST_CASE_METHOD(leased_nic_fixture, "sessions on the host pass over queues that are leased, and over reserved ones",
                 "[lease]")
{
    auto const refused = [](unsigned queues) -> std::string {
        try {
            auto const session = open_session(32 * mebibyte, {.rx_queues = queues});
            return fmt::format("it got queues {}", fmt::join(session.queues(), ", "));
        } catch (gpurx::system_error const& failure) {
            CHECK(failure.code() == gpurx::errc::queue_busy);
            return failure.what();
        }
    };
    detail::kernel_nic nic{near_interface};
    auto const most = nic.channels().combined_max - 1;
    SECTION("leased")
    {
        leased_queues const leased{{3}};
        CHECK(open_session(8 * mebibyte).queues() == std::vector<unsigned>{2});
        CHECK_THAT(refused(most), ContainsSubstring("queue 3 used by a virtual device"));
    }
    SECTION("reserved")
    {
        run_command("ethtool -X dms0 equal 2");
        CHECK(open_session(8 * mebibyte).queues() == std::vector<unsigned>{1});
        {
            auto const first = open_session(8 * mebibyte);
            CHECK(open_session(8 * mebibyte).queues() == std::vector<unsigned>{4});
        }
        CHECK_THAT(refused(most), ContainsSubstring("queues 2, 3 used by another program, which keeps it out of RSS"));
        run_command("ethtool -X dms0 default");
    }
}
