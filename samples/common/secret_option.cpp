// SPDX-License-Identifier: Apache-2.0
#include "secret_option.hpp"

#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>

namespace {

constexpr std::size_t shortest = 16;  // of a tensor stream

std::string read_secret(std::string const& path)
{
    std::ifstream file{path, std::ios::binary};
    std::string text{std::istreambuf_iterator<char>{file}, {}};
    if (!file)
        throw CLI::ValidationError{"--secret-file", path + ": it cannot be read"};
    if (text.ends_with('\n'))
        text.pop_back();
    if (text.size() < shortest)
        throw CLI::ValidationError{"--secret-file", path + ": it has less than 16 bytes"};
    return text;
}

}  // namespace

void add_secret_option(CLI::App& app, std::string& secret)
{
    app.add_option_function<std::string>(
           "--secret-file", [&secret](std::string const& path) { secret = read_secret(path); },
           "The secret, of at least 16 bytes, that both ends of the stream have to know")
        ->option_text("FILE");
}
