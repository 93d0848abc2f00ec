// SPDX-License-Identifier: Apache-2.0
#include "log.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <string>

namespace gpurx::gpurxd {

void log_line(std::string_view text) noexcept
{
    try {
        std::string line{text};
        // Bytes of UTF-8 are above: a user's name may have them.
        std::ranges::replace_if(
            line, [](unsigned char each) { return each < ' ' || each == 0x7f; }, '?');
        line += '\n';
        // In one piece, as other processes write there, too.
        [[maybe_unused]] auto const written = ::write(STDERR_FILENO, line.data(), line.size());
    } catch (std::exception const&) {
        return;
    }
}

void log_line(log_limit& limit, std::string_view text) noexcept
{
    auto const left_out = limit.next(log_limit::clock::now());
    if (!left_out)
        return;
    try {
        log_line(*left_out == 0 ? std::string{text} : fmt::format("{} ({} similar lines omitted)", text, *left_out));
    } catch (std::exception const&) {
        return;
    }
}

}  // namespace gpurx::gpurxd
