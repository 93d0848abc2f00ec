// SPDX-License-Identifier: Apache-2.0
#include "metrics_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <gpurx/metrics.hpp>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "base/failure.hpp"
#include "base/replace_file.hpp"
#include "session_state.hpp"

namespace gpurx::detail {

namespace {

// One line for each session: `name{session="...",labels} value`.
struct metric {
    std::string_view name;
    std::string_view labels;                                // beside `session`; those of one name follow each other
    std::string_view help;                                  // of the first of a name
    std::optional<double> (*value)(session_sample const&);  // empty: not known of this session
};

std::optional<double> known(std::uint64_t value)
{
    return static_cast<double>(value);
}

template <std::uint64_t stats::*Counter>
std::optional<double> counted(session_sample const& from)
{
    return known(from.counted.*Counter);
}

template <auto pool_stats::*Figure>
std::optional<double> in_pool(session_sample const& from)
{
    if (!from.pool)
        return std::nullopt;
    std::optional<std::uint64_t> const figure = (*from.pool).*Figure;
    return figure ? known(*figure) : std::nullopt;
}

std::optional<double> dry_seconds(session_sample const& from)
{
    if (!from.pool || !from.pool->dry_time)
        return std::nullopt;
    return std::chrono::duration<double>{*from.pool->dry_time}.count();
}

constexpr std::string_view counter_ending = "_total";

constexpr std::array metrics{
    metric{"gpurx_received_bytes_total", R"(way="device")",
           "Bytes received, by path: into device memory, into that of another session, linear (copied by the kernel), "
           "to host memory.",
           counted<&stats::device_bytes>},
    metric{"gpurx_received_bytes_total", R"(way="resteered")", {}, counted<&stats::resteered_bytes>},
    metric{"gpurx_received_bytes_total", R"(way="linear")", {}, counted<&stats::linear_bytes>},
    metric{"gpurx_received_bytes_total", R"(way="host")", {}, counted<&stats::host_bytes>},
    metric{"gpurx_fragments_total", {}, "Pieces delivered, of every kind.", counted<&stats::fragments>},
    metric{"gpurx_tokens_out",
           {},
           "Device pages on loan from the kernel, once for each fragment on them.",
           counted<&stats::tokens_out>},
    metric{"gpurx_tokens_high_water",
           {},
           "The most device pages that were ever on loan.",
           counted<&stats::tokens_high_water>},
    metric{"gpurx_xarray_tokens_total",
           {},
           "Tokens that cost the kernel a lock and an entry per fragment.",
           counted<&stats::xarray_tokens>},
    metric{"gpurx_receive_calls_total", {}, "System calls that receive.", counted<&stats::receive_calls>},
    metric{"gpurx_release_calls_total", {}, "System calls that return pages.", counted<&stats::release_calls>},
    metric{"gpurx_waits_total", R"(reason="data")",
           "Times that an operation waited: for data, or for the return of loans and pages.", counted<&stats::waits>},
    metric{"gpurx_waits_total", R"(reason="loans")", {}, counted<&stats::loan_waits>},
    metric{"gpurx_release_shortfalls_total",
           {},
           "Tokens that were already returned: a fault; report it.",
           counted<&stats::release_shortfalls>},
    metric{"gpurx_release_failures_total",
           {},
           "Failed system calls that return pages.",
           counted<&stats::release_failures>},
    metric{"gpurx_starved_total",
           {},
           "Times that a flow waited while the program's loans held every page.",
           counted<&stats::starved>},
    metric{"gpurx_host_memory_bytes",
           {},
           "Host memory of flows for bytes that do not land in device memory.",
           counted<&stats::host_memory>},
    metric{"gpurx_memory_bytes",
           {},
           "Bytes of the session's memory, written by the NIC or the CPU.",
           [](session_sample const& from) { return known(from.memory_bytes); }},
    metric{"gpurx_queues",
           {},
           "RX queues of the NIC that belong to the session.",
           [](session_sample const& from) { return known(from.queues); }},
    metric{"gpurx_pool_pages", R"(place="free")", "Pages of the session's memory, by place; the sum is all its pages.",
           in_pool<&pool_stats::free>},
    metric{"gpurx_pool_pages", R"(place="ring")", {}, in_pool<&pool_stats::in_ring>},
    metric{"gpurx_pool_pages", R"(place="queue")", {}, in_pool<&pool_stats::in_queues>},
    metric{"gpurx_pool_pages", R"(place="loan")", {}, in_pool<&pool_stats::on_loan>},
    metric{"gpurx_pool_pages", R"(place="parked")", {}, in_pool<&pool_stats::parked>},
    metric{"gpurx_pool_pages", R"(place="read")", {}, in_pool<&pool_stats::in_reads>},
    metric{"gpurx_pool_page_bytes", {}, "Bytes of one page of the session's memory.", in_pool<&pool_stats::page_size>},
    metric{"gpurx_pool_high_water_pages", {}, "The most pages that were not free.", in_pool<&pool_stats::high_water>},
    metric{"gpurx_pool_ring_demand_pages",
           {},
           "Pages that the NIC's rings keep posted, at least.",
           in_pool<&pool_stats::ring_demand>},
    metric{"gpurx_pool_dry_seconds_total", {}, "Time during which packets found no free page.", dry_seconds},
    metric{"gpurx_pool_allocation_failures_total",
           {},
           "Times that the driver found no free page.",
           in_pool<&pool_stats::allocation_failures>},
    metric{"gpurx_nic_overruns_total",
           {},
           "Packets that the session's queues dropped without a free buffer.",
           in_pool<&pool_stats::overruns>},
    metric{"gpurx_nic_drops_total", {}, "Packets that the session's queues dropped.", in_pool<&pool_stats::drops>},
};

void add_header(std::string& to, std::string_view name, std::string_view help)
{
    auto const* const type = name.ends_with(counter_ending) ? "counter" : "gauge";
    fmt::format_to(std::back_inserter(to), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

void add_infos(std::string& to, std::string_view version, std::span<session_sample const> samples)
{
    add_header(to, "gpurx_build_info", "Version of the library.");
    fmt::format_to(std::back_inserter(to), "gpurx_build_info{{version=\"{}\"}} 1\n", escaped_label(version));
    if (samples.empty())
        return;
    add_header(to, "gpurx_session_info",
               "Interface, transport and tokens of a session; its obstacles to devmem and to zcrx.");
    for (auto const& each : samples)
        fmt::format_to(std::back_inserter(to),
                       "gpurx_session_info{{session=\"{}\",interface=\"{}\",transport=\"{}\",tokens=\"{}\","
                       "obstacle=\"{}\",zcrx_obstacle=\"{}\"}} 1\n",
                       escaped_label(each.name), escaped_label(each.interface), each.transport, each.tokens,
                       each.obstacle, each.zcrx_obstacle);
}

void add_metric(std::string& to, metric const& what, std::span<session_sample const> samples)
{
    std::string lines;
    for (auto const& from : samples) {
        if (auto const value = what.value(from))
            fmt::format_to(std::back_inserter(lines), "{}{{session=\"{}\"{}{}}} {}\n", what.name,
                           escaped_label(from.name), what.labels.empty() ? "" : ",", what.labels, *value);
    }
    if (!what.help.empty() && !lines.empty())
        add_header(to, what.name, what.help);
    to += lines;
}

}  // namespace

std::string escaped_label(std::string_view text)
{
    std::string all;
    for (auto const each : text) {
        if (each == '\\' || each == '"')
            all += '\\';
        if (each == '\n')
            all += "\\n";
        else
            all += each;
    }
    return all;
}

std::string format_metrics(std::string_view version, std::span<session_sample const> samples)
{
    std::string text;
    add_infos(text, version, samples);
    if (samples.empty())
        return text;
    for (auto const& each : metrics)
        add_metric(text, each, samples);
    return text;
}

}  // namespace gpurx::detail

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
            .zcrx_obstacle = std::string{to_string(session.why_not_zcrx())},
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
        code = detail::errno_code(failure);
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
