// SPDX-License-Identifier: Apache-2.0
#include "http_date.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace gpurx::ingest::detail {

namespace {

using namespace std::chrono;

// Digits only, all of them; -1: it is no number.
int number_in(std::string_view text) noexcept
{
    int value = -1;
    auto const* const end = text.data() + text.size();
    auto const [stopped, error] = std::from_chars(text.data(), end, value);
    return error == std::errc{} && stopped == end ? value : -1;
}

}  // namespace

std::optional<sys_seconds> parse_http_date(std::string_view field) noexcept
{
    constexpr std::array<std::string_view, 12> months{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    constexpr std::string_view shape = "Sun, 06 Nov 1994 08:49:37 GMT";
    if (field.size() != shape.size() || field.substr(3, 2) != ", " || !field.ends_with(" GMT") || field[19] != ':' ||
        field[22] != ':')
        return std::nullopt;
    auto const* const named = std::ranges::find(months, field.substr(8, 3));
    if (named == months.end())
        return std::nullopt;
    auto const h = number_in(field.substr(17, 2));
    auto const m = number_in(field.substr(20, 2));
    auto const s = number_in(field.substr(23, 2));
    auto const d = number_in(field.substr(5, 2));
    auto const y = number_in(field.substr(12, 4));
    if (h < 0 || h > 23 || m < 0 || m > 59 || s < 0 || s > 60 || d < 0 || y < 1970)
        return std::nullopt;
    year_month_day const day{year{y}, month{static_cast<unsigned>(named - months.begin()) + 1},
                             std::chrono::day{static_cast<unsigned>(d)}};
    if (!day.ok())
        return std::nullopt;
    return sys_days{day} + hours{h} + minutes{m} + seconds{s};
}

std::optional<seconds> parse_retry_after(std::string_view field, std::string_view date, sys_seconds now) noexcept
{
    if (auto const wait = number_in(field); wait >= 0)
        return seconds{wait};
    auto const until = parse_http_date(field);
    if (!until)
        return std::nullopt;
    return std::max(*until - parse_http_date(date).value_or(now), seconds{0});
}

}  // namespace gpurx::ingest::detail
