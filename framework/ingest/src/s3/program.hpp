// SPDX-License-Identifier: Apache-2.0
//
// The program that credential_process of a profile names. It writes credentials to its standard output.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gpurx::ingest::detail::s3 {

// Runs the program without a shell, and returns its output. Blocks until it has ended, and kills it at `until` or after
// 64 KiB of output. Its standard input is empty. Precondition: `command` has the program and its arguments.
// Errors: errc::no_credentials, with the program's name, and the end of its standard error if it failed.
[[nodiscard]] std::string output_of(std::vector<std::string> const& command,
                                    std::chrono::steady_clock::time_point until);

}  // namespace gpurx::ingest::detail::s3
