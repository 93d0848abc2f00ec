// SPDX-License-Identifier: Apache-2.0
#include "credential_source.hpp"

#include <fmt/format.h>

#include <boost/asio/ip/address.hpp>
#include <gpurx/ingest/error.hpp>

#include "../net/display.hpp"
#include "../net/environment.hpp"
#include "../net/http_connection.hpp"

namespace gpurx::ingest::detail::s3 {

namespace {

using namespace std::chrono_literals;

// Both services are in the same machine or next to it. Elsewhere nobody answers at these addresses.
constexpr std::chrono::milliseconds limit = 2s;
constexpr std::string_view roles = "/latest/meta-data/iam/security-credentials/";

[[noreturn]] void fail(std::string_view object, std::string_view advice)
{
    throw system_error{errc::no_credentials,
                       {.operation = "get credentials from",
                        .object = without_secrets(object),
                        .kernel_message = {},
                        .advice = printable(advice)}};
}

std::string first_line_of(std::string text)
{
    text.erase(std::min(text.find_first_of("\r\n"), text.size()));
    return text;
}

// The token for the service must not leave this machine in the clear.
bool is_near(url const& where)
{
    error_code code;
    auto const address = asio::ip::make_address(where.host, code);
    return where.host == "localhost" || where.host == "169.254.170.2" || where.host == "169.254.170.23" ||
           where.host == "fd00:ec2::23" || (!code && address.is_loopback());
}

url endpoint_at(std::string const& text)
{
    error_code code;
    diagnostics why;
    auto found = parse_url(text, code, why);
    if (code)
        fail(text, why.advice);
    return found;
}

asio::awaitable<std::string> ask(exchange what)
{
    auto const from = what.to.display;
    std::string failure;
    try {
        auto const [head, body] = co_await async_exchange(std::move(what));
        if (head.status == 200)
            co_return body;
        failure = status_text(head);
    } catch (system_error const& error) {
        failure = error.what();
    }
    fail(from, failure);
}

credentials taken_from(std::string const& document, std::string const& source)
{
    std::string why;
    auto found = parse_credentials(document, why);
    if (!found)
        fail(source, why);
    return *found;
}

asio::awaitable<credentials> ask_container(credential_service at)
{
    exchange what{.to = endpoint_at(at.url), .fields = {}, .limit = limit};
    if (!what.to.secure && !is_near(what.to))
        fail(at.url, "AWS_CONTAINER_CREDENTIALS_FULL_URI has to be of this machine, or https");
    auto const token = at.token_file.empty() ? at.authorization : first_line_of(content_of(at.token_file));
    if (!at.token_file.empty() && token.empty())
        fail(at.url, "the file of AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE, " + at.token_file + ", cannot be read");
    if (!token.empty())
        what.fields.push_back({"Authorization", token});
    auto const document = co_await ask(std::move(what));
    co_return taken_from(document, at.url);
}

// Version 2 of the service: who asks has to have got a token before.
asio::awaitable<credentials> ask_instance(std::string endpoint)
{
    exchange first{.method = "PUT", .to = endpoint_at(endpoint + "/latest/api/token"), .fields = {}, .limit = limit};
    first.fields.push_back({"x-aws-ec2-metadata-token-ttl-seconds", "21600"});
    auto const answer = co_await ask(std::move(first));
    auto const token = first_line_of(answer);
    auto const get = [&](std::string const& path) {
        exchange what{.to = endpoint_at(endpoint + path), .fields = {}, .limit = limit};
        what.fields.push_back({"x-aws-ec2-metadata-token", token});
        return what;
    };
    auto second = get(std::string{roles});
    auto const names = co_await ask(std::move(second));
    auto third = get(std::string{roles} + first_line_of(names));
    auto const document = co_await ask(std::move(third));
    co_return taken_from(document, endpoint);
}

}  // namespace

setup read_setup(std::string const& profile)
{
    auto const paths = paths_of(variable);
    return set_up(variable, parse_profiles(content_of(paths.credentials)), parse_profiles(content_of(paths.config)),
                  profile);
}

asio::awaitable<credentials> async_ask(credential_service at)
{
    if (at.of == credential_service::kind::container)
        return ask_container(std::move(at));
    return ask_instance(std::move(at.url));
}

}  // namespace gpurx::ingest::detail::s3
