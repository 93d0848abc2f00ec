// SPDX-License-Identifier: Apache-2.0
#include "crc_parts.hpp"

#include <gpurx/crc32c.hpp>
#include <iterator>

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

}  // namespace gpurx::ingest::detail
