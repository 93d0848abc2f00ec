// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <chrono>
#include <gpurx/ingest/object.hpp>
#include <stdexcept>
#include <utility>

#include "../file/file_source.hpp"
#include "../net/environment.hpp"
#include "../net/url.hpp"
#include "../s3/client.hpp"
#include "../s3/location.hpp"
#include "download.hpp"

namespace gpurx::ingest {

namespace {

void check_field(detail::header_field const& field, std::string_view what)
{
    if (auto const* const wrong = detail::what_is_wrong(field))
        throw std::invalid_argument{fmt::format("{}: {}", what, wrong)};
}

std::unique_ptr<detail::source> source_at(asio::any_io_executor executor, rx_session& session, std::string_view url,
                                          fetch_options options)
{
    if (detail::is_local(url))
        return std::make_unique<detail::file_source>(std::move(executor), url, std::move(options));
    return std::make_unique<detail::download>(std::move(executor), session, url, std::move(options));
}

std::unique_ptr<detail::source> file_at(asio::any_io_executor executor, std::string_view path, fetch_options options)
{
    if (!detail::is_local(path))
        throw system_error{errc::bad_url,
                           {.operation = "open",
                            .object = redacted_url(path),
                            .kernel_message = {},
                            .advice = "it is not a file of this machine; objects of servers need a session"}};
    return std::make_unique<detail::file_source>(std::move(executor), path, std::move(options));
}

}  // namespace

fetch_options with_rest_of_deadline(fetch_options options, std::chrono::steady_clock::time_point began)
{
    using std::chrono::milliseconds;
    if (options.deadline > milliseconds{0}) {
        auto const gone = std::chrono::ceil<milliseconds>(std::chrono::steady_clock::now() - began);
        options.deadline = gone < options.deadline ? options.deadline - gone : milliseconds{-1};
    }
    return options;
}

void check(fetch_options const& options)
{
    if (options.flows == 0 || options.chunk_size == 0 || options.attempts == 0)
        throw std::invalid_argument{"fetch_options: flows, chunk_size and attempts must be at least 1"};
    for (auto const& [name, value] : options.headers)
        check_field({name, value}, fmt::format("header \"{}\"", detail::printable(name, 100)));
    check_field({"Authorization", options.bearer}, "the bearer token");
    if (options.tls.certificate.empty() && !options.tls.key.empty())
        throw std::invalid_argument{"a key for TLS needs a certificate: set tls_options::certificate"};
    for (auto const& each : detail::s3::servers_of(options.s3))
        detail::s3::check({each.endpoint, each.region});
}

std::string redacted_url(std::string_view url)
{
    return detail::without_secrets(url);
}

std::string printable_text(std::string_view text)
{
    return detail::printable(text, 2000);
}

// ---- object ----

object::object(asio::any_io_executor executor, rx_session& session, std::string_view url, fetch_options options)
    : source_{source_at(std::move(executor), session, url, std::move(options))}
{}

object::object(asio::any_io_executor executor, std::string_view path, fetch_options options)
    : source_{file_at(std::move(executor), path, std::move(options))}
{}

bool object::is_file(std::string_view url) noexcept
{
    return detail::is_local(url);
}

object::object(object&&) noexcept = default;
object& object::operator=(object&&) noexcept = default;
object::~object() = default;

asio::awaitable<void> object::async_open()
{
    return source_->async_open();
}

std::uint64_t object::size() const noexcept
{
    return source_->size();
}

std::string const& object::etag() const noexcept
{
    return source_->etag();
}

std::string const& object::commit() const noexcept
{
    return source_->commit();
}

std::string const& object::url() const noexcept
{
    return source_->url();
}

bool object::serves_ranges() const noexcept
{
    return source_->serves_ranges();
}

asio::awaitable<void> object::async_read_front(host_span destination)
{
    return source_->async_read_front(destination);
}

std::uint64_t object::front() const noexcept
{
    return source_->front();
}

asio::awaitable<void> object::async_fetch(std::span<placement const> placements)
{
    return source_->async_fetch(placements);
}

asio::awaitable<void> object::async_fetch_pieces(piece_consumer take)
{
    return source_->async_fetch_pieces(std::move(take));
}

void object::disconnect() noexcept
{
    source_->disconnect();
}

std::optional<std::uint32_t> object::crc32c() const noexcept
{
    return source_->checksums().computed_crc32c();
}

std::optional<std::uint64_t> object::crc64nvme() const noexcept
{
    return source_->checksums().computed_crc64nvme();
}

std::optional<std::uint32_t> object::announced_crc32c() const noexcept
{
    return source_->checksums().announced_crc32c();
}

std::optional<std::uint64_t> object::announced_crc64nvme() const noexcept
{
    return source_->checksums().announced_crc64nvme();
}

std::vector<mirror_stats> object::mirrors() const
{
    return source_->mirrors();
}

fetch_stats object::stats() const noexcept
{
    return source_->stats();
}

}  // namespace gpurx::ingest
