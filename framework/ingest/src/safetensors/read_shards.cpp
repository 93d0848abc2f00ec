// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <gpurx/ingest/checkpoint.hpp>
#include <utility>

#include "../file/directory.hpp"
#include "../file/io_threads.hpp"
#include "../file/location.hpp"
#include "../first_failure.hpp"
#include "shard_index.hpp"

namespace gpurx::ingest {

namespace {

using namespace detail;

// Enough for most headers in one answer, and little that is on its way for nothing.
constexpr std::size_t header_chunk = 256 << 10;

// What the flows that read headers share. They run on one strand.
struct shard_reading {
    asio::any_io_executor executor;
    rx_session& session;
    http_options options;
    checkpoint& into;
    std::size_t next = 0;
};

asio::awaitable<void> read_headers(shard_reading& of)
{
    while (of.next < of.into.shards.size()) {
        auto& shard = of.into.shards[of.next++];
        object file{of.executor, of.session, shard.url, of.options};
        co_await file.async_open();
        shard.size = file.size();
        shard.etag = file.etag();
        try {
            auto header = co_await async_read_safetensors_header(file);
            shard.tensors = std::move(header.tensors);
        } catch (system_error const& failure) {
            if (failure.code() != errc::bad_safetensors)
                throw;
            auto why = failure.why();
            why.object += " in " + (is_local(shard.url) ? shard.url : shown_url(shard.url));
            throw system_error{failure.code(), why};
        }
    }
}

asio::awaitable<std::string> read_text(asio::any_io_executor executor, rx_session& session, std::string where,
                                       http_options options)
{
    object file{std::move(executor), session, where, std::move(options)};
    co_await file.async_open();
    if (file.size() > safetensors_index_limit)
        throw system_error{errc::bad_safetensors,
                           {.operation = "read the shards of",
                            .object = is_local(where) ? where : shown_url(where),
                            .kernel_message = {},
                            .advice = "it is too large for an index"}};
    std::string text(file.size(), '\0');
    co_await file.async_read_front(host_span{std::span{text}});
    co_return text;
}

bool is_index(std::string_view where)
{
    return (is_local(where) ? where : where.substr(0, where.find_first_of("?#"))).ends_with(".json");
}

}  // namespace

checkpoint_shard const* checkpoint::shard_of(std::string_view tensor) const noexcept
{
    for (auto const& shard : shards) {
        if (std::ranges::find(shard.tensors, tensor, &safetensor::name) != shard.tensors.end())
            return &shard;
    }
    return nullptr;
}

asio::awaitable<checkpoint> async_read_shards(asio::any_io_executor executor, rx_session& session,
                                              std::vector<std::string> urls, http_options options)
{
    checkpoint result;
    for (auto& url : urls)
        result.shards.push_back({.url = std::move(url), .size = 0, .etag = {}, .tensors = {}});
    auto const flows = std::min<std::size_t>(std::max(options.flows, 1U), result.shards.size());
    options.flows = 1;
    options.chunk_size = std::min(options.chunk_size, header_chunk);
    shard_reading reading{asio::make_strand(executor), session, std::move(options), result};
    using operation = decltype(asio::co_spawn(reading.executor, read_headers(reading), asio::deferred));
    std::vector<operation> operations;
    for (std::size_t i = 0; i < flows; ++i)
        operations.push_back(asio::co_spawn(reading.executor, read_headers(reading), asio::deferred));
    if (!operations.empty()) {
        auto const [order, failures] = co_await asio::experimental::make_parallel_group(std::move(operations))
                                           .async_wait(asio::experimental::wait_for_one_error(), asio::use_awaitable);
        rethrow_first(order, failures);
    }
    check_once(result);
    co_return result;
}

asio::awaitable<checkpoint> async_read_checkpoint(asio::any_io_executor executor, rx_session& session,
                                                  std::string index, http_options options)
{
    std::vector<std::string> files{index};
    if (is_local(index)) {
        files = co_await async_files_of(executor, index);
        if (files.size() == 1)
            index = files.front();
    }
    if (files.size() > 1 || !is_index(index))
        co_return co_await async_read_shards(std::move(executor), session, std::move(files), std::move(options));
    auto const text = co_await read_text(executor, session, index, options);
    auto const named = parse_index(text, index);
    auto result = co_await async_read_shards(std::move(executor), session, named.urls, std::move(options));
    check_index(result, named, index);
    co_return result;
}

}  // namespace gpurx::ingest
