// SPDX-License-Identifier: Apache-2.0
//
// What gpurxd counts: the table that processes share, and the page that Prometheus reads.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "figure_table.hpp"
#include "metrics_page.hpp"

using namespace gpurx;
using namespace gpurx::gpurxd;
using Catch::Matchers::ContainsSubstring;

namespace {

// A state directory that ends with the test.
class some_place {
  public:
    some_place() : path_{std::filesystem::temp_directory_path() / fmt::format("gpurxd-figures-{}", ::getpid())}
    {
        clear();
    }
    some_place(some_place const&) = delete;
    some_place& operator=(some_place const&) = delete;
    ~some_place() { clear(); }
    [[nodiscard]] std::string name() const { return path_.string(); }
    [[nodiscard]] std::string file() const { return path_.string() + "-clients/figures"; }

  private:
    void clear() const { std::filesystem::remove_all(path_.string() + "-clients"); }

    std::filesystem::path path_;
};

client_figures client_of(std::uint32_t uid, std::vector<unsigned> queues = {3})
{
    return {.interface = "fifteen-letters",
            .uid = uid,
            .most = {.queues = 4, .memory = 1 << 30, .flows = 7, .rules = 8, .clients = 9},
            .memory = std::uint64_t{5} << 32,
            .dmabuf = 17,
            .page_size = 4096,
            .queues = std::move(queues),
            .rules = 2};
}

detail::unique_fd only_to_read(some_place const& at)
{
    return detail::unique_fd{::open(at.file().c_str(), O_RDONLY | O_CLOEXEC)};
}

}  // namespace

TEST_CASE("what one process counts another one reads, and it outlives both")
{
    some_place const at;
    {
        auto one = figure_table::open(at.name());
        auto other = figure_table::open(at.name());
        one.count_connection();
        other.count_connection();
        one.count_refusal(asked::steer, refusal_reason::policy);
        one.show_rules(1, 3, 1);
    }
    auto const all = figure_table::read_from(only_to_read(at)).read();
    CHECK(all.connections == 2);
    CHECK(all.refusals[2][0] == 1);
    CHECK(all.rules_made == 3);
    CHECK(all.rules_taken_away == 1);
    CHECK(all.clients.empty());
}

TEST_CASE("a client is shown for as long as its process lives, however that ends")
{
    some_place const at;
    auto const mine = figure_table::open(at.name());
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    auto const child = ::fork();
    if (child == 0) {
        auto own = figure_table::open(at.name());
        own.show(client_of(1000, {65535, 0, 7, 8, 9}));
        own.show_rules(5, 5, 0);
        [[maybe_unused]] auto const said = ::write(ends[1], "x", 1);
        for (;;)
            ::pause();
    }
    char byte = 0;
    REQUIRE(::read(ends[0], &byte, 1) == 1);
    auto expected = client_of(1000, {65535, 0, 7, 8, 9});
    expected.rules = 5;
    CHECK(mine.read().clients == std::vector{expected});
    {
        auto another = figure_table::open(at.name());
        another.show(client_of(7));
        CHECK(mine.read().clients == std::vector{expected, client_of(7)});
    }
    CHECK(mine.read().clients == std::vector{expected});
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    CHECK(mine.read().clients.empty());
    auto next = figure_table::open(at.name());
    next.show(client_of(8));
    CHECK(mine.read().clients == std::vector{client_of(8)});
    ::close(ends[0]);
    ::close(ends[1]);
}

TEST_CASE("two hundred clients are shown, and those alone that are still there")
{
    some_place const at;
    auto const mine = figure_table::open(at.name());
    std::vector<std::unique_ptr<figure_table>> many;
    for (std::uint32_t i = 0; i < 200; ++i) {
        many.push_back(std::make_unique<figure_table>(figure_table::open(at.name())));
        many.back()->show(client_of(i));
    }
    CHECK(mine.read().clients.size() == 200);
    many.erase(many.begin() + 50, many.begin() + 150);
    CHECK(mine.read().clients.size() == 100);
}

TEST_CASE("a table of another version is left to those who write it")
{
    some_place const at;
    std::filesystem::create_directories(at.name() + "-clients");
    std::ofstream{at.file()} << "something else";
    auto one = figure_table::open(at.name());
    one.count_connection();
    CHECK(figure_table::read_from(only_to_read(at)).read().connections == 1);
    std::ofstream{at.file()} << "shorter";
    CHECK_THROWS_AS(figure_table::read_from(only_to_read(at)), system_error);
}

TEST_CASE("each refusal has a reason that a number of alerts can know")
{
    auto const reason = [](int error, asked what = asked::open) {
        return reason_of(what, error_code{error, boost::system::system_category()});
    };
    CHECK(reason(EACCES) == refusal_reason::policy);
    CHECK(reason(EUSERS) == refusal_reason::crowded);
    CHECK(reason(EDQUOT) == refusal_reason::flows);
    CHECK(reason(ENOTSOCK) == refusal_reason::descriptor);
    CHECK(reason(EXDEV) == refusal_reason::elsewhere);
    CHECK(reason(ENOENT) == refusal_reason::nic);
    CHECK(reason(ENOENT, asked::unsteer) == refusal_reason::order);
    CHECK(reason(EPROTONOSUPPORT) == refusal_reason::protocol);
    CHECK(reason(ENOSPC) == refusal_reason::nic);
    CHECK(reason_of(asked::open, make_error_code(errc{1})) == refusal_reason::nic);
}

TEST_CASE("the page adds up what a user has of an interface, and tells interfaces and users apart")
{
    figures counted;
    counted.connections = 12;
    counted.rules_made = 34;
    counted.rules_taken_away = 5;
    counted.refusals[1][0] = 6;
    counted.clients = {client_of(1000, {1, 2}), client_of(1000), client_of(7)};
    counted.clients[2].interface = "a\"b\\c";
    std::vector<interface_figures> const seen{
        {.interface = "eth1", .pages_in_flight = 77, .losses = {{3, 9, std::nullopt, 10}, {4, {}, {}, {}}}}};
    auto const text = metrics_page("1.2.3", counted, seen);
    for (auto const* const line :
         {"gpurxd_build_info{version=\"1.2.3\"} 1\n", "\ngpurxd_connections_total 12\n",
          "\ngpurxd_refusals_total{request=\"open\",reason=\"policy\"} 6\n",
          "\ngpurxd_refusals_total{request=\"message\",reason=\"nic\"} 0\n", "\ngpurxd_rules_made_total 34\n",
          "\ngpurxd_rules_taken_away_total 5\n", "\ngpurxd_clients{interface=\"fifteen-letters\",user=\"1000\"} 2\n",
          "\ngpurxd_clients{interface=\"a\\\"b\\\\c\",user=\"7\"} 1\n",
          "\ngpurxd_queues{interface=\"fifteen-letters\",user=\"1000\"} 3\n",
          "\ngpurxd_memory_bytes{interface=\"fifteen-letters\",user=\"1000\"} 42949672960\n",
          "\ngpurxd_rules{interface=\"fifteen-letters\",user=\"1000\"} 4\n",
          "\ngpurxd_limit{interface=\"fifteen-letters\",user=\"1000\",limit=\"clients\"} 9\n",
          "\ngpurxd_limit{interface=\"fifteen-letters\",user=\"1000\",limit=\"memory_bytes\"} 1073741824\n",
          "\ngpurxd_pool_pages_in_flight{interface=\"eth1\"} 77\n",
          "\ngpurxd_queue_allocation_failures_total{interface=\"eth1\",queue=\"3\"} 9\n",
          "\ngpurxd_queue_drops_total{interface=\"eth1\",queue=\"3\"} 10\n"})
        CHECK_THAT(text, ContainsSubstring(line));
    CHECK(text.find("overruns") == std::string::npos);  // nobody counts them
    CHECK(text.find("queue=\"4\"") == std::string::npos);
}

TEST_CASE("the page of a daemon without clients says nothing of any")
{
    auto const text = metrics_page("1", {}, {});
    CHECK_THAT(text, ContainsSubstring("gpurxd_connections_total 0\n"));
    for (auto const* const name : {"gpurxd_clients", "gpurxd_limit", "gpurxd_pool", "gpurxd_queue"})
        CHECK(text.find(name) == std::string::npos);
}
