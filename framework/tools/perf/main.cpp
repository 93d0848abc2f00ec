// SPDX-License-Identifier: Apache-2.0
//
// gpurx-perf: measures the cost of receiving TCP into device memory.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <gpurx/error.hpp>
#include <string>
#include <variant>
#include <vector>

#include "client.hpp"
#include "options.hpp"
#include "report.hpp"
#include "server.hpp"

namespace {

using namespace gpurx::perf;

void write_to(std::string const& path, std::string const& text)
{
    auto* const file = std::fopen(path.c_str(), "we");
    auto const written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (file == nullptr || std::fclose(file) != 0 || !written)
        throw gpurx::system_error{{errno, boost::system::system_category()}, {"write", path, {}, {}}};
}

int run(server_options const& wanted)
{
    return serve(wanted);
}

int run(client_options const& wanted)
{
    std::vector<round_result> rounds;
    auto status = measured;
    send(wanted, [&](round_result const& one) {
        rounds.push_back(one);
        fmt::print(stderr, "round {} of {}: {}, {}: {:.3f} GiB/s\n", rounds.size(), wanted.rounds, one.server.setting,
                   one.server.transport, gib_per_second(one.received));
        if (one.received.wrong_words > 0)
            status = wrong_bytes;
    });
    fmt::print("{}", wanted.json == "-" ? json(wanted, rounds) : table(rounds));
    if (!wanted.json.empty() && wanted.json != "-")
        write_to(wanted.json, json(wanted, rounds));
    if (status == wrong_bytes)
        fmt::print(stderr, "error: the received bytes differ from the sent ones\n");
    return status;
}

}  // namespace

int main(int argc, char** argv)
try {
    int exit_code = 0;
    auto const wanted = parse_command_line(argc, argv, exit_code);
    if (!wanted)
        return exit_code;
    return std::visit([](auto const& chosen) { return run(chosen); }, *wanted);
} catch (std::exception const& error) {
    fmt::print(stderr, "gpurx-perf: {}\n", error.what());
    return failed;
}
