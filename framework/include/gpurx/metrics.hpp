// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Metrics of sessions for Prometheus: text format 0.0.4, in UTF-8.
///
/// A program that serves HTTP answers with metrics_text(). Any other program writes a file with write_metrics(), and
/// the textfile collector of node_exporter reads it.
///
/// Names of counters end in `_total`. Counters never fall while the session lives. They end with the session, as those
/// of a restarted process. All values are those of rx_session::stats() and rx_session::pool_stats(), in bytes and
/// numbers; stats.hpp documents each. Two more metrics have the value 1 and describe the program:
/// - `gpurx_build_info`, with the label `version`;
/// - `gpurx_session_info`, with the labels `interface`, `transport`, `tokens`, `obstacle` and `zcrx_obstacle`. `tokens`
///   is "array", "xarray" or "none". `obstacle` is the reason why the transport is not `devmem`, as in
///   rx_session::why_not_devmem(); `zcrx_obstacle` is rx_session::why_not_zcrx().
///
/// @par Thread safety
/// Threads may call the functions at the same time, and while they use the sessions.
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
/// For a session with several memories, pass each rx_session::part(), because pages are counted for each memory.
struct named_session {
    /// @brief Value of the label `session`, in UTF-8. Names within one text must differ.
    std::string_view name;
    /// @brief Session to measure.
    std::reference_wrapper<rx_session const> session;
};

/// @brief Returns the metrics of the sessions as text.
///
/// The text omits values that rx_session::pool_stats() does not have.
///
/// @throws std::invalid_argument If two sessions have the same name.
///
/// @par Cost
/// As rx_session::pool_stats() of each session.
[[nodiscard]] std::string metrics_text(std::span<named_session const> sessions);

/// @brief Writes the text of metrics_text() into a file, atomically.
///
/// The function writes a new file in the same directory and renames it, so readers never see a half-written file. The
/// collector reads files whose names end in `.prom`, and its user must be able to read them. So the mode is 0644 less
/// the umask. Call the function as often as Prometheus scrapes, such as every 15 s.
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
