// SPDX-License-Identifier: Apache-2.0
//
// --expect-sha256, of samples that write out what they received.
#pragma once

#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

// `expected`, in lower case, must outlive `app`. `help` says whose it is.
CLI::Option* add_expected_sha256(CLI::App& app, std::string& expected, std::string const& help);
