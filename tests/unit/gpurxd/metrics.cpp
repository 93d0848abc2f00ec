// SPDX-License-Identifier: Apache-2.0
//
// What gpurxd counts: the table that processes share, the page that Prometheus reads, and the file that it is in.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "metrics.hpp"
#include "metrics_file.hpp"
#include "shared_counters.hpp"

using namespace gpurx;
using namespace gpurx::gpurxd;
using namespace std::chrono_literals;
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

client_metrics client_of(std::uint32_t uid, std::vector<unsigned> queues = {3})
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

// gpurxd.prom in a directory of its own, with a count and a clock of the test's.
struct some_file {
    some_file()
    {
        std::string name = (std::filesystem::temp_directory_path() / "gpurxd-metrics-XXXXXX").string();
        directory = ::mkdtemp(name.data());
        path = directory / "gpurxd.prom";
    }
    some_file(some_file const&) = delete;
    some_file& operator=(some_file const&) = delete;
    ~some_file() { std::filesystem::remove_all(directory); }

    void begin()
    {
        file.emplace(
            directory.string(), [this] { return counted; }, start);
    }
    [[nodiscard]] std::string text() const
    {
        std::ifstream in{path};
        return {std::istreambuf_iterator<char>{in}, {}};
    }
    [[nodiscard]] bool says(std::uint64_t connections) const
    {
        return text().find(fmt::format("\ngpurxd_connections_total {}\n", connections)) != std::string::npos;
    }
    [[nodiscard]] std::size_t count_files() const
    {
        return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator{directory}, {}));
    }

    std::filesystem::path directory;
    std::filesystem::path path;
    daemon_metrics counted;
    metrics_file::clock::time_point start{1h};
    std::optional<metrics_file> file;
};

mode_t mode_of(std::filesystem::path const& path)
{
    struct stat what {};
    return ::stat(path.c_str(), &what) == 0 ? what.st_mode & 07777 : 0;
}

}  // namespace

TEST_CASE("a process reads the counts of another one, and they outlive both")
{
    some_place const at;
    {
        auto one = shared_counters::open(at.name());
        auto other = shared_counters::open(at.name());
        one.count_connection();
        other.count_connection();
        one.count_refusal(request_kind::steer, refusal_reason::policy);
        one.show_rules(1, 3, 1);
    }
    auto const all = shared_counters::open(at.name()).read();
    CHECK(all.connections == 2);
    CHECK(all.refusals[2][0] == 1);
    CHECK(all.rules_made == 3);
    CHECK(all.rules_taken_away == 1);
    CHECK(all.clients.empty());
}

TEST_CASE("a client is shown for as long as its process lives, however that ends")
{
    some_place const at;
    auto const mine = shared_counters::open(at.name());
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    auto const child = ::fork();
    if (child == 0) {
        auto own = shared_counters::open(at.name());
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
        auto another = shared_counters::open(at.name());
        another.show(client_of(7));
        CHECK(mine.read().clients == std::vector{expected, client_of(7)});
    }
    CHECK(mine.read().clients == std::vector{expected});
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    CHECK(mine.read().clients.empty());
    auto next = shared_counters::open(at.name());
    next.show(client_of(8));
    CHECK(mine.read().clients == std::vector{client_of(8)});
    ::close(ends[0]);
    ::close(ends[1]);
}

TEST_CASE("two hundred clients are shown, and those alone that are still there")
{
    some_place const at;
    auto const mine = shared_counters::open(at.name());
    std::vector<std::unique_ptr<shared_counters>> many;
    for (std::uint32_t i = 0; i < 200; ++i) {
        many.push_back(std::make_unique<shared_counters>(shared_counters::open(at.name())));
        many.back()->show(client_of(i));
    }
    CHECK(mine.read().clients.size() == 200);
    many.erase(many.begin() + 50, many.begin() + 150);
    CHECK(mine.read().clients.size() == 100);
}

TEST_CASE("a table of another version is left unchanged")
{
    some_place const at;
    std::filesystem::create_directories(at.name() + "-clients");
    std::ofstream{at.file()} << "something else";
    auto one = shared_counters::open(at.name());
    one.count_connection();
    CHECK(shared_counters::open(at.name()).read().connections == 1);
}

TEST_CASE("each refusal has a reason that a number of alerts can know")
{
    auto const reason = [](int error, request_kind what = request_kind::open) {
        return reason_of(what, error_code{error, boost::system::system_category()});
    };
    CHECK(reason(EACCES) == refusal_reason::policy);
    CHECK(reason(EUSERS) == refusal_reason::crowded);
    CHECK(reason(EDQUOT) == refusal_reason::flows);
    CHECK(reason(ENOTSOCK) == refusal_reason::descriptor);
    CHECK(reason(EXDEV) == refusal_reason::elsewhere);
    CHECK(reason(ENOENT) == refusal_reason::nic);
    CHECK(reason(ENOENT, request_kind::unsteer) == refusal_reason::order);
    CHECK(reason(EPROTONOSUPPORT) == refusal_reason::protocol);
    CHECK(reason(ENOSPC) == refusal_reason::nic);
    CHECK(reason_of(request_kind::open, make_error_code(errc{1})) == refusal_reason::nic);
}

TEST_CASE("the page adds up what a user has of an interface, and tells interfaces and users apart")
{
    daemon_metrics counted;
    counted.connections = 12;
    counted.rules_made = 34;
    counted.rules_taken_away = 5;
    counted.refusals[1][0] = 6;
    counted.clients = {client_of(1000, {1, 2}), client_of(1000), client_of(7)};
    counted.clients[2].interface = "a\"b\\c";
    std::vector<interface_metrics> const seen{
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

TEST_CASE("the page of a daemon without clients lists none")
{
    auto const text = metrics_page("1", {}, {});
    CHECK_THAT(text, ContainsSubstring("gpurxd_connections_total 0\n"));
    for (auto const* const name : {"gpurxd_clients", "gpurxd_limit", "gpurxd_pool", "gpurxd_queue"})
        CHECK(text.find(name) == std::string::npos);
}

TEST_CASE("the file has what is counted at the start, everybody can read it, and it is gone at the end")
{
    some_file at;
    at.counted.connections = 3;
    REQUIRE(::chmod(at.directory.c_str(), 0700) == 0);
    auto const before = ::umask(0077);
    at.begin();
    ::umask(before);
    CHECK(at.says(3));
    CHECK(mode_of(at.directory) == 0755);
    CHECK(mode_of(at.path) == 0644);
    struct stat what {};
    REQUIRE(::stat(at.path.c_str(), &what) == 0);
    CHECK(what.st_uid == ::geteuid());
    at.file.reset();
    CHECK(at.count_files() == 0);
}

TEST_CASE("permissions of a directory are not reduced")
{
    some_file at;
    REQUIRE(::chmod(at.directory.c_str(), 01777) == 0);
    at.begin();
    CHECK(mode_of(at.directory) == 01777);
}

TEST_CASE("a change is in the file a second after the last one was written, and each kind of it is one")
{
    some_file at;
    at.begin();
    at.counted.connections = 1;
    at.file->look(at.start + 999ms);
    CHECK(at.says(0));
    at.file->look(at.start + 1s);
    CHECK(at.says(1));
    at.counted.clients = {client_of(1000)};
    at.file->look(at.start + 1999ms);
    CHECK_THAT(at.text(), !ContainsSubstring("gpurxd_clients"));
    at.file->look(at.start + 2s);
    CHECK_THAT(at.text(), ContainsSubstring("\ngpurxd_queues{interface=\"fifteen-letters\",user=\"1000\"} 1\n"));
    at.counted.clients[0].rules = 99;
    at.counted.refusals[1][0] = 6;
    at.file->look(at.start + 3s);
    CHECK_THAT(at.text(), ContainsSubstring("\ngpurxd_rules{interface=\"fifteen-letters\",user=\"1000\"} 99\n"));
    CHECK_THAT(at.text(), ContainsSubstring("\ngpurxd_refusals_total{request=\"open\",reason=\"policy\"} 6\n"));
    at.counted.clients.clear();
    at.file->look(at.start + 4s);
    CHECK_THAT(at.text(), !ContainsSubstring("gpurxd_clients"));
}

TEST_CASE("a file without a change is written every five seconds, for what the kernel counts and for its age")
{
    some_file at;
    at.begin();
    std::filesystem::remove(at.path);
    at.file->look(at.start + 4999ms);
    CHECK(at.count_files() == 0);
    at.file->look(at.start + 5s);
    CHECK(at.says(0));
}

TEST_CASE("a reader of the file reads that one to its end, though another one is written")
{
    some_file at;
    at.begin();
    auto const first = at.text();
    detail::unique_fd const reader{::open(at.path.c_str(), O_RDONLY | O_CLOEXEC)};
    std::string read(first.size() * 4, ' ');
    auto const half = first.size() / 2;
    REQUIRE(::read(reader.get(), read.data(), half) == static_cast<ssize_t>(half));
    at.counted.clients = {client_of(1), client_of(2), client_of(3)};
    at.file->look(at.start + 1s);
    CHECK(at.text() != first);
    auto const rest = ::read(reader.get(), read.data() + half, read.size() - half);
    read.resize(half + static_cast<std::size_t>(std::max<ssize_t>(rest, 0)));
    CHECK(read == first);
    CHECK(at.count_files() == 1);
}

TEST_CASE("the file is whole whenever it is read")
{
    some_file at;
    at.begin();
    auto const small = at.text();
    for (std::uint32_t user = 0; user < 50; ++user)
        at.counted.clients.push_back(client_of(user));
    at.file->look(at.start + 1s);
    auto const large = at.text();
    auto const many = at.counted.clients;
    std::atomic<bool> ends = false;
    std::atomic<unsigned> odd = 0;
    std::thread reader{[&] {
        while (!ends) {
            auto const text = at.text();
            odd += text != small && text != large ? 1 : 0;
        }
    }};
    for (unsigned i = 2; i < 500; ++i) {
        at.counted.clients = i % 2 == 0 ? std::vector<client_metrics>{} : many;
        at.file->look(at.start + std::chrono::seconds{i});
    }
    ends = true;
    reader.join();
    CHECK(odd == 0);
}

TEST_CASE("half of a page is no file, and another's link is not followed")
{
    some_file at;
    at.begin();
    auto const whole = at.text();
    auto const handler = ::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    rlimit const small{.rlim_cur = 100, .rlim_max = before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    at.counted.connections = 1;
    at.file->look(at.start + 1s);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    ::signal(SIGXFSZ, handler);
    CHECK(at.text() == whole);
    CHECK(at.count_files() == 1);
    auto const victim = at.directory / "victim";
    std::ofstream{victim} << "kept";
    std::filesystem::create_symlink(victim, at.directory / fmt::format(".gpurxd.prom.{}", ::gettid()));
    at.file->look(at.start + 6s);
    CHECK(at.says(1));
    std::string kept;
    std::ifstream{victim} >> kept;
    CHECK(kept == "kept");
}

TEST_CASE("a directory that cannot be written is an error at the start, and tried again later")
{
    some_file at;
    std::filesystem::remove(at.directory);
    try {
        at.begin();
        FAIL("it has begun");
    } catch (system_error const& error) {
        CHECK(error.code().value() == ENOENT);
        CHECK_THAT(error.what(), ContainsSubstring(at.path.string()) && ContainsSubstring("--metrics-directory"));
    }
    std::filesystem::create_directory(at.directory);
    at.begin();
    std::filesystem::remove_all(at.directory);
    at.counted.connections = 1;
    at.file->look(at.start + 1s);
    std::filesystem::create_directory(at.directory);
    at.file->look(at.start + 5999ms);
    CHECK(at.count_files() == 0);
    at.file->look(at.start + 6s);
    CHECK(at.says(1));
}
