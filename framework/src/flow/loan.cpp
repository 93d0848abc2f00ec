// SPDX-License-Identifier: Apache-2.0
#include "loan.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gpurx::detail {

void loan::clear() noexcept
{
    fragments.clear();
    consumed = 0;
    front_taken = 0;
    bytes = 0;
    charge = 0;
    account = nullptr;
    tokens.clear();
    token_count = 0;
    own_tokens = 0;
    pages.clear();
    host = nullptr;
    wrapped.reset();
    foreign.clear();
    use.store(page_use::in_reads, std::memory_order_relaxed);
}

void drop(loan& from, std::size_t size) noexcept
{
    from.bytes -= size;
    while (size > 0) {
        auto& front = from.fragments.begin()[from.consumed];
        auto const count = std::min(front.size, size);
        front.address += count;
        front.size -= count;
        from.front_taken += count;
        size -= count;
        if (front.size == 0) {
            front.size = std::exchange(from.front_taken, 0);
            front.address -= front.size;
            ++from.consumed;
        }
    }
}

std::size_t pieces_of(loan const& from, std::size_t size) noexcept
{
    std::size_t count = 0;
    for (auto const& piece : from.remaining()) {
        if (size == 0)
            break;
        size -= std::min(piece.size, size);
        ++count;
    }
    return count;
}

void split_front(loan& from, std::size_t size, loan& part) noexcept
{
    part.of = from.of != nullptr ? from.of : &from;
    part.of->holders.fetch_add(1);
    for (auto const& piece : from.remaining()) {
        if (part.bytes == size)
            break;
        part.append({piece.address, std::min(piece.size, size - part.bytes), piece.kind});
    }
    drop(from, size);
}

bool can_absorb(loan const& into, loan const& batch) noexcept
{
    auto const is_unlent = [](loan const& one) { return one.account == nullptr && one.holders.load() == 1; };
    return is_unlent(into) && is_unlent(batch) && into.use.load() == batch.use.load() && into.foreign.empty() &&
           batch.foreign.empty() && (into.host == nullptr || batch.host == nullptr || into.host == batch.host) &&
           batch.fragments.size() <= into.fragments.spare_room() && batch.tokens.size() <= into.tokens.spare_room() &&
           batch.pages.size() <= into.pages.spare_room();
}

void absorb(loan& into, loan& batch) noexcept
{
    for (auto const& piece : batch.fragments)
        into.append(piece);
    into.charge += batch.charge;
    for (auto const& range : batch.tokens)
        if (into.tokens.empty() || !into.tokens.end()[-1].join(range))
            into.tokens.push_back(range);
    into.token_count += batch.token_count;
    into.own_tokens += batch.own_tokens;
    for (auto const page : batch.pages)
        into.pages.push_back(page);
    if (into.host == nullptr)
        into.host = batch.host;
    else if (batch.host != nullptr)
        batch.host->holders.fetch_sub(1, std::memory_order_relaxed);  // not the last: `into` is one
}

std::size_t copy_front(loan const& from, std::byte* destination, std::size_t size) noexcept
{
    std::size_t placed = 0;
    for (auto const& piece : from.remaining()) {
        auto const count = std::min(piece.size, size - placed);
        if (count == 0)
            break;
        std::memcpy(destination + placed, reinterpret_cast<std::byte const*>(piece.address), count);
        placed += count;
    }
    return placed;
}

bool is_on_host(loan const& from, std::size_t size) noexcept
{
    for (auto const& piece : from.remaining()) {
        if (size == 0)
            break;
        if (piece.kind != memory_kind::host)
            return false;
        size -= std::min(piece.size, size);
    }
    return true;
}

token_range release_batch::add(token_range range) noexcept
{
    auto const count =
        static_cast<std::uint32_t>(std::min<std::size_t>(range.count, uapi::max_dontneed_pages - batch_.pages));
    if (count == 0)
        return range;
    if (!join_last({range.first, count})) {
        if (batch_.entries == batch_.tokens.size())
            return range;
        batch_.tokens[batch_.entries++] = {range.first, count};
    }
    batch_.pages += count;
    return {range.first + count, range.count - count};
}

bool release_batch::join_last(token_range range) noexcept
{
    if (batch_.entries == 0)
        return false;
    auto& last = batch_.tokens[batch_.entries - 1];
    token_range joined{last.token_start, last.token_count};
    if (!joined.join(range))
        return false;
    last = {joined.first, joined.count};
    return true;
}

void release_batch::take(token_batch& into) noexcept
{
    std::ranges::copy(batch_.used(), into.tokens.begin());
    into.entries = batch_.entries;
    into.pages = batch_.pages;
    batch_.entries = 0;
    batch_.pages = 0;
}

}  // namespace gpurx::detail
