// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/this_coro.hpp>
#include <chrono>
#include <gpurx/ingest/http.hpp>
#include <iterator>

#include "../net/environment.hpp"
#include "../net/http_connection.hpp"
#include "../net/retry.hpp"
#include "../net/url.hpp"
#include "client.hpp"
#include "response.hpp"

namespace gpurx::ingest {

namespace detail::s3 {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds page_time = 30s;
constexpr std::size_t page_limit = std::size_t{16} << 20;
constexpr std::size_t object_limit = 1'000'000;
// A server may send pages without an object, of what has been deleted; of so many there is no end.
constexpr unsigned empty_page_limit = 1000;

struct listing {
    client& asked;
    location const& from;
    std::string const& prefix;
    bool is_directory;  // lists what is directly below it
    unsigned attempts;
    std::chrono::steady_clock::time_point deadline;
    tls_context tls = {};  // once it is needed
    bool has_answered = false;
};

diagnostics about(listing const& of, std::string_view what)
{
    return {.operation = "list",
            .object = without_secrets(of.prefix),
            .kernel_message = {},
            .advice = printable(what, 1000)};
}

// Whether the server names another region. Later requests then go there.
bool is_elsewhere(listing const& of, exchanged const& answer)
{
    auto const said = parse_refusal(answer.body);
    return of.asked.move_to(answer.head.bucket_region) || (said && of.asked.move_to(said->region));
}

// Throws what the server says; a passing_error if asking once more may help.
void check(listing const& of, exchanged const& answer)
{
    auto const& head = answer.head;
    if (head.status == 200)
        return;
    auto const said = parse_refusal(answer.body, head.error_code);
    auto const words =
        fmt::format("{}{}{}", status_text(head), said ? ": " : "", said ? words_of(*said, of.from.of) : std::string{});
    auto const is_over = head.status == 401 || (said && is_about_expiry(*said));
    auto const renewed = is_over && of.asked.end_credentials();
    if (!head.is_temporary() && !is_elsewhere(of, answer) && !renewed)
        throw system_error{errc::http_status, about(of, words)};
    throw passing_error{errc::http_status, about(of, words), head.retry_after};
}

std::chrono::milliseconds time_for_page(listing const& of)
{
    auto const left = of.deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0)
        throw system_error{errc::gave_up, about(of, "the deadline has passed")};
    return left < page_time ? std::chrono::ceil<std::chrono::milliseconds>(left) : page_time;
}

// The answer of where it leads. A server elsewhere gets no signature.
asio::awaitable<exchanged> follow_to_answer(listing& of, parameters query)
{
    auto to = of.asked.where(of.from.bucket, query);
    for (unsigned redirects = 1;; ++redirects) {
        auto const fields = of.asked.sign("GET", to, {{"Host", to.authority}});
        if (to.secure && of.tls == nullptr)
            of.tls = make_tls_context(of.asked.tls());
        exchange what{.to = to,
                      .fields = fields,
                      .tls = of.tls,
                      .proxy = proxy_for(to),
                      .limit = time_for_page(of),
                      .most = page_limit};
        auto answer = co_await async_exchange(std::move(what));
        of.has_answered = true;
        if (!answer.head.is_redirect())
            co_return answer;
        if (is_elsewhere(of, answer))
            to = of.asked.where(of.from.bucket, query);
        else if (!answer.head.location.empty())
            to = follow(to, answer.head.location, redirects);
        else
            co_return answer;
    }
}

asio::awaitable<listing_page> ask(listing& of, std::string token)
{
    auto const is_azure = of.from.of == store::azure;
    using pairs = std::vector<std::pair<std::string, std::string>>;
    // Metadata tells Azure's directories from objects. Pages of this size are below the limit with any metadata.
    auto query =
        is_azure ? pairs{{"restype", "container"}, {"comp", "list"}, {"include", "metadata"}, {"maxresults", "1000"}}
                 : pairs{{"encoding-type", "url"}, {"list-type", "2"}};
    query.emplace_back("prefix", of.from.key);
    if (of.is_directory)
        query.emplace_back("delimiter", "/");
    if (!token.empty())
        query.emplace_back(is_azure ? "marker" : "continuation-token", token);
    static_cast<void>(time_for_page(of));  // before the service that gives credentials is asked, too
    co_await of.asked.async_renew(of.deadline);
    auto const answer = co_await follow_to_answer(of, query);
    check(of, answer);
    std::string why;
    auto page = parse_listing(answer.body, of.from.bucket, why, of.from.of);
    // Where the connection's end ends a body, a failure may have done so.
    if (!page && !answer.head.length && !answer.head.chunked)
        throw passing_error{errc::bad_response, about(of, why)};
    if (!page)
        throw system_error{errc::bad_response, about(of, why)};
    co_return std::move(*page);
}

asio::awaitable<listing_page> page_behind(listing& of, std::string token)
{
    auto const executor = co_await asio::this_coro::executor;
    retries tries{executor, of.attempts, of.deadline};
    retries unanswered{executor, std::min(of.attempts, attempts_unanswered), of.deadline};
    for (;;) {
        std::optional<passing_error> failure;
        try {
            co_return co_await ask(of, token);
        } catch (system_error const& error) {
            auto why = error.why();
            if (why.object.empty()) {
                auto const asked = of.asked.where(of.from.bucket, {}).authority;
                why = about(of, why.advice.empty() ? asked + " was asked" : asked + ": " + why.advice);
            }
            if (!may_pass(error))
                throw system_error{error.code(), why};
            auto const* const refusal = dynamic_cast<passing_error const*>(&error);
            failure.emplace(error.code(), why, refusal != nullptr ? refusal->retry_after : std::nullopt);
        }
        co_await (of.has_answered ? tries : unanswered).async_pause(*failure);
    }
}

// Some servers know no delimiter.
bool is_below_directory(s3_object const& each, listing const& of)
{
    return of.is_directory && each.url.find('/', of.prefix.size()) != std::string::npos;
}

asio::awaitable<std::vector<s3_object>> all_pages(listing& of)
{
    std::vector<s3_object> objects;
    std::string token;
    std::size_t listed = 0;
    unsigned empty_pages = 0;
    do {
        auto page = co_await page_behind(of, token);
        if (page.next == token && !token.empty())
            throw system_error{errc::bad_response, about(of, "its answer repeats the request's token")};
        token = std::move(page.next);
        if (page.objects.empty() && ++empty_pages > empty_page_limit)
            throw system_error{errc::bad_response,
                               about(of, fmt::format("{} of its pages contain no object", empty_pages))};
        listed += page.objects.size();
        std::erase_if(page.objects, [&of](s3_object const& each) { return is_below_directory(each, of); });
        std::ranges::move(page.objects, std::back_inserter(objects));
        if (listed > object_limit)
            throw system_error{errc::bad_response,
                               about(of, fmt::format("it contains more than {} objects", object_limit))};
    } while (!token.empty());
    co_return objects;
}

asio::awaitable<std::vector<s3_object>> list_all(std::string prefix, bool is_directory, fetch_options options)
{
    ingest::check(options);
    if (is_directory && !prefix.ends_with('/'))
        prefix += '/';
    error_code code;
    diagnostics why;
    auto const from = parse_location(prefix, code, why);
    if (code)
        throw system_error{code, why};
    auto const deadline = options.deadline.count() != 0 ? std::chrono::steady_clock::now() + options.deadline
                                                        : std::chrono::steady_clock::time_point::max();
    auto const servers = servers_of(options.s3);
    for (auto server = servers.begin();; ++server) {
        client asked{*server, options, from};
        co_await asked.async_start(deadline);
        listing of{.asked = asked,
                   .from = from,
                   .prefix = prefix,
                   .is_directory = is_directory,
                   .attempts = options.attempts,
                   .deadline = deadline};
        try {
            co_return co_await all_pages(of);
        } catch (system_error const& error) {
            bool const may_be_elsewhere = may_pass(error) || error.code() == errc::http_status;
            if (!may_be_elsewhere || server + 1 == servers.end() || std::chrono::steady_clock::now() >= deadline)
                throw;
        }
    }
}

}  // namespace

}  // namespace detail::s3

asio::awaitable<std::vector<s3_object>> async_list_s3(std::string prefix, fetch_options options)
{
    return detail::s3::list_all(std::move(prefix), false, std::move(options));
}

asio::awaitable<std::vector<s3_object>> async_list_s3_directory(std::string directory, fetch_options options)
{
    return detail::s3::list_all(std::move(directory), true, std::move(options));
}

}  // namespace gpurx::ingest
