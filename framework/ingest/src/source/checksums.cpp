// SPDX-License-Identifier: Apache-2.0
#include "checksums.hpp"

#include <fmt/format.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <gpurx/crc32c.hpp>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/gather.hpp>
#include <gpurx/ingest/error.hpp>
#include <iterator>
#include <utility>

#include "crc64nvme.hpp"

namespace gpurx::ingest::detail {

namespace {

constexpr std::size_t block_size = 4096;

std::uint32_t one_after_other(std::uint32_t first, std::uint32_t second, std::uint64_t second_size)
{
    return crc32c_combine(first, second, second_size);
}

std::uint64_t one_after_other(std::uint64_t first, std::uint64_t second, std::uint64_t second_size)
{
    return crc64nvme_combine(first, second, second_size);
}

[[noreturn]] void fail(error_code code, diagnostics about, std::string advice)
{
    about.advice = std::move(advice);
    throw system_error{code, about};
}

}  // namespace

template <class Checksum>
void joined_parts<Checksum>::add(byte_range bytes, Checksum crc)
{
    if (bytes.empty())
        return;
    auto next = parts_.lower_bound(bytes.begin);
    if (next != parts_.begin()) {
        if (auto const last = std::prev(next); last->second.end == bytes.begin) {
            crc = one_after_other(last->second.crc, crc, bytes.size());
            bytes.begin = last->first;
            next = parts_.erase(last);
        }
    }
    if (next != parts_.end() && next->first == bytes.end) {
        crc = one_after_other(crc, next->second.crc, next->second.end - next->first);
        bytes.end = next->second.end;
        next = parts_.erase(next);
    }
    parts_.emplace_hint(next, bytes.begin, part{bytes.end, crc});
}

template <class Checksum>
std::optional<Checksum> joined_parts<Checksum>::whole(std::uint64_t size) const
{
    if (size == 0)
        return Checksum{0};
    if (parts_.empty() || parts_.begin()->first != 0 || parts_.begin()->second.end != size)
        return std::nullopt;
    return parts_.begin()->second.crc;
}

template class joined_parts<std::uint32_t>;
template class joined_parts<std::uint64_t>;

template <class Checksum>
void latest_ranges<Checksum>::put(byte_range bytes, Checksum crc)
{
    if (bytes.empty())
        return;
    auto const first = ranges_.lower_bound(bytes.begin);
    if (first != ranges_.begin() && std::prev(first)->second.end > bytes.begin)
        return;
    auto beyond = first;
    std::uint64_t within = 0;
    for (; beyond != ranges_.end() && beyond->first < bytes.end; ++beyond) {
        if (beyond->second.end > bytes.end)
            return;
        within += beyond->second.end - beyond->first;
    }
    auto const is_same = first != beyond && first->second.end == bytes.end && first->first == bytes.begin;
    if (is_same && first->second.crc == crc)
        return;
    ranges_.emplace_hint(ranges_.erase(first, beyond), bytes.begin, range{bytes.end, crc});
    size_ += bytes.size() - within;
    joined_.reset();
}

// None shares a byte with another: they are all of it if they are as much.
template <class Checksum>
std::optional<Checksum> latest_ranges<Checksum>::whole(std::uint64_t size)
{
    if (size_ != size)
        return std::nullopt;
    if (!joined_) {
        joined_ = Checksum{0};
        for (auto const& [begin, each] : ranges_)
            joined_ = one_after_other(*joined_, each.crc, each.end - begin);
    }
    return joined_;
}

template class latest_ranges<std::uint32_t>;
template class latest_ranges<std::uint64_t>;

memory_span crc_parts::add_on_gpu(byte_range bytes)
{
    if (blocks_.empty() || used_ + sizeof(std::uint32_t) > block_size) {
        blocks_.push_back(device_memory::on_pinned_host(block_size));
        used_ = 0;
    }
    auto const at = blocks_.back().span().address() + used_;
    used_ += sizeof(std::uint32_t);
    on_gpu_.push_back({bytes, reinterpret_cast<std::uint32_t const*>(at)});
    return {memory_kind::host, at, sizeof(std::uint32_t)};
}

joined_parts<std::uint32_t> crc_parts::joined() const
{
    auto all = on_host_;
    for (auto const& each : on_gpu_)
        all.add(each.bytes, *each.crc);
    return all;
}

void crc_parts::forget() noexcept
{
    on_host_ = {};
    on_gpu_.clear();
}

void crc_parts::reuse() noexcept
{
    forget();
    while (blocks_.size() > 1)
        blocks_.pop_back();
    used_ = 0;
}

bool object_checksums::sums_up() const noexcept
{
    using checksum = fetch_options::checksum;
    return wanted_ == checksum::always || (wanted_ == checksum::automatic && announced_crc_);
}

// Of the two, the one that a GPU can compute.
bool object_checksums::sums_up_64() const noexcept
{
    return wanted_ == fetch_options::checksum::automatic && announced_crc64_ && !announced_crc_;
}

void object_checksums::add_front(std::uint64_t offset, std::span<std::byte const> bytes)
{
    byte_range const front{0, offset + bytes.size()};
    if (sums_up_64()) {
        front_64_ = crc64nvme(bytes, front_64_);
        ranges_64_.put(front, front_64_);
    }
    if (sums_up()) {
        front_ = crc32c(bytes, front_);
        ranges_.put(front, front_);
    }
}

void object_checksums::begin()
{
    parts_.forget();
    parts_64_ = {};
}

void object_checksums::add(std::uint64_t offset, memory_span bytes, cuda_stream_ref stream)
{
    byte_range const part{offset, offset + bytes.size()};
    if (bytes.kind() == memory_kind::host)
        return add_here(part, {reinterpret_cast<std::byte const*>(bytes.address()), bytes.size()});
    if (!sums_up() || bytes.empty())
        return;
    std::unique_lock lock{mutex_};
    auto const result = parts_.add_on_gpu(part);
    lock.unlock();
    crc32c(bytes, result, stream);
}

void object_checksums::add_here(byte_range part, std::span<std::byte const> bytes)
{
    if (sums_up_64()) {
        auto const crc = crc64nvme(bytes);
        std::scoped_lock const lock{mutex_};
        parts_64_.add(part, crc);
    }
    if (sums_up()) {
        auto const crc = crc32c(bytes);
        std::scoped_lock const lock{mutex_};
        parts_.add(part, crc);
    }
}

asio::awaitable<void> object_checksums::async_verify(asio::any_io_executor executor, memory_span on_gpu,
                                                     diagnostics about, std::uint64_t size)
{
    if (sums_up_64())
        verify_64(about, size);
    if (!sums_up())
        co_return;
    auto const waits = parts_.on_gpu();
    if (waits) {
        auto const [code] = co_await gpurx::async_wait(executor, stream_, on_gpu, asio::as_tuple(asio::use_awaitable));
        if (code)
            fail(code, std::move(about), "the GPU did not finish the checksum");
    }
    parts_.joined().for_each([this](byte_range bytes, std::uint32_t crc) { ranges_.put(bytes, crc); });
    if (waits)
        parts_.reuse();
    else
        parts_.forget();
    computed_crc_ = ranges_.whole(size);
    if (computed_crc_ && announced_crc_ && computed_crc_ != announced_crc_)
        fail(errc::wrong_checksum, std::move(about),
             fmt::format("CRC32C is {:08x}, the server announced {:08x}", *computed_crc_, *announced_crc_));
}

void object_checksums::verify_64(diagnostics const& about, std::uint64_t size)
{
    parts_64_.for_each([this](byte_range bytes, std::uint64_t crc) { ranges_64_.put(bytes, crc); });
    computed_crc64_ = ranges_64_.whole(size);
    if (computed_crc64_ && computed_crc64_ != announced_crc64_)
        fail(errc::wrong_checksum, about,
             fmt::format("CRC-64/NVME is {:016x}, the server announced {:016x}", *computed_crc64_, *announced_crc64_));
}

}  // namespace gpurx::ingest::detail
