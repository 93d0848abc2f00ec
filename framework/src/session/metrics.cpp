// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <gpurx/metrics.hpp>
#include <stdexcept>
#include <vector>

#include "base/replace_file.hpp"
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
    if (auto const failure = detail::replace_file(file, metrics_text(sessions)); failure != 0) {
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
