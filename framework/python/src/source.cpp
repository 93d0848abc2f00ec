// SPDX-License-Identifier: Apache-2.0
#include "source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <chrono>
#include <exception>
#include <gpurx/ingest/http.hpp>
#include <numeric>
#include <utility>

#include "engine.hpp"

namespace gpurx::python {

namespace {

// Most headers fit. The bytes behind a header are not wanted yet.
constexpr std::size_t header_chunk = std::size_t{256} << 10;

}  // namespace

ingest::object object_at(rx_session* session, std::string const& url, ingest::fetch_options options)
{
    if (session == nullptr)
        return {engine(), url, std::move(options)};
    return {engine(), *session, url, std::move(options)};
}

asio::awaitable<void> source::async_header()
{
    auto options = options_;
    if (!goes_on_) {
        options.chunk_size = std::min(options.chunk_size, header_chunk);
        // The header is read again, and enters the checksum then.
        options.crc32c = ingest::fetch_options::checksum::none;
    }
    co_await open(options);
    header_ = co_await ingest::async_read_safetensors_header(*file_);
    if (!goes_on_)
        rest();
}

asio::awaitable<std::string> source::async_text(std::size_t at_most)
{
    auto options = options_;
    options.chunk_size = std::min(options.chunk_size, header_chunk);
    co_await open(options);
    if (size_ > at_most)
        throw system_error{make_error_code(boost::system::errc::file_too_large),
                           {.operation = "read",
                            .object = name(),
                            .kernel_message = {},
                            .advice = fmt::format("it has {} bytes, and an index has at most {}", size_, at_most)}};
    std::string text(size_, '\0');
    co_await file_->async_read_front(host_span{std::span{text}});
    // All bytes have arrived: compares the checksum.
    co_await file_->async_fetch({});
    rest();
    co_return text;
}

asio::awaitable<void> source::async_fetch(std::span<ingest::placement const> placements)
{
    std::exception_ptr failure;
    try {
        if (!file_)
            co_await open_again();
        co_await file_->async_fetch(placements);
    } catch (...) {
        failure = std::current_exception();
    }
    if (failure == nullptr)
        co_return;
    rest();
    std::rethrow_exception(failure);
}

void source::disconnect() noexcept
{
    if (file_)
        file_->disconnect();
}

// One to open the file, and one for each chunk.
unsigned source::flows_for(std::uint64_t bytes) const noexcept
{
    return static_cast<unsigned>(std::min<std::uint64_t>(options_.flows, bytes / options_.chunk_size + 2));
}

std::string source::name() const
{
    return session_ == nullptr ? url_ : ingest::redacted_url(where_.empty() ? url_ : where_);
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

asio::awaitable<void> source::open(ingest::fetch_options const& options)
{
    {
        std::scoped_lock const lock{mutex_};
        file_.emplace(object_at(session_.get(), url_, with_rest_of_deadline(options, since_)));
    }
    co_await file_->async_open();
    check_same(!is_known_ || (file_->size() == size_ && file_->etag() == etag_));
    ingest::check_one_commit(std::array<ingest::stated_commit, 2>{{{url_, commit_}, {url_, file_->commit()}}});
    is_known_ = true;
    size_ = file_->size();
    etag_ = file_->etag();
    commit_ = file_->commit();
    url_ = ingest::url_at_commit(url_, commit_);
    where_ = file_->url();
    if (met_tls_ && where_.starts_with("https:"))
        *met_tls_ = true;
}

// A checksum covers all bytes, also the header. The header's bytes are under way in any case, and must be those that
// located the tensors. Files of this machine have no announced checksum, and few servers announce one for http URLs.
asio::awaitable<void> source::open_again()
{
    co_await open(options_);
    auto const announced = file_->announced_crc32c() || file_->announced_crc64nvme();
    if (options_.crc32c == ingest::fetch_options::checksum::none || !announced)
        co_return;
    auto const again = co_await ingest::async_read_safetensors_header(*file_);
    check_same(again.tensors == header_.tensors && again.metadata == header_.metadata);
    std::scoped_lock const lock{mutex_};
    placed_ -= file_->front();  // already counted; the file's own count is added
}

void source::check_same(bool is_same) const
{
    if (is_same)
        return;
    throw system_error{ingest::make_error_code(ingest::errc::object_changed),
                       {.operation = "fetch",
                        .object = name(),
                        .kernel_message = {},
                        .advice = "its size, its ETag or its header changed after it was opened"}};
}

// ---- shared connections ----

turn::~turn()
{
    of_->leave(*this);
}

asio::awaitable<void> turn::async_come()
{
    try {
        co_await call_.async_receive(asio::deferred);
    } catch (boost::system::system_error const&) {
        throw system_error{asio::error::operation_aborted, {}};
    }
}

void turn::hurry() noexcept
{
    of_->hurry(*this);
}

std::function<void()> hurrying(std::shared_ptr<turn> const& mine)
{
    return [weak = std::weak_ptr{mine}] {
        if (auto const one = weak.lock())
            one->hurry();
    };
}

std::shared_ptr<turn> flow_budget::wait(asio::any_io_executor const& where, void const* file, unsigned flows,
                                        bool can_wait, std::weak_ptr<connection_keeper> keeper)
{
    flows = std::min(flows, flows_);
    std::list<kept_connections> keeps;
    if (!keeper.expired())
        keeps.push_back({file, flows, std::move(keeper)});
    std::shared_ptr<turn> made{new turn{where, shared_from_this(), file, flows, std::move(keeps)}};
    std::scoped_lock const lock{mutex_};
    (can_wait ? later_ : waiting_).push_back(made.get());
    admit();
    return made;
}

void flow_budget::leave(turn& one) noexcept
{
    std::scoped_lock const lock{mutex_};
    if (std::erase(running_, &one) != 0) {
        free_ += one.flows_;
        kept_.splice(kept_.end(), one.keeps_);
    }
    std::erase(waiting_, &one);
    std::erase(later_, &one);
    admit();
}

void flow_budget::hurry(turn& one) noexcept
{
    std::scoped_lock const lock{mutex_};
    auto const waits = std::ranges::find(later_, &one);
    if (waits == later_.end())
        return;
    waiting_.splice(waiting_.end(), later_, waits);
    admit();
}

void flow_budget::admit() noexcept
{
    for (auto* const queue : {&waiting_, &later_}) {
        for (auto next = queue->begin(); next != queue->end();) {
            auto const at = next++;
            auto& one = **at;
            if (is_busy(one.file_))
                continue;
            if (one.flows_ > free_)
                return;
            take(one);
            running_.splice(running_.end(), *queue, at);
            one.call_.try_send(error_code{});
        }
    }
}

void flow_budget::take(turn const& one) noexcept
{
    free_ -= one.flows_;
    std::erase_if(kept_, [&](kept_connections const& each) { return each.file == one.file_ || each.by.expired(); });
    auto kept_now = std::accumulate(kept_.begin(), kept_.end(), 0U,
                                    [](unsigned sum, kept_connections const& each) { return sum + each.most; });
    for (; kept_now > free_; kept_.pop_front()) {
        kept_now -= kept_.front().most;
        if (auto const by = kept_.front().by.lock())
            by->disconnect();
    }
}

bool flow_budget::is_busy(void const* file) const noexcept
{
    return std::ranges::any_of(running_, [file](turn const* one) { return one->file_ == file; });
}

}  // namespace gpurx::python
