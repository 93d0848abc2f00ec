// SPDX-License-Identifier: Apache-2.0
#include "refusal.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "xml.hpp"

namespace gpurx::ingest::detail::s3 {

namespace {

// What is behind a code, where its message does not say it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> advice{
    {{"AccessDenied",
      "check who asks (`aws sts get-caller-identity`) and whether s3:GetObject is allowed there; a missing key is "
      "refused like this, too, to who may not list the bucket"},
     {"InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID, AWS_PROFILE and the endpoint"},
     {"SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY"},
     {"ExpiredToken", "get new credentials"},
     {"InvalidToken", "check AWS_SESSION_TOKEN"},
     {"RequestTimeTooSkewed", "set this machine's clock"}}};

}  // namespace

std::optional<refusal> parse_refusal(std::string_view body)
{
    auto const begin = body.find("<Error>");
    auto const code = text_of(body, "Code");
    if (begin == std::string_view::npos || code.empty())
        return std::nullopt;
    return refusal{.code = code,
                   .message = text_of(body, "Message"),
                   .region = text_of(body, "Region"),
                   .request_time = text_of(body, "RequestTime"),
                   .server_time = text_of(body, "ServerTime")};
}

std::string words_of(refusal const& said)
{
    auto words = said.message.empty() ? said.code : fmt::format("{}: {}", said.code, said.message);
    if (!said.server_time.empty())
        words += fmt::format(" Here it is {}, there {}", said.request_time, said.server_time);
    for (auto const& [code, what] : advice) {
        if (code == said.code)
            words += fmt::format("; {}", what);
    }
    return words;
}

bool is_about_expiry(refusal const& said) noexcept
{
    return said.code == "ExpiredToken";
}

}  // namespace gpurx::ingest::detail::s3
