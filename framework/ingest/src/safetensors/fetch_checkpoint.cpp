// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <gpurx/ingest/checkpoint.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "shard_index.hpp"

namespace gpurx::ingest {

namespace {

using std::chrono::steady_clock;

void check_fit(tensor_layout const& layout, std::size_t tensors, memory_span block)
{
    if (layout.offsets.size() != tensors || layout.size > block.size())
        throw std::invalid_argument{"the layout is not one of these tensors in this block"};
}

void check_same(object const& file, checkpoint_shard const& shard)
{
    if (file.size() != shard.size || file.etag() != shard.etag)
        throw system_error{make_error_code(errc::object_changed),
                           {.operation = "fetch",
                            .object = redacted_url(shard.url),
                            .kernel_message = {},
                            .advice = "its size or its ETag is another than when its header was read"}};
}

asio::awaitable<void> fetch_shard(object& file, checkpoint_shard const& shard, std::span<placement const> placements)
{
    co_await file.async_open();
    check_same(file, shard);
    // A checksum is one of all bytes. Those in front of the tensors are on their way as it is.
    std::string header(shard.tensors.empty() ? 0 : shard.tensors.front().offset, '\0');
    co_await file.async_read_front(host_span{std::span{header}});
    co_await file.async_fetch(placements);
}

void add(fetch_stats& to, fetch_stats const& more)
{
    to.requests += more.requests;
    to.connections += more.connections;
    to.retries += more.retries;
    to.redirects += more.redirects;
    to.bytes_placed += more.bytes_placed;
}

}  // namespace

tensor_layout lay_out(checkpoint const& of)
{
    std::vector<safetensor> all;
    for (auto const& shard : of.shards)
        all.insert(all.end(), shard.tensors.begin(), shard.tensors.end());
    return lay_out(all);
}

asio::awaitable<fetch_stats> async_fetch_checkpoint(asio::any_io_executor executor, rx_session& session,
                                                    checkpoint const& of, tensor_layout layout, memory_span block,
                                                    fetch_options options)
{
    std::size_t tensors = 0;
    for (auto const& shard : of.shards)
        tensors += shard.tensors.size();
    detail::check_no_mirrors(options);
    check_fit(layout, tensors, block);
    auto const start = steady_clock::now();
    fetch_stats done;
    auto offset = layout.offsets.begin();
    for (auto const& shard : of.shards) {
        tensor_layout const own{{offset, offset + std::ssize(shard.tensors)}, layout.size};
        offset += std::ssize(shard.tensors);
        object file{executor, session, shard.url, with_rest_of_deadline(options, start)};
        auto const placements = placements_of(shard.tensors, own, block);
        co_await fetch_shard(file, shard, placements);
        add(done, file.stats());
    }
    co_return done;
}

}  // namespace gpurx::ingest
