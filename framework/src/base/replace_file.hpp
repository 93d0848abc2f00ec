// SPDX-License-Identifier: Apache-2.0
//
// Replaces a file's content atomically: a reader sees all of the old content or all of the new.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>

#include "syscalls.hpp"

namespace gpurx::detail {

// Returns 0 or an errno.
[[nodiscard]] inline int write_all(int file, std::string_view text) noexcept
{
    while (!text.empty()) {
        auto const written = ::write(file, text.data(), text.size());
        if (written < 0 && errno != EINTR)
            return errno;
        text.remove_prefix(written > 0 ? static_cast<std::size_t>(written) : 0);
    }
    return 0;
}

// Writes a new file of this thread in the same directory, and renames it. `mode`: the file's mode, whatever the umask;
// empty: 0644 less the umask. Returns 0, or an errno; then nothing has changed.
[[nodiscard]] inline int replace_file(std::filesystem::path const& file, std::string_view text,
                                      std::optional<mode_t> mode = std::nullopt)
{
    auto const fresh = file.parent_path() / fmt::format(".{}.{}", file.filename().string(), ::gettid());
    // An existing file is that of a killed process, or a link that another user made to another file.
    ::unlink(fresh.c_str());
    unique_fd const out{::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)};
    if (!out)
        return errno;
    auto failure = mode && ::fchmod(out.get(), *mode) != 0 ? errno : write_all(out.get(), text);
    if (failure == 0 && std::rename(fresh.c_str(), file.c_str()) != 0)
        failure = errno;
    if (failure != 0)
        ::unlink(fresh.c_str());
    return failure;
}

}  // namespace gpurx::detail
