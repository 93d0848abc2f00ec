// SPDX-License-Identifier: Apache-2.0
//
// A kernel's configuration, as /proc/config.gz and /boot/config-* have it. No I/O.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gpurx::doctor {

// Of the options in `wanted` (without CONFIG_) those that are set, and their values.
[[nodiscard]] std::map<std::string, std::string> read_kernel_config(std::string_view text,
                                                                    std::span<std::string_view const> wanted);

// What gzip packed; nothing: it is no gzip, or damaged, or longer than 16 MiB.
[[nodiscard]] std::optional<std::string> gunzip(std::string_view packed);

}  // namespace gpurx::doctor
