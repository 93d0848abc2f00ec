// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <gpurx/metrics.hpp>
#include <stdexcept>
#include <vector>

#include "base/syscalls.hpp"
#include "metrics_text.hpp"
#include "session_state.hpp"

namespace gpurx {

namespace {

detail::session_sample sample_of(named_session const& named)
{
    auto const& session = named.session.get();
    auto const& state = *detail::session_access::state(session);
    auto const devmem = session.transport() == transport::devmem;
    auto const* const tokens = !devmem ? "none" : state.has_array_tokens() ? "array" : "xarray";
    return {.name = std::string{named.name},
            .interface = state.options().interface,
            .transport = std::string{to_string(session.transport())},
            .tokens = tokens,
            .obstacle = std::string{to_string(session.why_not_devmem())},
            .memory_bytes = session.memory().size(),
            .queues = session.queues().size(),
            .counted = session.stats(),
            .pool = session.pool_stats()};
}

// 0, or an errno.
int write_all(int file, std::string_view text) noexcept
{
    while (!text.empty()) {
        auto const written = ::write(file, text.data(), text.size());
        if (written < 0 && errno != EINTR)
            return errno;
        text.remove_prefix(written > 0 ? static_cast<std::size_t>(written) : 0);
    }
    return 0;
}

// Of this thread alone.
std::filesystem::path beside(std::filesystem::path const& file)
{
    return file.parent_path() / fmt::format(".{}.{}", file.filename().string(), ::gettid());
}

int replace(std::filesystem::path const& file, std::string_view text)
{
    auto const fresh = beside(file);
    detail::unique_fd const out{::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (!out)
        return errno;
    auto failure = write_all(out.get(), text);
    if (failure == 0 && std::rename(fresh.c_str(), file.c_str()) != 0)
        failure = errno;
    if (failure != 0)
        ::unlink(fresh.c_str());
    return failure;
}

}  // namespace

std::string metrics_text(std::span<named_session const> sessions)
{
    std::vector<detail::session_sample> samples;
    samples.reserve(sessions.size());
    for (auto const& each : sessions) {
        if (std::ranges::find(samples, each.name, &detail::session_sample::name) != samples.end())
            throw std::invalid_argument{"two sessions have the name " + std::string{each.name}};
        samples.push_back(sample_of(each));
    }
    return detail::format_metrics(GPURX_VERSION, samples);
}

void write_metrics(std::filesystem::path const& file, std::span<named_session const> sessions, error_code& code,
                   diagnostics& why)
{
    code.clear();
    if (auto const failure = replace(file, metrics_text(sessions)); failure != 0) {
        code.assign(failure, boost::system::system_category());
        why = {.operation = "write metrics", .object = file.string(), .kernel_message = {}, .advice = {}};
    }
}

void write_metrics(std::filesystem::path const& file, std::span<named_session const> sessions)
{
    error_code code;
    diagnostics why;
    write_metrics(file, sessions, code, why);
    if (code)
        throw system_error{code, std::move(why)};
}

}  // namespace gpurx
