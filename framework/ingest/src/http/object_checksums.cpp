// SPDX-License-Identifier: Apache-2.0
#include "object_checksums.hpp"

#include <fmt/format.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <gpurx/crc32c.hpp>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/gather.hpp>
#include <gpurx/ingest/error.hpp>

#include "../source/crc64nvme.hpp"
#include "failure.hpp"

namespace gpurx::ingest::detail {

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

void object_checksums::add(std::uint64_t offset, memory_span bytes)
{
    byte_range const part{offset, offset + bytes.size()};
    if (bytes.kind() == memory_kind::host)
        return add_here(part, {reinterpret_cast<std::byte const*>(bytes.address()), bytes.size()});
    if (!sums_up() || bytes.empty())
        return;
    std::unique_lock lock{mutex_};
    auto const result = parts_.add_on_gpu(part);
    lock.unlock();
    crc32c(bytes, result, stream_);
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
                                                     url const& from, std::uint64_t size)
{
    if (sums_up_64())
        verify_64(from, size);
    if (!sums_up())
        co_return;
    auto const waits = parts_.on_gpu();
    if (waits) {
        auto const [code] = co_await gpurx::async_wait(executor, stream_, on_gpu, asio::as_tuple(asio::use_awaitable));
        if (code)
            fail(code, from, "the GPU did not finish the checksum");
    }
    parts_.joined().for_each([this](byte_range bytes, std::uint32_t crc) { ranges_.put(bytes, crc); });
    if (waits)
        parts_.reuse();
    else
        parts_.forget();
    computed_crc_ = ranges_.whole(size);
    if (computed_crc_ && announced_crc_ && computed_crc_ != announced_crc_)
        fail(errc::wrong_checksum, from,
             fmt::format("CRC32C is {:08x}, the server announced {:08x}", *computed_crc_, *announced_crc_));
}

void object_checksums::verify_64(url const& from, std::uint64_t size)
{
    parts_64_.for_each([this](byte_range bytes, std::uint64_t crc) { ranges_64_.put(bytes, crc); });
    computed_crc64_ = ranges_64_.whole(size);
    if (computed_crc64_ && computed_crc64_ != announced_crc64_)
        fail(errc::wrong_checksum, from,
             fmt::format("CRC-64/NVME is {:016x}, the server announced {:016x}", *computed_crc64_, *announced_crc64_));
}

}  // namespace gpurx::ingest::detail
