// SPDX-License-Identifier: Apache-2.0
#include "supplied.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <boost/beast/core/string.hpp>
#include <exception>
#include <gpurx/ingest/error.hpp>

#include "environment.hpp"
#include "io_threads.hpp"
#include "retry.hpp"

namespace gpurx::ingest {

namespace {

constexpr std::chrono::minutes early{5};

[[noreturn]] void fail_to_supply(std::string_view what)
{
    throw system_error{errc::no_credentials,
                       {.operation = "call",
                        .object = "the function that supplies credentials",
                        .kernel_message = {},
                        .advice = detail::printable(what, 1000)}};
}

void check_supplied(request_credentials const& found)
{
    auto const has_part = !found.access_key.empty() || !found.secret_key.empty() || !found.session_token.empty();
    if (has_part && (found.access_key.empty() || found.secret_key.empty()))
        fail_to_supply("its result has an access key without a secret key, or the other way round");
    if (has_part && !found.headers.empty())
        fail_to_supply("its result has keys and header fields; return one of them");
    auto const sent = {detail::header_field{"Authorization", found.access_key},
                       detail::header_field{"x-amz-security-token", found.session_token}};
    for (auto const& each : sent)
        if (auto const* const wrong = detail::what_is_wrong(each))
            fail_to_supply(fmt::format("its keys cannot be sent: {}", wrong));
    for (auto const& [name, value] : found.headers)
        if (auto const* const wrong = detail::what_is_wrong({name, value}))
            fail_to_supply(fmt::format("header \"{}\" of its result: {}", detail::printable(name, 100), wrong));
}

}  // namespace

// ---- credential_source ----

std::optional<request_credentials> credential_source::current(std::string_view scheme, time_point now) const
{
    std::scoped_lock const lock{mutex_};
    auto const found = last_.find(scheme);
    if (found == last_.end() || (found->second.renewal && *found->second.renewal <= now))
        return std::nullopt;
    return found->second.found;
}

std::optional<request_credentials> credential_source::valid(std::string_view scheme, time_point now) const
{
    std::scoped_lock const lock{mutex_};
    auto const found = last_.find(scheme);
    if (found == last_.end())
        return std::nullopt;
    auto const& end = found->second.found.expires;
    return end && *end <= now ? std::nullopt : std::optional{found->second.found};
}

request_credentials credential_source::get(std::string_view scheme, time_point now)
{
    if (auto last = current(scheme, now))
        return std::move(*last);
    std::unique_lock asking{asking_, std::defer_lock};
    if (auto last = valid(scheme, now); last && !asking.try_lock())
        return std::move(*last);
    if (!asking.owns_lock())
        asking.lock();
    // Another thread may have asked meanwhile.
    if (auto last = current(scheme, now))
        return std::move(*last);
    result fresh;
    try {
        fresh.found = ask_(scheme);
        check_supplied(fresh.found);
    } catch (std::exception const& failure) {
        if (auto last = valid(scheme, now))
            return std::move(*last);
        if (dynamic_cast<system_error const*>(&failure) != nullptr)
            throw;
        fail_to_supply(failure.what());
    }
    if (auto const& end = fresh.found.expires)
        fresh.renewal = std::max(*end - early, now + (*end - now) / 2);
    std::scoped_lock const lock{mutex_};
    last_[std::string{scheme}] = fresh;
    return fresh.found;
}

void credential_source::refuse(std::string_view scheme, request_credentials const& refused)
{
    std::scoped_lock const lock{mutex_};
    auto const found = last_.find(scheme);
    if (found != last_.end() && found->second.found == refused)
        last_.erase(found);
}

// ---- for requests ----

namespace detail {

asio::awaitable<request_credentials> async_credentials(credential_source& from, std::string scheme)
{
    if (auto now = from.current(scheme))
        co_return std::move(*now);
    request_credentials found;
    std::exception_ptr failure;
    static_cast<void>(co_await async_run(co_await asio::this_coro::executor, [&] {
        try {
            found = from.get(scheme);
        } catch (...) {
            failure = std::current_exception();
        }
        return error_code{};
    }));
    if (failure)
        std::rethrow_exception(failure);
    co_return found;
}

header_fields fields_of(request_credentials const& found)
{
    header_fields fields;
    for (auto const& [name, value] : found.headers)
        fields.push_back({name, value});
    return fields;
}

header_fields with_fields(header_fields own, request_credentials const& found, url const& to)
{
    if (found.headers.empty())
        fail(errc::no_credentials, to,
             found.empty() ? "the function that supplies credentials returned none"
                           : "the credentials are keys of S3, and this URL needs header fields");
    std::erase_if(own, [&](header_field const& each) {
        return std::ranges::any_of(found.headers,
                                   [&](auto const& one) { return boost::beast::iequals(one.first, each.name); });
    });
    std::ranges::move(fields_of(found), std::back_inserter(own));
    return own;
}

std::string scheme_of(url const& to)
{
    return to.secure ? "https" : "http";
}

}  // namespace detail

}  // namespace gpurx::ingest
