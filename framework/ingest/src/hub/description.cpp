// SPDX-License-Identifier: Apache-2.0
#include "description.hpp"

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <boost/json/parse.hpp>
#include <chrono>
#include <gpurx/ingest/error.hpp>
#include <utility>

#include "../net/environment.hpp"
#include "../net/http_connection.hpp"
#include "../net/retry.hpp"
#include "../net/supplied.hpp"
#include "../net/tls.hpp"
#include "../net/url.hpp"

namespace gpurx::ingest::detail::hub {

namespace {

using clock = std::chrono::steady_clock;

constexpr std::size_t size_limit = std::size_t{16} << 20;

struct question {
    url first;
    header_fields fields;  // secret: for the first URL's origin
    fetch_options const& options;
    clock::time_point deadline;
    tls_context tls = {};  // once it is needed
    bool has_answered = false;
};

diagnostics about(question const& of, std::string_view what)
{
    return {.operation = "list", .object = of.first.display, .kernel_message = {}, .advice = printable(what, 1000)};
}

std::chrono::milliseconds time_left(question const& of)
{
    auto const left = of.deadline - clock::now();
    if (left.count() <= 0)
        throw system_error{errc::gave_up, about(of, "the deadline has passed")};
    return left < of.options.timeout ? std::chrono::ceil<std::chrono::milliseconds>(left) : of.options.timeout;
}

asio::awaitable<exchanged> follow_to_answer(question& of)
{
    auto to = of.first;
    for (unsigned redirects = 1;; ++redirects) {
        if (to.secure && of.tls == nullptr)
            of.tls = make_tls_context(of.options.tls);
        exchange what{.to = to,
                      .fields = is_same_origin(to, of.first) ? of.fields : header_fields{},
                      .tls = of.tls,
                      .proxy = proxy_for(to),
                      .limit = time_left(of),
                      .most = size_limit};
        auto answer = co_await async_exchange(std::move(what));
        of.has_answered = true;
        if (!answer.head.is_redirect() || answer.head.location.empty())
            co_return answer;
        to = follow(to, answer.head.location, redirects);
    }
}

asio::awaitable<description> ask(question& of)
{
    auto const [head, body] = co_await follow_to_answer(of);
    if (head.status != 200) {
        auto const words = body.starts_with('{') ? ": " + printable(body) : std::string{};
        refused(head, about(of, status_text(head) + words + std::string{advice_for(head.status)}));
    }
    std::string why;
    auto found = parse_description(body, why);
    if (!found)
        throw system_error{errc::bad_response, about(of, why)};
    co_return std::move(*found);
}

// The failure of one attempt. Throws it if another would be in vain.
passing_error passing_of(question const& of, system_error const& failure)
{
    auto why = failure.why();
    if (why.object.empty())
        why = about(of, failure.code() == errc::gave_up ? why.advice + " (timeout)" : why.advice);
    if (!may_pass(failure))
        throw system_error{failure.code(), why};
    auto const* const refusal = dynamic_cast<passing_error const*>(&failure);
    return {failure.code(), why, refusal != nullptr ? refusal->retry_after : std::nullopt};
}

question question_for(location const& which, fetch_options const& options)
{
    auto to = parse_url(description_url_of(which, endpoint(variable)));
    header_fields given;
    for (auto const& [name, value] : options.headers)
        given.push_back({name, value});
    auto const netrc = to.secure ? content_of(netrc_path(variable)) : std::string{};
    auto fields = authorization_fields(to, std::move(given), options.bearer, variable, netrc);
    auto const deadline = options.deadline.count() != 0 ? clock::now() + options.deadline : clock::time_point::max();
    return {.first = std::move(to), .fields = std::move(fields), .options = options, .deadline = deadline};
}

}  // namespace

std::optional<description> parse_description(std::string_view text, std::string& why)
{
    error_code code;
    auto const parsed = boost::json::parse({text.data(), text.size()}, code);
    auto const* const all = code ? nullptr : parsed.if_object();
    auto const* const commit = all == nullptr ? nullptr : all->if_contains("sha");
    auto const* const files = all == nullptr ? nullptr : all->if_contains("siblings");
    why = R"(its answer does not describe a model: it has no "sha" of a commit, or no list "siblings" of files)";
    if (commit == nullptr || !commit->is_string() || files == nullptr || !files->is_array())
        return std::nullopt;
    description found{.commit = std::string{commit->get_string()}, .files = {}};
    if (!is_commit(found.commit))
        return std::nullopt;
    for (auto const& each : files->get_array()) {
        auto const* const name = each.is_object() ? each.get_object().if_contains("rfilename") : nullptr;
        if (name == nullptr || !name->is_string())
            return std::nullopt;
        found.files.emplace_back(name->get_string());
    }
    why.clear();
    return found;
}

asio::awaitable<description> async_describe(location which, fetch_options options)
{
    ingest::check(options);
    auto of = question_for(which, options);
    if (options.credentials) {
        auto const found = co_await async_credentials(*options.credentials, scheme_of(of.first));
        of.fields = with_fields(std::move(of.fields), found, of.first);
    }
    auto const executor = co_await asio::this_coro::executor;
    retries tries{executor, options.attempts, of.deadline};
    retries unanswered{executor, std::min(options.attempts, attempts_unanswered), of.deadline};
    for (;;) {
        std::optional<passing_error> failure;
        try {
            co_return co_await ask(of);
        } catch (system_error const& error) {
            failure = passing_of(of, error);
        }
        co_await (of.has_answered ? tries : unanswered).async_pause(*failure);
    }
}

}  // namespace gpurx::ingest::detail::hub
