// SPDX-License-Identifier: Apache-2.0
#include "fix.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/failure.hpp"
#include "nic.hpp"
#include "nic/lease_bench.hpp"

using namespace gpurx::doctor;
using namespace gpurx::detail::test;
namespace detail = gpurx::detail;
using Catch::Matchers::ContainsSubstring;

namespace {

finding fixable(fix_action::kind what, std::uint32_t value = 0)
{
    return {.level = severity::degraded, .topic = "x", .what = "y", .fix = fix_action{what, value}};
}

// The bench's NIC and sessions, and a directory of the doctor's own.
struct doctor_bench : lease_bench {
    [[nodiscard]] detail::lease_environment own()
    {
        auto result = environment(1000);
        result.state_directory = directory().string() + "-doctor";
        return result;
    }
    fix_report fix_all(std::vector<finding> const& found)
    {
        fake_device nic{hardware};
        return apply_fixes(found, nic, own(), environment(1000));
    }
    fix_report undo_all()
    {
        fake_device nic{hardware};
        return undo(nic, own());
    }
    // What is noted for --undo.
    [[nodiscard]] std::string noted()
    {
        std::string text;
        for (auto const& entry : std::filesystem::directory_iterator{own().state_directory}) {
            std::ifstream file{entry.path()};
            text.append(std::istreambuf_iterator<char>{file}, {});
        }
        return text;
    }
    ~doctor_bench() { std::filesystem::remove_all(directory().string() + "-doctor"); }
};

}  // namespace

TEST_CASE_METHOD(doctor_bench, "a fix is noted before it is made, and put back by undo")
{
    hardware.up = false;
    hardware.rx_frames = 4096;
    bool noted_first = false;
    hardware.before = [&](std::string const& name) {
        if (name == "rx ring")
            noted_first = noted().find("change rx-ring 4096 -> 512") != std::string::npos;
    };
    auto const said = fix_all({fixable(fix_action::kind::link_up, 1), fixable(fix_action::kind::rx_ring, 512)});
    CHECK(said.failed.empty());
    REQUIRE(said.done.size() == 2);
    CHECK_THAT(said.done[1], ContainsSubstring("rx-ring set from 4096 frames to 512 frames"));
    CHECK(hardware.up);
    CHECK(hardware.rx_frames == 512);
    CHECK(noted_first);

    // Another time: undo goes back to the start.
    CHECK(fix_all({fixable(fix_action::kind::rx_ring, 256)}).failed.empty());
    CHECK(hardware.rx_frames == 256);
    auto const undone = undo_all();
    CHECK(undone.failed.empty());
    CHECK(undone.done.size() == 2);
    CHECK_FALSE(hardware.up);
    CHECK(hardware.rx_frames == 4096);
    CHECK(noted().empty());
    CHECK(undo_all().done.empty());
}

TEST_CASE_METHOD(doctor_bench, "undo leaves a setting that another program has changed since")
{
    hardware.rx_frames = 4096;
    static_cast<void>(fix_all({fixable(fix_action::kind::rx_ring, 512)}));
    hardware.rx_frames = 2048;
    auto const undone = undo_all();
    REQUIRE(undone.failed.size() == 1);
    CHECK_THAT(undone.failed[0], ContainsSubstring("changed by another program to 2048 frames"));
    CHECK(hardware.rx_frames == 2048);
}

TEST_CASE_METHOD(doctor_bench, "a change that the kernel refuses is reported, is not noted, and stops nothing else")
{
    hardware.up = false;
    hardware.rx_frames = 4096;
    hardware.before = [](std::string const& name) {
        if (name == "rx ring")
            detail::fail(EINVAL, "set rx ring", "fake0");
    };
    auto const said = fix_all({fixable(fix_action::kind::rx_ring, 1), fixable(fix_action::kind::link_up, 1)});
    REQUIRE(said.failed.size() == 1);
    CHECK_THAT(said.failed[0], ContainsSubstring("set rx ring fake0"));
    CHECK(hardware.up);
    CHECK(noted().find("rx-ring") == std::string::npos);
}

TEST_CASE_METHOD(doctor_bench, "a refusal keeps the notes of an earlier fix")
{
    hardware.rx_frames = 4096;
    static_cast<void>(fix_all({fixable(fix_action::kind::rx_ring, 512)}));
    hardware.before = [](std::string const&) { detail::fail(EINVAL, "set rx ring", "fake0"); };
    CHECK(fix_all({fixable(fix_action::kind::rx_ring, 1)}).failed.size() == 1);
    hardware.before = {};
    CHECK(undo_all().done.size() == 1);
    CHECK(hardware.rx_frames == 4096);
}

TEST_CASE_METHOD(doctor_bench, "a fix puts back changes of a killed session")
{
    auto const before = hardware.state;
    auto session = open();
    auto flow = steer(*session, here, there);
    kill(std::move(session), 1, std::move(flow));
    CHECK(hardware.state != before);
    auto const said = fix_all({fixable(fix_action::kind::recover)});
    CHECK(said.failed.empty());
    CHECK_FALSE(said.done.empty());
    CHECK(hardware.state == before);
}

TEST_CASE_METHOD(doctor_bench, "a session that ends keeps the fixes")
{
    hardware.rx_frames = 4096;
    static_cast<void>(fix_all({fixable(fix_action::kind::rx_ring, 512)}));
    open().reset();
    CHECK(hardware.rx_frames == 512);
}

TEST_CASE_METHOD(doctor_bench, "a finding that names no fix changes nothing")
{
    auto const said = fix_all({{.level = severity::blocking, .topic = "x", .what = "y", .command = "reboot"}});
    CHECK(said.done.empty());
    CHECK(said.failed.empty());
    CHECK(hardware.changes.empty());
}
