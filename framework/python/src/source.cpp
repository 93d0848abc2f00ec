// SPDX-License-Identifier: Apache-2.0
#include "source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <gpurx/ingest/http.hpp>
#include <utility>

#include "engine.hpp"

namespace gpurx::python {

namespace {

// Most headers fit, and what comes behind one is not wanted yet.
constexpr std::size_t header_chunk = std::size_t{256} << 10;

}  // namespace

ingest::object object_at(rx_session* session, std::string const& url, ingest::http_options options)
{
    if (session == nullptr)
        return {engine(), url, std::move(options)};
    return {engine(), *session, url, std::move(options)};
}

asio::awaitable<ingest::safetensors_header> source::async_header()
{
    co_await open();
    auto header = co_await ingest::async_read_safetensors_header(*file_);
    if (!goes_on_)
        rest();
    co_return header;
}

asio::awaitable<std::string> source::async_text(std::size_t at_most)
{
    co_await open();
    if (size_ > at_most)
        throw system_error{make_error_code(boost::system::errc::file_too_large),
                           {.operation = "read",
                            .object = name(),
                            .kernel_message = {},
                            .advice = fmt::format("it has {} bytes, and more than {} are no index", size_, at_most)}};
    std::string text(size_, '\0');
    co_await file_->async_read_front(host_span{std::span{text}});
    rest();
    co_return text;
}

asio::awaitable<void> source::async_fetch(std::span<ingest::placement const> placements)
{
    std::exception_ptr failure;
    try {
        if (!file_)
            co_await open();
        co_await file_->async_fetch(placements);
    } catch (...) {
        failure = std::current_exception();
    }
    if (failure == nullptr)
        co_return;
    rest();
    std::rethrow_exception(failure);
}

std::string source::name() const
{
    return session_ == nullptr ? url_ : ingest::shown_url(where_.empty() ? url_ : where_);
}

std::uint64_t source::bytes_placed() const
{
    std::scoped_lock const lock{mutex_};
    return placed_ + (file_ ? file_->stats().bytes_placed : 0);
}

void source::rest() noexcept
{
    std::scoped_lock const lock{mutex_};
    if (file_)
        placed_ += file_->stats().bytes_placed;
    file_.reset();
}

asio::awaitable<void> source::open()
{
    {
        auto options = with_rest_of_deadline(options_, since_);
        if (!goes_on_ && !is_known_)
            options.chunk_size = std::min(options.chunk_size, header_chunk);
        std::scoped_lock const lock{mutex_};
        file_.emplace(object_at(session_.get(), url_, std::move(options)));
    }
    co_await file_->async_open();
    if (is_known_ && (file_->size() != size_ || file_->etag() != etag_))
        throw system_error{ingest::make_error_code(ingest::errc::object_changed),
                           {.operation = "fetch",
                            .object = name(),
                            .kernel_message = {},
                            .advice = "its size or its ETag is another than when it was opened"}};
    is_known_ = true;
    size_ = file_->size();
    etag_ = file_->etag();
    where_ = file_->url();
    if (met_tls_ && where_.starts_with("https:"))
        *met_tls_ = true;
}

}  // namespace gpurx::python
