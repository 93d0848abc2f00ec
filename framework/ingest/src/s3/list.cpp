// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <boost/asio/error.hpp>
#include <boost/asio/this_coro.hpp>
#include <gpurx/ingest/s3.hpp>
#include <iterator>

#include "../http/patience.hpp"
#include "../http/shown.hpp"
#include "client.hpp"
#include "exchange.hpp"
#include "listing.hpp"
#include "refusal.hpp"

namespace gpurx::ingest {

namespace detail::s3 {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds page_time = 30s;
constexpr std::size_t page_limit = std::size_t{16} << 20;
constexpr std::size_t object_limit = 1'000'000;
constexpr unsigned attempts = 5;

struct listing {
    client& asked;
    location const& from;
    std::string const& prefix;
};

diagnostics about(listing const& of, std::string_view what)
{
    return {.operation = "list", .object = of.prefix, .kernel_message = {}, .advice = printable(what, 1000)};
}

passing_error after(std::optional<std::chrono::seconds> pause, passing_error failure)
{
    failure.retry_after = pause;
    return failure;
}

// Throws what the server says; a passing_error if asking once more may help.
void check(listing const& of, small_answer const& answer)
{
    if (answer.status == 200)
        return;
    auto const said = parse_refusal(answer.body);
    auto const words = fmt::format("it answers {} {}{}{}", answer.status, answer.reason, said ? ": " : "",
                                   said ? words_of(*said) : std::string{});
    auto const temporary =
        answer.status == 429 || answer.status == 500 || (answer.status >= 502 && answer.status <= 504);
    auto const moved = of.asked.move_to(answer.region) || (said && of.asked.move_to(said->region));
    auto const renewed = said && is_about_expiry(*said) && of.asked.end_credentials();
    if (!temporary && !moved && !renewed)
        throw system_error{errc::http_status, about(of, words)};
    throw after(answer.retry_after, {errc::http_status, about(of, words)});
}

asio::awaitable<listing_page> ask(listing of, std::string token)
{
    std::vector<std::pair<std::string, std::string>> query{
        {"encoding-type", "url"}, {"list-type", "2"}, {"prefix", of.from.key}};
    if (!token.empty())
        query.emplace_back("continuation-token", token);
    co_await of.asked.async_renew();
    auto const to = of.asked.where(of.from.bucket, query);
    auto const fields = of.asked.sign("GET", to, {{"Host", to.authority}});
    exchange what{.to = to, .fields = fields, .tls = of.asked.tls(), .limit = page_time, .most = page_limit};
    auto const answer = co_await async_exchange(std::move(what));
    check(of, answer);
    std::string why;
    auto page = parse_listing(answer.body, of.from.bucket, why);
    if (!page)
        throw system_error{errc::bad_response, about(of, why)};
    co_return std::move(*page);
}

bool is_passing(error_code code)
{
    return code == errc::gave_up || code == asio::error::eof || code == asio::error::host_not_found_try_again ||
           (code.category() == boost::system::system_category() && code != asio::error::operation_aborted);
}

asio::awaitable<listing_page> page_behind(listing of, std::string token)
{
    patience tries{co_await asio::this_coro::executor, attempts};
    for (;;) {
        std::optional<passing_error> failure;
        try {
            co_return co_await ask(of, token);
        } catch (passing_error const& error) {
            failure = error;
        } catch (system_error const& error) {
            auto why = error.why();
            if (why.object.empty())
                why = about(of, why.advice);
            if (!is_passing(error.code()))
                throw system_error{error.code(), why};
            failure.emplace(error.code(), why);
        }
        co_await tries.async_pause(*failure);
    }
}

asio::awaitable<std::vector<s3_object>> list_all(std::string prefix, s3_options options, tls_options tls)
{
    error_code code;
    diagnostics why;
    auto const from = parse_location(prefix, code, why);
    if (code)
        throw system_error{code, why};
    client asked{std::move(options), std::move(tls)};
    co_await asked.async_start();
    listing const of{asked, from, prefix};
    std::vector<s3_object> objects;
    std::string token;
    do {
        auto page = co_await page_behind(of, token);
        if (page.next == token && !token.empty())
            throw system_error{errc::bad_response, about(of, "its answer has the token that it was asked with")};
        token = std::move(page.next);
        std::ranges::move(page.objects, std::back_inserter(objects));
        if (objects.size() > object_limit)
            throw system_error{errc::bad_response, about(of, fmt::format("it has more than {} objects", object_limit))};
    } while (!token.empty());
    co_return objects;
}

}  // namespace

}  // namespace detail::s3

asio::awaitable<std::vector<s3_object>> async_list_s3(std::string prefix, s3_options options, tls_options tls)
{
    return detail::s3::list_all(std::move(prefix), std::move(options), std::move(tls));
}

}  // namespace gpurx::ingest
