// SPDX-License-Identifier: Apache-2.0
#include "path.hpp"

#include <algorithm>
#include <boost/url/parse.hpp>
#include <gpurx/ingest/error.hpp>

#include "../net/display.hpp"

namespace gpurx::ingest::detail {

namespace {

namespace urls = boost::urls;

constexpr std::string_view file_scheme = "file:";

char lower(char letter) noexcept
{
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

bool is_scheme(std::string_view text) noexcept
{
    return !text.empty() && std::ranges::all_of(text, [](char each) {
        auto const letter = lower(each);
        return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') || letter == '+' || letter == '-' ||
               letter == '.';
    });
}

bool is_file_url(std::string_view text) noexcept
{
    return text.size() >= file_scheme.size() &&
           std::ranges::equal(text.substr(0, file_scheme.size()), file_scheme, {}, lower);
}

std::string path_in(std::string_view text, std::string& wrong)
{
    auto const parsed = urls::parse_uri({text.data(), text.size()});
    if (!parsed || parsed->encoded_path().empty() || parsed->encoded_path().front() != '/')
        wrong = "it has to be like file:///directory/name, other characters written as %20";
    else if (!parsed->host().empty() && parsed->host() != "localhost")
        wrong = "it names a file of another machine; three slashes begin a path of this one: file:///directory/name";
    else if (parsed->has_query() || parsed->has_fragment())
        wrong = "a file has no query and no fragment; in a name they are written %3F and %23";
    else
        return parsed->path();
    return {};
}

}  // namespace

bool is_local(std::string_view text) noexcept
{
    auto const end = text.find("://");
    return is_file_url(text) || end == std::string_view::npos || !is_scheme(text.substr(0, end));
}

std::string parse_path(std::string_view text, error_code& code, diagnostics& why)
{
    why = {.operation = "open", .object = printable(text, 2000), .kernel_message = {}, .advice = {}};
    auto path = is_file_url(text) ? path_in(text, why.advice) : std::string{text};
    if (why.advice.empty() && path.empty())
        why.advice = "it is empty";
    if (why.advice.empty() && path.find('\0') != std::string::npos)
        why.advice = "a zero byte is in it";
    code = why.advice.empty() ? error_code{} : errc::bad_url;
    return code ? std::string{} : path;
}

}  // namespace gpurx::ingest::detail
