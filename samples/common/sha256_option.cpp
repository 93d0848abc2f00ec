// SPDX-License-Identifier: Apache-2.0
#include "sha256_option.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

namespace {

bool is_sha256(std::string const& text)
{
    return text.size() == 64 && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c); });
}

std::string lower_case(std::string text)
{
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

}  // namespace

CLI::Option* add_expected_sha256(CLI::App& app, std::string& expected, std::string const& help)
{
    return app
        .add_option_function<std::string>(
            "--expect-sha256", [&expected](std::string const& text) { expected = lower_case(text); }, help)
        ->check([](std::string const& text) {
            return is_sha256(text) ? std::string{} : std::string{"expected 64 hexadecimal digits"};
        })
        ->option_text("HEX");
}
