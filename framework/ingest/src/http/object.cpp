// SPDX-License-Identifier: Apache-2.0
#include <gpurx/ingest/object.hpp>
#include <utility>

#include "../file/file_source.hpp"
#include "../file/location.hpp"
#include "../source/source.hpp"

namespace gpurx::ingest {

namespace {

class http_source final : public detail::source {
  public:
    http_source(asio::any_io_executor executor, rx_session& session, std::string_view url, fetch_options options)
        : from_{std::move(executor), session, url, std::move(options)}
    {}

    asio::awaitable<void> async_open() override { return from_.async_open(); }
    [[nodiscard]] std::uint64_t size() const noexcept override { return from_.size(); }
    [[nodiscard]] std::string const& etag() const noexcept override { return from_.etag(); }
    [[nodiscard]] std::string const& url() const noexcept override { return from_.url(); }
    asio::awaitable<void> async_read_front(host_span destination) override
    {
        return from_.async_read_front(destination);
    }
    [[nodiscard]] std::uint64_t front() const noexcept override { return from_.front(); }
    asio::awaitable<void> async_fetch(std::span<placement const> placements) override
    {
        return from_.async_fetch(placements);
    }
    asio::awaitable<void> async_fetch_pieces(piece_consumer take) override
    {
        return from_.async_fetch_pieces(std::move(take));
    }
    void disconnect() noexcept override { from_.disconnect(); }
    [[nodiscard]] std::optional<std::uint32_t> crc32c() const noexcept override { return from_.crc32c(); }
    [[nodiscard]] std::optional<std::uint32_t> announced_crc32c() const noexcept override
    {
        return from_.announced_crc32c();
    }
    [[nodiscard]] std::optional<std::uint64_t> announced_crc64nvme() const noexcept override
    {
        return from_.announced_crc64nvme();
    }
    [[nodiscard]] std::vector<mirror_stats> mirrors() const override { return from_.mirrors(); }
    [[nodiscard]] fetch_stats stats() const noexcept override { return from_.stats(); }

  private:
    http_object from_;
};

std::unique_ptr<detail::source> source_at(asio::any_io_executor executor, rx_session& session, std::string_view url,
                                          fetch_options options)
{
    if (detail::is_local(url))
        return std::make_unique<detail::file_source>(std::move(executor), url, std::move(options));
    return std::make_unique<http_source>(std::move(executor), session, url, std::move(options));
}

std::unique_ptr<detail::source> file_at(asio::any_io_executor executor, std::string_view path, fetch_options options)
{
    if (!detail::is_local(path))
        throw system_error{errc::bad_url,
                           {.operation = "open",
                            .object = redacted_url(path),
                            .kernel_message = {},
                            .advice = "it is no file of this machine, and a server is asked through a session"}};
    return std::make_unique<detail::file_source>(std::move(executor), path, std::move(options));
}

}  // namespace

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

std::string const& object::url() const noexcept
{
    return source_->url();
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
    return source_->crc32c();
}

std::optional<std::uint32_t> object::announced_crc32c() const noexcept
{
    return source_->announced_crc32c();
}

std::optional<std::uint64_t> object::announced_crc64nvme() const noexcept
{
    return source_->announced_crc64nvme();
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
