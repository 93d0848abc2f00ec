// SPDX-License-Identifier: Apache-2.0
#include "source.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace gpurx::ingest::detail {

bool delivery::to(std::span<placement const> placements, std::uint64_t front, std::uint64_t size)
{
    take_ = nullptr;
    return places_.assign(placements, size) && (places_.all().empty() || places_.all().front().offset >= front);
}

void delivery::to(piece_consumer take)
{
    take_ = std::move(take);
    static_cast<void>(places_.assign({}, 0));
}

std::vector<byte_range> delivery::wanted() const
{
    std::vector<byte_range> all;
    all.reserve(places_.all().size());
    for (auto const& each : places_.all())
        all.push_back({each.offset, each.offset + each.destination.size()});
    return all;
}

std::vector<memory_span> delivery::on_gpus() const
{
    std::vector<memory_span> found;
    for (auto const& each : places_.all()) {
        if (each.destination.kind() == memory_kind::device)
            found.push_back(each.destination);
    }
    return found;
}

memory_span delivery::on_gpu() const noexcept
{
    auto const found = std::ranges::find(places_.all(), memory_kind::device,
                                         [](placement const& each) { return each.destination.kind(); });
    return found == places_.all().end() ? memory_span{} : found->destination;
}

memory_span delivery::place_of(std::uint64_t at, std::uint64_t at_most, std::vector<std::byte>& landing) const
{
    if (!take_)
        return places_.find(at, at_most);
    landing.resize(std::max(landing.size(), static_cast<std::size_t>(std::min(at_most, piece_size))));
    return destination{host_span{landing.data(), std::min(at_most, piece_size)}}.where();
}

asio::awaitable<void> delivery::async_deliver(std::uint64_t at, memory_span bytes, cuda_stream_ref stream)
{
    sums_.add(at, bytes, stream);
    if (!take_)
        co_return;
    std::span const piece{reinterpret_cast<std::byte const*>(bytes.address()), bytes.size()};
    try {
        co_await take_(at, piece);
    } catch (...) {
        throw consumer_failure{std::current_exception()};
    }
}

}  // namespace gpurx::ingest::detail
