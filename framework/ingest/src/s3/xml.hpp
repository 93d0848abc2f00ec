// SPDX-License-Identifier: Apache-2.0
//
// As much of XML as S3's answers have: elements without attributes, none within one of its own name. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpurx::ingest::detail::s3 {

// What stands in the first element of that name; empty: there is none, or it does not end.
[[nodiscard]] std::optional<std::string_view> element(std::string_view xml, std::string_view name) noexcept;
// The same, and `xml` begins behind it afterwards.
[[nodiscard]] std::optional<std::string_view> next_element(std::string_view& xml, std::string_view name) noexcept;
// Text with &amp; and its like as characters.
[[nodiscard]] std::string unescaped(std::string_view text);
// The text of the first element of that name; empty: there is none.
[[nodiscard]] std::string text_of(std::string_view xml, std::string_view name);

}  // namespace gpurx::ingest::detail::s3
