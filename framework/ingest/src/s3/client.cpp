// SPDX-License-Identifier: Apache-2.0
#include "client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/this_coro.hpp>
#include <gpurx/ingest/error.hpp>

#include "../net/environment.hpp"
#include "../net/http_connection.hpp"
#include "../net/io_threads.hpp"
#include "../net/retry.hpp"
#include "../net/supplied.hpp"
#include "../net/url.hpp"
#include "program.hpp"
#include "response.hpp"
#include "sigv4.hpp"

namespace gpurx::ingest::detail::s3 {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds early = 5min;
constexpr std::string_view usual_region = "us-east-1";

time_point now()
{
    return std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
}

[[noreturn]] void fail_without_credentials(std::string const& why, store of = store::aws)
{
    throw system_error{
        errc::no_credentials,
        {.operation = "find",
         .object = fmt::format("credentials for {}", of == store::google  ? "Google Cloud Storage"
                                                     : of == store::azure ? "Azure Blob Storage"
                                                                          : "S3"),
         .kernel_message = {},
         .advice = fmt::format("{}; {}, or ask anonymously for public objects", why,
                               of == store::aws ? "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE"
                                                : "pass a token or other credentials")}};
}

s3_options::addressing style_in(setup const& found)
{
    auto const style = addressing_named(found.style.empty() ? "auto" : found.style);
    if (!style)
        throw system_error{
            errc::bad_url,
            {.operation = "use",
             .object = fmt::format("s3.addressing_style of profile \"{}\"", printable(found.profile, 100)),
             .kernel_message = {},
             .advice = "it must be path, virtual or auto"}};
    return *style;
}

// What others on the way may change or add is not signed.
bool is_to_be_signed(header_field const& each)
{
    return each.name == "Host" || each.name == "Range" || each.name.starts_with("x-amz-");
}

// ---- services that hand out credentials ----

// Both services are in the same machine or next to it. Elsewhere nobody answers at these addresses.
constexpr std::chrono::milliseconds limit = 2s;
constexpr std::string_view roles = "/latest/meta-data/iam/security-credentials/";

constexpr unsigned service_attempts = 3;

// How long a service is asked.
struct patience {
    unsigned attempts = service_attempts;
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
    bool is_there = false;  // it has answered: this machine has the service
};

diagnostics words_for_service(std::string_view url, std::string_view advice)
{
    return {.operation = "get credentials from",
            .object = without_secrets(url),
            .kernel_message = {},
            .advice = printable(advice)};
}

[[noreturn]] void fail(std::string_view object, std::string_view advice)
{
    throw system_error{errc::no_credentials, words_for_service(object, advice)};
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

// Most machines are no EC2 instance, and learn that soon. A service that refuses or drops a connection is there.
bool may_be_there(system_error const& failure, patience const& with)
{
    return may_pass(failure) && (with.is_there || failure.code() == asio::error::eof ||
                                 failure.code() == errc::gave_up || failure.code() == asio::error::connection_reset);
}

asio::awaitable<std::string> ask_once(exchange what, patience& with)
{
    auto const from = what.to.display;
    std::string failure;
    auto is_final = true;
    std::optional<std::chrono::seconds> wait;
    try {
        auto const [head, body] = co_await async_exchange(std::move(what));
        with.is_there = true;
        if (head.status == 200)
            co_return body;
        auto const said = parse_refusal(body);
        failure = status_text(head) + (said ? fmt::format(": {}: {}", said->code, said->message) : "");
        is_final = !head.is_temporary() && !(said && is_temporary(*said));
        wait = head.retry_after;
    } catch (system_error const& error) {
        failure = error.what();
        is_final = !may_be_there(error, with);
    }
    if (is_final)
        fail(from, failure);
    throw passing_error{errc::no_credentials, words_for_service(from, failure), wait};
}

asio::awaitable<std::string> ask(exchange what, patience& with)
{
    retries tries{co_await asio::this_coro::executor, with.is_there ? with.attempts : std::min(with.attempts, 2U),
                  with.deadline};
    for (;;) {
        std::optional<passing_error> failure;
        auto const left =
            std::chrono::ceil<std::chrono::milliseconds>(with.deadline - std::chrono::steady_clock::now());
        what.limit = std::clamp(left, 1ms, what.limit);
        try {
            co_return co_await ask_once(what, with);
        } catch (passing_error const& error) {
            failure = error;
        }
        co_await tries.async_pause(*failure);
    }
}

credentials taken_from(std::string const& document, std::string const& source, decltype(parse_credentials)& parse)
{
    std::string why;
    auto found = parse(document, why);
    if (!found)
        fail(source, why);
    return *found;
}

asio::awaitable<credentials> ask_container(credential_service at, patience with)
{
    exchange what{.to = endpoint_at(at.url), .fields = {}, .limit = limit};
    if (!what.to.secure && !is_near(what.to))
        fail(at.url, "AWS_CONTAINER_CREDENTIALS_FULL_URI must be on this machine, or https");
    auto const token = at.token_file.empty() ? at.authorization : first_line_of(content_of(at.token_file));
    if (!at.token_file.empty() && token.empty())
        fail(at.url, "the file of AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE, " + at.token_file + ", cannot be read");
    if (!token.empty())
        what.fields.push_back({"Authorization", token});
    with.is_there = true;
    auto const document = co_await ask(std::move(what), with);
    co_return taken_from(document, at.url, parse_credentials);
}

// Version 2 of the service: who asks has to have got a token before.
asio::awaitable<credentials> ask_instance(std::string endpoint, patience with)
{
    exchange first{.method = "PUT", .to = endpoint_at(endpoint + "/latest/api/token"), .fields = {}, .limit = limit};
    first.fields.push_back({"x-aws-ec2-metadata-token-ttl-seconds", "21600"});
    auto const answer = co_await ask(std::move(first), with);
    auto const token = first_line_of(answer);
    auto const get = [&](std::string const& path) {
        exchange what{.to = endpoint_at(endpoint + path), .fields = {}, .limit = limit};
        what.fields.push_back({"x-aws-ec2-metadata-token", token});
        return what;
    };
    auto second = get(std::string{roles});
    auto const names = co_await ask(std::move(second), with);
    auto third = get(std::string{roles} + first_line_of(names));
    auto const document = co_await ask(std::move(third), with);
    co_return taken_from(document, endpoint, parse_credentials);
}

// STS is another machine, and may be in another region.
constexpr std::chrono::milliseconds time_for_sts = 10s;

// The token proves an identity by itself. So it goes in a body, which no log of URLs has, and follows no redirect.
asio::awaitable<credentials> ask_sts(credential_service at, patience with)
{
    auto const to = endpoint_at(at.url);
    if (!to.secure && !is_near(to))
        fail(at.url, "the endpoint of STS must be https, or on this machine, as it gets the token of a web identity");
    auto const token = first_line_of(content_of(at.token_file));
    if (token.empty())
        fail(at.url, "the token file of the web identity, " + at.token_file + ", cannot be read, or is empty");
    std::array<std::pair<std::string, std::string>, 5> const question{{{"Action", "AssumeRoleWithWebIdentity"},
                                                                       {"Version", "2011-06-15"},
                                                                       {"RoleArn", at.role},
                                                                       {"RoleSessionName", at.session_name},
                                                                       {"WebIdentityToken", token}}};
    exchange what{.method = "POST",
                  .to = to,
                  .fields = {{"Content-Type", "application/x-www-form-urlencoded"}},
                  .body = query_text(question),
                  .limit = time_for_sts};
    if (to.secure) {
        what.proxy = proxy_for(to);
        tls_options trusted;
        trusted.ca_file = at.ca_file;
        what.tls = make_tls_context(trusted);
    }
    with.is_there = true;
    auto const document = co_await ask(std::move(what), with);
    co_return taken_from(document, at.url, parse_assumed_role);
}

// A program needs no more time than this, unless it waits for a person.
constexpr std::chrono::seconds time_for_program{60};

asio::awaitable<credentials> ask_program(std::string command, patience with)
{
    auto const words = words_in(command);
    if (words.empty())
        fail("credential_process", "it has no program, or a quote without an end");
    auto const until = std::min(with.deadline, std::chrono::steady_clock::now() + time_for_program);
    std::string document;
    std::exception_ptr failure;
    static_cast<void>(co_await async_run(co_await asio::this_coro::executor, [&] {
        try {
            document = output_of(words, until);
        } catch (...) {
            failure = std::current_exception();
        }
        return error_code{};
    }));
    if (failure)
        std::rethrow_exception(failure);
    co_return taken_from(document, words.front(), parse_credentials);
}

// Of a profile, as set_up() takes it. A file that is not there says nothing.
setup read_setup(std::string const& profile)
{
    auto const paths = paths_of(variable);
    return set_up(variable, parse_profiles(content_of(paths.credentials)), parse_profiles(content_of(paths.config)),
                  profile);
}

// Errors: errc::no_credentials, with the service as the object.
asio::awaitable<credentials> async_ask(credential_service at, patience with)
{
    if (at.of == credential_service::kind::program)
        return ask_program(std::move(at.url), with);
    if (at.of == credential_service::kind::container)
        return ask_container(std::move(at), with);
    if (at.of == credential_service::kind::web_identity)
        return ask_sts(std::move(at), with);
    return ask_instance(std::move(at.url), with);
}

}  // namespace

std::vector<s3_options> servers_of(s3_options const& options)
{
    std::vector<s3_options> servers{options};
    for (auto const& each : options.more_endpoints) {
        servers.push_back(options);
        servers.back().endpoint = each;
    }
    return servers;
}

asio::awaitable<void> client::async_start(std::chrono::steady_clock::time_point deadline)
{
    if (started_)
        co_return;
    setup found;
    azure_setup azure;
    if (of_ == store::google) {
        at_ = google_service(options_, variable);
    } else if (of_ == store::azure) {
        azure = azure_set_up(options_, variable, account_, may_know_);
        at_ = azure.at;
    } else {
        found = read_setup(options_.profile);
        at_.endpoint = options_.endpoint.empty() ? found.endpoint : options_.endpoint;
        at_.region = options_.region.empty() ? found.region : options_.region;
        at_.style = options_.style == s3_options::addressing::automatic ? style_in(found) : options_.style;
        if (tls_.ca_file.empty() && tls_.ca_directory.empty())
            tls_.ca_file = found.ca_bundle;
    }
    check(at_);
    if (at_.region.empty())
        at_.region = usual_region;
    if (!options_.anonymous && given_) {
        if (!co_await async_take(given_))
            fail_without_credentials("the function that supplies credentials returned none", of_);
    } else if (!options_.anonymous && of_ != store::aws) {
        co_await async_find_optional(azure);
    } else if (!options_.anonymous) {
        std::optional<system_error> failure;
        try {
            co_await async_find(found, deadline);
        } catch (system_error const& error) {
            failure = error;
        }
        if (failure)
            co_await async_fall_back(*failure);
    }
    started_ = true;
}

asio::awaitable<void> client::async_find(setup const& found, std::chrono::steady_clock::time_point deadline)
{
    by_ = found.written;
    source_ = found.service;
    if (!by_ && !source_)
        fail_without_credentials(found.obstacle.empty() ? "neither the environment nor a profile has them"
                                                        : found.obstacle);
    if (by_)
        co_return;
    std::string failure;
    try {
        by_ = co_await async_ask(*source_, {.deadline = deadline});
    } catch (system_error const& error) {
        if (source_->of != credential_service::kind::instance)
            throw;
        failure = error.what();
    }
    if (!by_)
        fail_without_credentials(
            "neither the environment nor a profile has them, and this is no EC2 instance with a "
            "role (" +
            failure + ")");
}

asio::awaitable<void> client::async_find_optional(azure_setup const& azure)
{
    if (of_ == store::google && !options_.profile.empty()) {
        by_ = read_setup(options_.profile).written;
        if (!by_)
            fail_without_credentials(fmt::format("profile \"{}\" has no HMAC keys of Google Cloud Storage",
                                                 printable(options_.profile, 100)),
                                     of_);
    } else if (!bearer_.empty()) {
        by_ = credentials{.access_key = {},
                          .secret_key = {},
                          .session_token = {},
                          .expires = {},
                          .fields = {{"Authorization", "Bearer " + bearer_}}};
    } else if (!azure.sas.empty()) {
        // Messages show the names of a query. Another text, such as a key, would be one.
        if (azure.sas.find("sig=") == std::string::npos)
            fail_without_credentials(
                "AZURE_STORAGE_SAS_TOKEN, or SharedAccessSignature of the connection string, is not a SAS token", of_);
        sas_ = azure.sas;
    } else if (!azure.key.empty()) {
        by_ = shared_key(account_, azure.key);
        if (!by_)
            fail_without_credentials(
                "AZURE_STORAGE_KEY, or AccountKey of AZURE_STORAGE_CONNECTION_STRING, is not base64", of_);
    } else if (fallback_) {
        static_cast<void>(co_await async_take(fallback_));
    }
}

asio::awaitable<void> client::async_fall_back(system_error const& failure)
{
    auto why = failure.why();
    try {
        auto is_found = false;
        if (fallback_)
            is_found = co_await async_take(fallback_);
        if (is_found)
            co_return;
    } catch (system_error const& error) {
        why.advice += "; " + error.why().advice;
    }
    throw system_error{failure.code(), why};
}

asio::awaitable<bool> client::async_take(std::shared_ptr<credential_source> from)
{
    auto found = co_await async_credentials(*from, std::string{scheme_of(of_)});
    std::scoped_lock const lock{mutex_};
    if (found.empty())
        co_return false;
    if (of_ == store::azure && found.headers.empty())
        fail_without_credentials("the credentials are keys of S3, and Azure needs header fields", of_);
    by_ = credentials{.access_key = found.access_key,
                      .secret_key = found.secret_key,
                      .session_token = found.session_token,
                      .expires = {},
                      .fields = fields_of(found)};
    if (!supplier_)
        supplier_ = std::move(from);
    supplied_ = std::move(found);
    co_return true;
}

asio::awaitable<void> client::async_renew(std::chrono::steady_clock::time_point deadline)
{
    if (supplier_) {
        static_cast<void>(co_await async_take(supplier_));
        co_return;
    }
    auto attempts = service_attempts;
    {
        std::scoped_lock const lock{mutex_};
        if (!source_ || renewing_ || !ends_within(early))
            co_return;
        renewing_ = true;
        // A later request tries again while the present credentials are good.
        attempts = ends_within(0s) ? attempts : 1;
    }
    std::optional<credentials> fresh;
    std::exception_ptr failure;
    try {
        fresh = co_await async_ask(*source_, {.attempts = attempts, .deadline = deadline, .is_there = true});
    } catch (...) {
        failure = std::current_exception();
    }
    std::scoped_lock const lock{mutex_};
    renewing_ = false;
    if (fresh)
        by_ = std::move(fresh);
    else if (ends_within(0s))
        std::rethrow_exception(failure);
}

url client::where(location const& object)
{
    std::scoped_lock const lock{mutex_};
    return home(url_of(object, at_));
}

url client::where(std::string_view bucket, parameters query)
{
    std::scoped_lock const lock{mutex_};
    return home(url_of(bucket, query, at_));
}

url client::home(std::string text)
{
    if (!sas_.empty())
        text.append(1, text.find('?') == std::string::npos ? '?' : '&').append(sas_);
    auto found = parse_url(text);
    home_ = found.authority;
    return found;
}

header_fields client::sign(std::string_view method, url const& to, header_fields const& fields) const
{
    std::scoped_lock const lock{mutex_};
    if (!is_trusted(to))
        return {};
    if (of_ == store::azure)
        return azure_fields({.method = method, .target = to.target, .fields = fields, .payload_hash = {}}, by_, now());
    if (!by_)
        return {};
    if (!by_->fields.empty())
        return by_->fields;
    header_fields covered;
    std::ranges::copy_if(fields, std::back_inserter(covered), is_to_be_signed);
    return signature_fields({.method = method, .target = to.target, .fields = covered, .payload_hash = empty_payload},
                            *by_, at_.region, now());
}

bool client::move_to(std::string_view region)
{
    std::scoped_lock const lock{mutex_};
    if (moved_ || !is_region(region) || region == at_.region)
        return false;
    moved_ = true;
    at_.region = region;
    return true;
}

bool client::end_credentials()
{
    std::scoped_lock const lock{mutex_};
    if (ended_ || !by_ || (!source_ && !supplier_))
        return false;
    ended_ = true;
    if (supplier_) {
        supplier_->refuse(scheme_of(of_), supplied_);
        return true;
    }
    by_->expires = now();
    return true;
}

bool client::is_trusted(url const& to) const
{
    return to.authority == home_ || (at_.endpoint.empty() && is_aws(to.host));
}

bool client::ends_within(std::chrono::seconds time) const
{
    return by_ && by_->expires && *by_->expires - now() <= time;
}

}  // namespace gpurx::ingest::detail::s3
