// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

namespace gpurx::doctor {

namespace {

std::optional<options> parse(std::vector<std::string> arguments, int& status)
{
    std::string program = "gpurx-doctor";
    std::vector<char*> pointers{program.data()};
    for (auto& argument : arguments)
        pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    status = -1;
    return parse_command_line(static_cast<int>(pointers.size()) - 1, pointers.data(), status);
}

}  // namespace

TEST_CASE("a command line is taken apart")
{
    int status = 0;
    auto const plain = parse({}, status);
    REQUIRE(plain);
    CHECK(plain->interface.empty());
    CHECK(plain->memory == 64 << 20);
    CHECK(plain->state_directory == "/run/gpurx");

    auto const all = parse({"eth1", "--gpu", "2", "--memory", "1GiB", "--json", "--fix", "--dry-run"}, status);
    REQUIRE(all);
    CHECK(all->interface == "eth1");
    CHECK(all->gpu == 2);
    CHECK(all->memory == 1 << 30);
    CHECK(all->json);
    CHECK(all->fix);
    CHECK(all->dry_run);
    CHECK_FALSE(all->try_zcrx);

    auto const trial = parse({"eth1", "--try-zcrx"}, status);
    REQUIRE(trial);
    CHECK(trial->try_zcrx);
}

TEST_CASE("a wrong command line is status 3, help and version are 0")
{
    int status = 0;
    for (auto const& wrong : std::vector<std::vector<std::string>>{{"--no-such"},
                                                                   {"--fix"},
                                                                   {"eth1", "--dry-run"},
                                                                   {"--undo"},
                                                                   {"eth1", "--undo", "--fix"},
                                                                   {"--try-zcrx"},
                                                                   {"eth1", "--try-zcrx", "--fix"},
                                                                   {"eth1", "--try-zcrx", "--undo"},
                                                                   {"eth1", "--gpu", "-1"},
                                                                   {"eth1", "--memory", "much"},
                                                                   {"eth1", "eth2"}}) {
        CAPTURE(wrong);
        CHECK_FALSE(parse(wrong, status));
        CHECK(status == 3);
    }
    for (auto const* asked : {"--help", "--version"}) {
        CHECK_FALSE(parse({asked}, status));
        CHECK(status == 0);
    }
}

namespace tap {

namespace {

std::optional<options> parse(std::vector<std::string> arguments, int& status)
{
    std::string program = "tap";
    std::vector<char*> pointers{program.data()};
    for (auto& argument : arguments)
        pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    status = -1;
    return parse_command_line(static_cast<int>(pointers.size()) - 1, pointers.data(), status);
}

}  // namespace

TEST_CASE("the tap's command line is taken apart", "[tap]")
{
    int status = 0;
    auto const plain = parse({"eth1"}, status);
    REQUIRE(plain);
    CHECK(plain->chosen.empty());
    CHECK(plain->file.empty());
    CHECK_FALSE(plain->time);
    CHECK(plain->buffer == 2 << 20);

    auto const all = parse({"--port", "5000", "--port", "5001", "--flow", "*:7,10.0.0.2:*", "eth1", "--seconds", "0.5",
                            "--write", "-", "--buffer", "1MiB", "--json"},
                           status);
    REQUIRE(all);
    CHECK(all->interface == "eth1");
    CHECK(all->chosen.size() == 9);
    CHECK(all->time->count() == 0.5);
    CHECK(all->file == "-");
    CHECK(all->buffer == 1 << 20);
    CHECK(all->json);
}

TEST_CASE("a wrong command line of the tap is status 3", "[tap]")
{
    int status = 0;
    for (auto const& wrong : std::vector<std::vector<std::string>>{{},
                                                                   {"eth1", "--port", "0"},
                                                                   {"eth1", "--port", "65536"},
                                                                   {"eth1", "--flow", "10.0.0.1"},
                                                                   {"eth1", "--seconds", "0"},
                                                                   {"eth1", "--buffer", "1KiB"},
                                                                   {"eth1", "eth2"}}) {
        CHECK_FALSE(parse(wrong, status));
        CHECK(status == 3);
    }
    CHECK_FALSE(parse({"--help"}, status));
    CHECK(status == 0);
}

}  // namespace tap

}  // namespace gpurx::doctor
