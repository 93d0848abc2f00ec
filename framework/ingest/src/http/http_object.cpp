// SPDX-License-Identifier: Apache-2.0
#include <gpurx/ingest/http.hpp>

#include "../net/display.hpp"
#include "download.hpp"

namespace gpurx::ingest {

std::string redacted_url(std::string_view url)
{
    return detail::without_secrets(url);
}

std::string printable_text(std::string_view text)
{
    return detail::printable(text, 2000);
}

http_object::http_object(asio::any_io_executor executor, rx_session& session, std::string_view url,
                         fetch_options options)
    : download_{std::make_unique<detail::download>(executor, session, url, std::move(options))}
{}

http_object::http_object(http_object&&) noexcept = default;
http_object& http_object::operator=(http_object&&) noexcept = default;
http_object::~http_object() = default;

asio::awaitable<void> http_object::async_open()
{
    return download_->async_open();
}

std::uint64_t http_object::size() const noexcept
{
    return download_->opened().object.size;
}

std::string const& http_object::etag() const noexcept
{
    return download_->opened().object.etag;
}

std::string const& http_object::url() const noexcept
{
    return download_->from().text;
}

bool http_object::serves_ranges() const noexcept
{
    return download_->opened().serves_ranges;
}

std::optional<std::uint32_t> http_object::announced_crc32c() const noexcept
{
    return download_->checksums().announced_crc32c();
}

std::optional<std::uint64_t> http_object::announced_crc64nvme() const noexcept
{
    return download_->checksums().announced_crc64nvme();
}

asio::awaitable<void> http_object::async_read_front(host_span destination)
{
    return download_->async_read_front(destination);
}

std::uint64_t http_object::front() const noexcept
{
    return download_->front();
}

asio::awaitable<void> http_object::async_fetch(std::span<placement const> placements)
{
    return download_->async_fetch(placements);
}

asio::awaitable<void> http_object::async_fetch_pieces(piece_consumer take)
{
    return download_->async_fetch_pieces(std::move(take));
}

void http_object::disconnect() noexcept
{
    download_->disconnect();
}

std::optional<std::uint32_t> http_object::crc32c() const noexcept
{
    return download_->checksums().computed_crc32c();
}

std::optional<std::uint64_t> http_object::crc64nvme() const noexcept
{
    return download_->checksums().computed_crc64nvme();
}

std::vector<mirror_stats> http_object::mirrors() const
{
    return download_->mirrors_stats();
}

fetch_stats http_object::stats() const noexcept
{
    return download_->stats();
}

}  // namespace gpurx::ingest
