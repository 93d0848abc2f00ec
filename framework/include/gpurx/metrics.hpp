// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Metrics of sessions for Prometheus, in its text format 0.0.4 and UTF-8.
///
/// A program that serves HTTP answers with metrics_text(). A program that does not lets the textfile collector of
/// node_exporter read the file of write_metrics().
///
/// Counters end in `_total` and never fall while the session lives. They are gone with the session, as for a process
/// that was restarted. All values are those of rx_session::stats() and rx_session::pool_stats() (stats.hpp), in bytes
/// and numbers. Two more metrics have the value 1 and tell what runs:
/// - `gpurx_build_info`, with the label `version`;
/// - `gpurx_session_info`, with the labels `interface`, `transport`, `tokens` and `obstacle`. `tokens` is "array",
///   "xarray" or "none". `obstacle` tells why the transport is not `devmem`, as rx_session::why_not_devmem() does.
///
/// @par Thread safety
/// The functions may be called at the same time, and while the sessions are used.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <gpurx/error.hpp>
#include <gpurx/session.hpp>

namespace gpurx {

/// @brief A session to measure, and its name in the metrics.
///
/// For a session with several memories, give each rx_session::part(), because pages are counted by memory.
struct named_session {
    /// @brief Value of the label `session`, in UTF-8. Names differ within one text.
    std::string_view name;
    /// @brief Session to measure.
    std::reference_wrapper<rx_session const> session;
};

/// @brief Returns the metrics of the sessions as text.
///
/// Values that rx_session::pool_stats() does not have are left out.
///
/// @throws std::invalid_argument If two sessions have the same name.
///
/// @par Cost
/// As rx_session::pool_stats() of each session.
[[nodiscard]] std::string metrics_text(std::span<named_session const> sessions);

/// @brief Writes the text of metrics_text() into a file that readers never see half written.
///
/// A new file beside it takes its name. The collector reads files whose names end in `.prom`, and its user must be able
/// to read them. So the mode is 0644 less the umask. Call it as often as Prometheus asks, such as every 15 s.
///
/// @throws system_error See Errors.
/// @throws std::invalid_argument If two sessions have the same name.
///
/// @par Errors
/// The errors of the file system, with the path.
void write_metrics(std::filesystem::path const& file, std::span<named_session const> sessions);
/// @brief Sets `code` and `why` instead of throwing; otherwise as the overload above.
void write_metrics(std::filesystem::path const& file, std::span<named_session const> sessions, error_code& code,
                   diagnostics& why);

}  // namespace gpurx
