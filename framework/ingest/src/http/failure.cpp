// SPDX-License-Identifier: Apache-2.0
#include "failure.hpp"

#include <fmt/format.h>

#include <boost/algorithm/string/find.hpp>
#include <boost/asio/error.hpp>
#include <gpurx/ingest/error.hpp>
#include <optional>

#include "../net/display.hpp"
#include "../s3/refusal.hpp"
#include "request.hpp"

namespace gpurx::ingest::detail {

namespace {

bool is_passing(error_code code)
{
    if (code.category() == boost::system::system_category())
        return code != asio::error::operation_aborted && code != asio::error::access_denied;
    return code == asio::error::eof || code == asio::error::host_not_found_try_again || code == errc::gave_up ||
           code == gpurx::errc::memory_locked_up || code == gpurx::errc::too_many_flows;
}

// A page for browsers. Whatever else a server says is for the program's user.
bool is_page(std::string_view body)
{
    std::string_view const begin = body.substr(0, 256);
    return !boost::ifind_first(begin, "<html").empty() || !boost::ifind_first(begin, "<!doctype html").empty();
}

std::string_view advice_for(unsigned status)
{
    switch (status) {
        case 401:
        case 403:
            return "; check who asks, by token, user and password, or certificate";
        case 404:
        case 410:
            return "; check the path of the URL: the server has nothing there";
        default:
            return {};
    }
}

}  // namespace

diagnostics words_for(url const& from, std::string_view advice)
{
    return {.operation = "fetch", .object = from.display, .kernel_message = {}, .advice = printable(advice, 1000)};
}

void fail(error_code code, url const& from, std::string_view advice)
{
    throw system_error{code, words_for(from, advice)};
}

passing_error passing(system_error const& failure, url const& from)
{
    auto why = failure.why();
    if (why.object != from.display) {
        if (!why.object.empty())
            why.advice = printable(
                fmt::format("{} {} failed{}{}", why.operation, why.object, why.advice.empty() ? "" : "; ", why.advice),
                2000);
        why.operation = "fetch";
        why.object = from.display;
    }
    auto const* const refusal = dynamic_cast<passing_error const*>(&failure);
    if (refusal == nullptr && !is_passing(failure.code()))
        throw system_error{failure.code(), why};
    return {failure.code(), why, refusal != nullptr ? refusal->retry_after : std::nullopt};
}

std::string refusal_text(answer const& head, std::string_view body)
{
    auto const said = s3::parse_refusal(body);
    auto words = status_text(head);
    if (said)
        return words + ": " + s3::words_of(*said);
    if (!body.empty() && !is_page(body))
        words += fmt::format(": {}", body);
    words += advice_for(head.status);
    return words;
}

void refused(answer const& head, diagnostics const& why)
{
    if (!head.is_temporary())
        throw system_error{errc::http_status, why};
    throw passing_error{errc::http_status, why, head.retry_after};
}

}  // namespace gpurx::ingest::detail
