// SPDX-License-Identifier: Apache-2.0
//
// The one place where the library starts threads.
#pragma once

#include <functional>
#include <stop_token>
#include <thread>

namespace gpurx::detail {

// A thread that runs `body` under `name` (at most 15 characters, as /proc shows it) with every signal blocked: the
// program's signals are for its own threads, and one that it has blocked there to wait for it must not find another
// taker. Throws gpurx::system_error if the system has no thread to give.
[[nodiscard]] std::jthread start_thread(char const* name, std::function<void(std::stop_token const&)> body);

}  // namespace gpurx::detail
