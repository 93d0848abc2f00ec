// SPDX-License-Identifier: Apache-2.0
#include "credentials.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <charconv>

namespace gpurx::ingest::detail::s3 {

namespace {

namespace json = boost::json;

std::string text_in(json::object const& fields, std::string_view name)
{
    auto const* const found = fields.if_contains(name);
    auto const* const text = found == nullptr ? nullptr : found->if_string();
    return text == nullptr ? std::string{} : std::string{text->data(), text->size()};
}

bool read_digits(std::string_view text, std::size_t at, std::size_t count, int& value) noexcept
{
    auto const* const begin = text.data() + at;
    auto const [stopped, error] = std::from_chars(begin, begin + count, value);
    return error == std::errc{} && stopped == begin + count && *begin != '-';
}

// What may follow the seconds.
bool is_utc(std::string_view rest) noexcept
{
    if (rest.starts_with('.')) {
        auto const end = rest.find_first_not_of("0123456789", 1);
        rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end);
    }
    return rest == "Z" || rest == "+00:00";
}

}  // namespace

std::optional<credentials> parse_credentials(std::string_view json, std::string& why)
{
    boost::system::error_code code;
    auto const parsed = json::parse({json.data(), json.size()}, code);
    auto const* const fields = code ? nullptr : parsed.if_object();
    if (fields == nullptr) {
        why = "it does not answer with a JSON object";
        return std::nullopt;
    }
    // The metadata service says here that it has none.
    if (auto const status = text_in(*fields, "Code"); !status.empty() && status != "Success") {
        why = fmt::format("it answers {} {}", status, text_in(*fields, "Message"));
        return std::nullopt;
    }
    credentials found{.access_key = text_in(*fields, "AccessKeyId"),
                      .secret_key = text_in(*fields, "SecretAccessKey"),
                      .session_token = text_in(*fields, "Token"),
                      .expires = {}};
    auto const expiration = text_in(*fields, "Expiration");
    found.expires = parse_time(expiration);
    if (!are_usable(found) || (!expiration.empty() && !found.expires)) {
        why = "its answer lacks a usable AccessKeyId or SecretAccessKey, or has an Expiration that is no time";
        return std::nullopt;
    }
    return found;
}

bool are_usable(credentials const& found) noexcept
{
    auto const visible = [](char each) { return each > ' ' && each <= '~'; };
    return !found.access_key.empty() && !found.secret_key.empty() && std::ranges::all_of(found.access_key, visible) &&
           std::ranges::all_of(found.session_token, visible);
}

std::optional<time_point> parse_time(std::string_view text) noexcept
{
    constexpr std::string_view shape = "0000-00-00T00:00:00";
    if (text.size() <= shape.size())
        return std::nullopt;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] != '0' && text[i] != shape[i])
            return std::nullopt;
    }
    int year = 0;
    int month = 0;
    int day = 0;
    int hour = 0;
    int minute = 0;
    int second = 0;
    if (!read_digits(text, 0, 4, year) || !read_digits(text, 5, 2, month) || !read_digits(text, 8, 2, day) ||
        !read_digits(text, 11, 2, hour) || !read_digits(text, 14, 2, minute) || !read_digits(text, 17, 2, second) ||
        !is_utc(text.substr(shape.size())))
        return std::nullopt;
    using namespace std::chrono;
    year_month_day const date{std::chrono::year{year}, std::chrono::month(static_cast<unsigned>(month)),
                              std::chrono::day(static_cast<unsigned>(day))};
    if (!date.ok() || hour > 23 || minute > 59 || second > 60)
        return std::nullopt;
    return sys_days{date} + hours{hour} + minutes{minute} + seconds{second};
}

std::string basic_time(time_point when)
{
    using namespace std::chrono;
    auto const day = floor<days>(when);
    year_month_day const date{day};
    hh_mm_ss const time{when - day};
    return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", static_cast<int>(date.year()),
                       static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), time.hours().count(),
                       time.minutes().count(), time.seconds().count());
}

}  // namespace gpurx::ingest::detail::s3
