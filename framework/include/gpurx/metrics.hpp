// SPDX-License-Identifier: Apache-2.0
//
// Metrics of sessions as Prometheus reads them: text format 0.0.4, UTF-8. A program that serves HTTP answers with
// metrics_text(); one that does not lets node_exporter's textfile collector read what write_metrics() writes.
//
// Counters end in _total and never fall while the session lives; what a session counts is gone with it, as for a
// process that was started anew. All are of stats() and pool_stats() (stats.hpp), where each is explained, in bytes and
// numbers. Two more say what runs: gpurx_build_info (version) and gpurx_session_info (interface, transport, tokens:
// "array", "xarray" or "none", obstacle: why it is not devmem, as rx_session::why_not_devmem()), each with the value 1.
//
// Thread safety: may be called at the same time, and while the sessions are used.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <gpurx/error.hpp>
#include <gpurx/session.hpp>

namespace gpurx {

// What is measured, and what its label `session` says. Of a session with several memories: each rx_session::part(), as
// its pages are counted by memory. Names differ within one text; UTF-8.
struct named_session {
    std::string_view name;
    std::reference_wrapper<rx_session const> session;
};

// Costs what pool_stats() of each costs. What that does not know is left out. Throws std::invalid_argument if two have
// the same name.
[[nodiscard]] std::string metrics_text(std::span<named_session const> sessions);

// The same into a file, which is never seen half written: a new one beside it takes its name. The collector reads files
// whose names end in .prom, and readable by its user: the mode is 0644 less the umask. To be called every
// 15 s, say, as often as Prometheus asks. Errors: what the file system reports, with the path.
void write_metrics(std::filesystem::path const& file, std::span<named_session const> sessions);
void write_metrics(std::filesystem::path const& file, std::span<named_session const> sessions, error_code& code,
                   diagnostics& why);

}  // namespace gpurx
