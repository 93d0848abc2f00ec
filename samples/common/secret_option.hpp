// SPDX-License-Identifier: Apache-2.0
//
// --secret-file, of both ends of a tensor stream.
#pragma once

#include <string>

namespace CLI {
class App;
}

// What the file holds, less the end of its last line, becomes `secret`, which must outlive `app`. On the command line a
// secret would be everybody's to read.
void add_secret_option(CLI::App& app, std::string& secret);
