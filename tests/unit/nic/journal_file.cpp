// SPDX-License-Identifier: Apache-2.0
#include "lease/device_journal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gpurx/error.hpp>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/failure.hpp"
#include "eventually.hpp"

using namespace gpurx::detail;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using gpurx::test::eventually;
namespace fs = std::filesystem;

namespace {

// No limit of a test: who waits for a journal has it long before.
constexpr auto long_timeout = 1h;

class scratch {
  public:
    scratch()
    {
        std::string name = fs::temp_directory_path() / "gpurx-test-XXXXXX";
        REQUIRE(::mkdtemp(name.data()) != nullptr);
        root = name;
        state = root / "state";
    }
    scratch(scratch const&) = delete;
    scratch& operator=(scratch const&) = delete;
    ~scratch() { fs::remove_all(root); }

    fs::path root;
    fs::path state;
};

device_key const device{"boot-1", "dms0", 4, 7};

journal some_journal()
{
    journal result;
    result.device = device;
    result.record({setting::ntuple_filters, {0}, {1}});
    return result;
}

std::uint64_t lock_inode(scratch const& in)
{
    for (auto const& entry : fs::directory_iterator{in.state}) {
        struct stat info {};
        if (entry.path().extension() == ".lock" && ::stat(entry.path().c_str(), &info) == 0)
            return info.st_ino;
    }
    FAIL("no lock");
    return 0;
}

// So many give back, and wait for a journal whose lock is this file: each has put a lock of its own on it.
std::ptrdiff_t givers_waiting(std::uint64_t inode)
{
    std::ifstream locks{"/proc/locks"};
    auto const end = fmt::format(":{} 0 EOF", inode);
    std::ptrdiff_t count = 0;
    for (std::string line; std::getline(locks, line);)
        count += line.find("OFDLCK") != std::string::npos && line.ends_with(end) ? 1 : 0;
    return count;
}

// So many of this process's descriptors are this file.
std::ptrdiff_t times_open(std::uint64_t inode)
{
    std::ptrdiff_t count = 0;
    for (auto const& entry : fs::directory_iterator{"/proc/self/fd"}) {
        struct stat info {};
        count += ::stat(entry.path().c_str(), &info) == 0 && info.st_ino == inode ? 1 : 0;
    }
    return count;
}

gpurx::system_error failure(scratch const& in, std::chrono::milliseconds timeout = 0ms)
{
    try {
        journal_file const file{in.state, device, timeout};
        static_cast<void>(file.load());
    } catch (gpurx::system_error const& error) {
        return error;
    }
    FAIL("no error");
    throw std::logic_error{"unreachable"};
}

}  // namespace

TEST_CASE("the state directory is created without access for other users")
{
    scratch const in;
    journal_file const file{in.state, device};
    CHECK_FALSE(file.load());
    struct stat info {};
    REQUIRE(::stat(in.state.c_str(), &info) == 0);
    CHECK((info.st_mode & 07777) == 0700);
    CHECK(file.path() == in.state / "ifindex4-netns7.journal");
}

TEST_CASE("a journal is stored and loaded; an empty one is no file")
{
    scratch const in;
    journal_file const file{in.state, device};
    file.store(some_journal());
    CHECK(file.load() == some_journal());
    struct stat info {};
    REQUIRE(::stat(file.path().c_str(), &info) == 0);
    CHECK((info.st_mode & 07777) == 0600);

    journal none;
    none.device = device;
    file.store(none);
    CHECK_FALSE(fs::exists(file.path()));
    CHECK_FALSE(file.load());
    file.store(none);  // twice is no error
}

TEST_CASE("a journal longer than one read is read whole")
{
    scratch const in;
    journal_file const file{in.state, device};
    auto large = some_journal();
    large.record({setting::rss_table, setting_value(5000, 1234), setting_value(5000, 4321)});
    file.store(large);
    REQUIRE(fs::file_size(file.path()) > 40'000);
    CHECK(file.load() == large);
}

TEST_CASE("a writer that dies leaves the old journal or the new one")
{
    scratch const in;
    journal_file const file{in.state, device};
    file.store(some_journal());
    std::ofstream{in.state / "ifindex4-netns7.new"} << "gpurx-jour";  // cut off while it was written
    CHECK(file.load() == some_journal());
    auto next = some_journal();
    next.record({setting::hds_threshold, {256}, {0}});
    file.store(next);
    CHECK(file.load() == next);
}

TEST_CASE("a journal in use is waited for, but not without end")
{
    scratch const in;
    auto held = std::make_unique<journal_file>(in.state, device);
    auto const lock = lock_inode(in);
    CHECK(failure(in, 20ms).code() == errno_code(ETIMEDOUT));

    // Another device's is another file.
    device_key other = device;
    other.ifindex = 5;
    CHECK_NOTHROW(journal_file{in.state, other, 0ms});

    std::thread releaser{[&held, lock] {
        static_cast<void>(eventually([lock] { return times_open(lock) == 2; }));
        held.reset();
    }};
    CHECK_NOTHROW(journal_file{in.state, device, long_timeout});
    releaser.join();
}

TEST_CASE("a journal serves callers that give back before callers that take")
{
    scratch const in;
    std::optional<journal_file> held{std::in_place, in.state, device};
    std::mutex guard;
    std::vector<journal_use> order;
    auto const use = [&](journal_use what) {
        journal_file const file{in.state, device, long_timeout, what};
        std::lock_guard const lock{guard};
        order.push_back(what);
    };
    std::vector<std::thread> all;
    for (int i = 0; i < 30; ++i)
        all.emplace_back(use, journal_use::take);
    for (int i = 0; i < 3; ++i)
        all.emplace_back(use, journal_use::give_back);
    auto const lock = lock_inode(in);
    CHECK(eventually([lock] { return times_open(lock) == 34 && givers_waiting(lock) == 3; }));
    held.reset();
    for (auto& thread : all)
        thread.join();
    REQUIRE(order.size() == 33);
    CHECK(std::count(order.begin(), order.begin() + 3, journal_use::give_back) == 3);
}

TEST_CASE("a caller that takes waits for callers that give back only for a limited time")
{
    scratch const in;
    auto const lock = [&] {
        for (auto const& entry : fs::directory_iterator{in.state}) {
            if (entry.path().extension() == ".lock")
                return ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
        }
        return -1;
    };
    journal_file{in.state, device};
    unique_fd const stuck{lock()};
    REQUIRE(stuck);
    struct flock waits {};
    waits.l_type = F_RDLCK;
    REQUIRE(::fcntl(stuck.get(), F_OFD_SETLK, &waits) == 0);
    auto const begin = std::chrono::steady_clock::now();
    CHECK_NOTHROW(journal_file{in.state, device, 200ms});
    CHECK(std::chrono::steady_clock::now() - begin >= 100ms);
    CHECK_NOTHROW(journal_file{in.state, device, 0ms, journal_use::give_back});
}

TEST_CASE("a dead process holds no journal")
{
    scratch const in;
    pid_t const child = ::fork();
    if (child == 0) {
        journal_file const held{in.state, device};
        ::_exit(0);
    }
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    CHECK_NOTHROW(journal_file{in.state, device, 0ms});
}

TEST_CASE("a child that was forked meanwhile does not hold a journal on")
{
    scratch const in;
    std::optional<journal_file> held{std::in_place, in.state, device};
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    pid_t const child = ::fork();
    if (child == 0) {
        ::close(ends[1]);
        char byte = 0;
        ::_exit(::read(ends[0], &byte, 1) == 0 ? 0 : 1);
    }
    held.reset();
    CHECK_NOTHROW(journal_file{in.state, device, 0ms});
    ::close(ends[0]);
    ::close(ends[1]);
    CHECK(::waitpid(child, nullptr, 0) == child);
}

TEST_CASE("a damaged journal names its file and line")
{
    scratch const in;
    journal_file{in.state, device}.store(some_journal());
    std::ofstream{in.state / "ifindex4-netns7.journal"} << "gpurx-journal 1\nbot x\n";
    auto const error = failure(in);
    CHECK(error.code() == gpurx::errc::journal_invalid);
    CHECK_THAT(error.why().object, ContainsSubstring("ifindex4-netns7.journal"));
    CHECK_THAT(error.why().advice, ContainsSubstring("line 2: 'boot' is missing"));
}

TEST_CASE("a journal damaged by a loss of power belongs to another boot and is dropped")
{
    scratch const in;
    journal_file{in.state, device}.store(some_journal());
    auto const path = in.state / "ifindex4-netns7.journal";
    std::ofstream{path, std::ios::app} << std::string(200, '\0');
    CHECK(failure(in).code() == gpurx::errc::journal_invalid);
    auto later = device;
    later.boot_id = "another-boot";
    auto const found = journal_file{in.state, later}.load();
    REQUIRE(found);
    CHECK(found->device == device);
    CHECK(found->empty());
}

TEST_CASE("a directory that others may write to is refused")
{
    scratch const in;
    fs::create_directory(in.state);
    REQUIRE(::chmod(in.state.c_str(), 0777) == 0);
    auto const error = failure(in);
    CHECK(error.code() == errno_code(EPERM));
    CHECK_THAT(error.why().advice, ContainsSubstring("0700"));
}

TEST_CASE("a journal is not followed to another place")
{
    scratch const in;
    journal_file{in.state, device}.store(some_journal());
    fs::rename(in.state / "ifindex4-netns7.journal", in.root / "elsewhere");
    fs::create_symlink(in.root / "elsewhere", in.state / "ifindex4-netns7.journal");
    CHECK(failure(in).code() == errno_code(ELOOP));
}

TEST_CASE("a state directory that cannot be is named")
{
    scratch in;
    in.state = in.root / "missing" / "state";
    auto const error = failure(in);
    CHECK(error.code() == errno_code(ENOENT));
    CHECK(error.why().operation == "create state directory");
    CHECK_THAT(error.why().object, ContainsSubstring("missing/state"));

    std::ofstream{in.root / "file"} << "";
    in.state = in.root / "file";
    CHECK(failure(in).code() == errno_code(ENOTDIR));
}
