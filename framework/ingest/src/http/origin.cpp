// SPDX-License-Identifier: Apache-2.0
#include "origin.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <gpurx/ingest/error.hpp>
#include <iterator>
#include <utility>

#include "../hub/location.hpp"
#include "../net/environment.hpp"
#include "../net/recent.hpp"
#include "../net/retry.hpp"
#include "../net/supplied.hpp"
#include "../net/tcp.hpp"
#include "../net/url.hpp"
#include "../s3/response.hpp"
#include "request.hpp"

namespace gpurx::ingest::detail {

namespace {

// Hosts that drop a second request, or answer it wrongly.
recent_set<std::string>& hosts_to_ask_alone()
{
    static recent_set<std::string> all;
    return all;
}

}  // namespace

origin::origin(mirror_place const& place, transfer_context& context, url const* secrets_for)
    : context_{context}, wants_checksum_{context.options.crc32c != fetch_options::checksum::none}
{
    auto const& text = place.url;
    error_code code;
    diagnostics why;
    if (s3::is_location(text)) {
        auto const may_know = secrets_for == nullptr || s3::shares_secrets(text, secrets_for->text);
        s3_ = s3_target_of(s3::parse_location(text, code, why), place.s3_endpoint, may_know);
        // Until it is known where that is.
        from_.text = text;
        from_.display = without_secrets(text);
        // Google sends the checksum of the whole with each response, unasked. Azure has none.
        auto const is_aws = s3_->object.of == s3::store::aws;
        wants_checksum_ = wants_checksum_ && is_aws;
        asks_for_checksum_ = is_aws && context.options.crc32c == fetch_options::checksum::automatic;
        if (!code && s3_->object.key.empty())
            fail(errc::bad_url, from_,
                 "it names a bucket without a key; write s3://bucket/key, gs://bucket/object or "
                 "az://account/container/blob");
    } else if (hub::is_location(text)) {
        auto const which = hub::parse_location(text, code, why);
        if (!code)
            from_ = parse_url(hub::url_of(which, hub::endpoint(variable)), code, why);
        if (!code && hub::is_directory(text))
            fail(errc::bad_url, from_, "it names a model without a file; write hf://ORG/MODEL/FILE");
    } else {
        from_ = parse_url(text, code, why);
    }
    if (code)
        throw system_error{code, why};
    is_hub_ = s3_ == nullptr && is_of_hugging_face(from_, variable);
    given_ = is_literal_url(text) ? without_secrets(text) : from_.display;
    if (!place.s3_endpoint.empty())
        given_ += " at " + without_secrets(place.s3_endpoint);
    set_authorization(secrets_for);
}

std::unique_ptr<s3_target> origin::s3_target_of(s3::location which, std::string const& endpoint, bool may_know) const
{
    auto at = context_.options.s3;
    if (!endpoint.empty())
        at.endpoint = endpoint;
    return std::make_unique<s3_target>(std::move(which), std::move(at), context_.options, may_know);
}

// What says who asks: of requests to S3 their signature does.
void origin::set_authorization(url const* secrets_for)
{
    auto const& options = context_.options;
    if (s3_ != nullptr)
        return;
    header_fields given;
    for (auto const& [name, value] : options.headers)
        given.push_back({name, value});
    first_ = from_;
    auto const netrc = from_.secure ? content_of(netrc_path(variable)) : std::string{};
    auto const may_know = secrets_for == nullptr || is_same_origin(from_, *secrets_for);
    if (!may_know)
        given.clear();
    else
        credentials_ = options.credentials;
    own_ = authorization_fields(from_, std::move(given), may_know ? options.bearer : std::string{}, variable, netrc);
}

asio::awaitable<void> origin::async_locate(asio::any_io_executor executor)
{
    if (s3_ != nullptr && from_.host.empty()) {
        co_await s3_->asked.async_start(context_.deadline);
        from_ = s3_->asked.where(s3_->object);
    }
    if (endpoints_.empty()) {
        proxy_ = proxy_for(from_);
        endpoints_ = co_await resolve(std::move(executor));
        is_doubtful_ = false;
        is_alone_ = hosts_to_ask_alone().contains(from_.authority);
    }
    if (from_.secure && tls_ == nullptr)
        tls_ = make_tls_context(s3_ != nullptr ? s3_->asked.tls() : context_.options.tls);
}

asio::awaitable<std::vector<asio::ip::tcp::endpoint>> origin::async_endpoints(asio::any_io_executor executor)
{
    std::vector<asio::ip::tcp::endpoint> found;
    if (is_doubtful_) {
        try {
            found = co_await resolve(std::move(executor));
            is_doubtful_ = false;
        } catch (system_error const&) {
            // A name server may be away, too: the last addresses are better than none.
        }
    }
    std::scoped_lock const lock{endpoints_mutex_};
    if (!found.empty())
        endpoints_ = std::move(found);
    co_return endpoints_;
}

asio::awaitable<std::vector<asio::ip::tcp::endpoint>> origin::resolve(asio::any_io_executor executor) const
{
    auto const& next = proxy_ ? *proxy_ : from_;
    auto const until = std::min(std::chrono::steady_clock::now() + context_.options.timeout, context_.deadline);
    auto found = co_await async_resolve(std::move(executor), next.host, next.port, until);
    if (found.code)
        throw system_error{
            found.code,
            {.operation = "resolve",
             .object = next.host,
             .kernel_message = {},
             .advice = found.code != errc::gave_up ? ""
                       : until == context_.deadline
                           ? "no address came before the deadline"
                           : fmt::format("no address came within {} ms (timeout)", context_.options.timeout.count())}};
    co_return std::move(found.endpoints);
}

// ---- where it leads ----

void origin::learn_commit(answer const& head)
{
    auto const redirected = head.is_redirect() ? hub::take_apart(head.location) : std::nullopt;
    if (commit_.empty() && hub::is_commit(head.commit))
        commit_ = head.commit;
    else if (commit_.empty() && redirected && hub::is_commit(redirected->revision))
        commit_ = redirected->revision;
}

void origin::redirect(answer const& head)
{
    from_ = follow(from_, head.location, ++redirects_);
    endpoints_.clear();
    ++context_.counters.redirects;
}

bool origin::move_to(std::string_view region)
{
    if (s3_ == nullptr || !s3_->asked.move_to(region))
        return false;
    from_ = s3_->asked.where(s3_->object);
    endpoints_.clear();
    asks_for_checksum_ = context_.options.crc32c == fetch_options::checksum::automatic;
    ++context_.counters.redirects;
    return true;
}

void origin::refuse(answer const& head, std::string const& text)
{
    auto const said = s3::parse_refusal(text, head.error_code);
    auto const words = refusal_text(head, text, is_hub_ ? hub::advice_for(head.status) : std::string_view{},
                                    s3_ != nullptr ? s3_->object.of : s3::store::aws);
    auto const moved = move_to(head.bucket_region) || (said && move_to(said->region));
    auto const is_over = head.status == 401 || (s3_ != nullptr && said && s3::is_about_expiry(*said));
    if (moved || (is_over && end_credentials()))
        throw passing_error{errc::http_status, words_for(from_, words)};
    refused(head, words_for(from_, words));
}

// ---- how it is asked ----

std::unique_ptr<wire> origin::make_wire(asio::any_io_executor const& executor) const
{
    if (from_.secure)
        return make_socket_wire(executor, tls_, from_.host, proxy_ ? connect_request(from_, *proxy_) : std::string{});
    return make_flow_wire(executor, context_.session);
}

asio::awaitable<std::string> origin::async_get(byte_range asked)
{
    auto fields = co_await authorization(asked);
    auto const to = addressed(fields);
    co_return get_request(to, asked, wants_checksum_, fields);
}

void origin::ask_alone()
{
    is_alone_ = true;
    hosts_to_ask_alone().note(from_.authority);
}

std::string origin::ask_for_checksum()
{
    if (!std::exchange(asks_for_checksum_, false))
        return {};
    auto signature = s3_->asked.sign("HEAD", from_, get_fields(from_, {}, wants_checksum_));
    auto const to = addressed(signature);
    return head_request(to, wants_checksum_, signature);
}

bool origin::can_do_without_checksum(answer const& head, std::string_view text)
{
    auto const may_help = wants_checksum_ && !from_.is_signed() && may_refuse_checksum_mode(head, text);
    wants_checksum_ = wants_checksum_ && !may_help;
    return may_help;
}

asio::awaitable<header_fields> origin::authorization(byte_range asked)
{
    if (s3_ != nullptr) {
        co_await s3_->asked.async_renew(context_.deadline);
        co_return s3_->asked.sign("GET", from_, get_fields(from_, asked, wants_checksum_));
    }
    // Secrets are for whom they were meant.
    if (!is_same_origin(from_, first_))
        co_return header_fields{};
    if (credentials_ == nullptr)
        co_return own_;
    auto found = co_await async_credentials(*credentials_, scheme_of(from_));
    auto fields = with_fields(own_, found, from_);
    std::scoped_lock const lock{supplied_mutex_};
    supplied_ = std::move(found);
    co_return fields;
}

bool origin::end_credentials()
{
    if (s3_ != nullptr)
        return s3_->asked.end_credentials();
    std::scoped_lock const lock{supplied_mutex_};
    if (!supplied_ || std::exchange(has_ended_credentials_, true))
        return false;
    credentials_->refuse(scheme_of(from_), *supplied_);
    return true;
}

// A proxy that passes requests on wants to know where to, and perhaps who asks.
url origin::addressed(header_fields& fields) const
{
    if (!proxy_ || from_.secure)
        return from_;
    std::ranges::move(proxy_fields(*proxy_), std::back_inserter(fields));
    return in_absolute_form(from_);
}

}  // namespace gpurx::ingest::detail
