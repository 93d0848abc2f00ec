// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/this_coro.hpp>
#include <chrono>
#include <filesystem>
#include <gpurx/ingest/checkpoint.hpp>
#include <gpurx/ingest/safetensors.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "../hub/location.hpp"
#include "../net/io_threads.hpp"
#include "../net/url.hpp"
#include "../s3/location.hpp"
#include "../together.hpp"
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
    fetch_options options;
    std::chrono::steady_clock::time_point began;
    checkpoint& into;
    std::size_t next = 0;
};

asio::awaitable<void> read_headers(shard_reading& of)
{
    while (of.next < of.into.shards.size()) {
        auto& shard = of.into.shards[of.next++];
        object file{of.executor, of.session, shard.url, with_rest_of_deadline(of.options, of.began)};
        co_await file.async_open();
        shard.size = file.size();
        shard.etag = file.etag();
        shard.commit = file.commit();
        auto header = co_await async_read_safetensors_header(file);
        shard.tensors = std::move(header.tensors);
    }
}

struct index_text {
    std::string text;
    std::string commit;
};

asio::awaitable<index_text> read_text(asio::any_io_executor executor, rx_session& session, std::string where,
                                      fetch_options options)
{
    object file{std::move(executor), session, where, std::move(options)};
    co_await file.async_open();
    if (file.size() > safetensors_index_limit)
        throw system_error{errc::bad_safetensors,
                           {.operation = "read the shards of",
                            .object = is_local(where) ? where : redacted_url(where),
                            .kernel_message = {},
                            .advice = "it is larger than an index may be"}};
    std::string text(file.size(), '\0');
    co_await file.async_read_front(host_span{std::span{text}});
    co_return index_text{std::move(text), file.commit()};
}

bool is_index(std::string_view where)
{
    return (is_literal(where) ? where : where.substr(0, where.find_first_of("?#"))).ends_with(".json");
}

bool is_on_disk(std::string_view place)
{
    error_code code;
    diagnostics why;
    std::error_code none;
    return is_local(place) && std::filesystem::is_directory(parse_path(place, code, why), none);
}

bool is_directory(std::string_view place)
{
    return s3::is_location(place)    ? s3::is_prefix(place)
           : hub::is_location(place) ? hub::is_directory(place)
                                     : is_on_disk(place);
}

// Of a directory: its index if there is one, else its files of tensors, in the order of their names. Of anything else:
// that. Errors: errc::bad_safetensors if there are none, or several indices.
asio::awaitable<std::vector<std::string>> files_at(std::string place, fetch_options const& options)
{
    std::vector<std::string> files;
    bool is_several = false;
    static_cast<void>(co_await async_run(co_await asio::this_coro::executor, [&] {
        is_several = is_directory(place);
        return error_code{};
    }));
    if (!is_several) {
        files.push_back(std::move(place));
        co_return files;
    }
    auto const listed = co_await async_list_files(place, false, options);
    for (auto const& each : listed.files)
        files.push_back(listed.directory + each.name);
    co_return files_among(std::move(files), place);
}

std::vector<stated_commit> commits_of(checkpoint const& of)
{
    std::vector<stated_commit> all;
    for (auto const& each : of.shards)
        all.push_back({each.url, each.commit});
    return all;
}

void check_fit(tensor_layout const& layout, std::size_t tensors, memory_span block)
{
    if (layout.offsets.size() != tensors || layout.size > block.size())
        throw std::invalid_argument{"the layout does not fit these tensors and this block"};
}

void check_same(object const& file, checkpoint_shard const& shard)
{
    check_one_commit(std::array<stated_commit, 2>{{{shard.url, shard.commit}, {shard.url, file.commit()}}});
    if (file.size() != shard.size || file.etag() != shard.etag)
        throw system_error{make_error_code(errc::object_changed),
                           {.operation = "fetch",
                            .object = redacted_url(shard.url),
                            .kernel_message = {},
                            .advice = "its size or its ETag changed after its header was read"}};
}

// A shard that is being fetched.
struct fetched_shard {
    checkpoint_shard const& shard;
    std::vector<placement> placements;
    fetch_options options;
    fetch_stats stats = {};
};

asio::awaitable<void> fetch_shard(asio::any_io_executor executor, rx_session& session, fetched_shard& of)
{
    object file{std::move(executor), session, of.shard.url, of.options};
    co_await file.async_open();
    check_same(file, of.shard);
    // A checksum is one of all bytes. Those in front of the tensors are on their way as it is.
    std::string header(of.shard.tensors.empty() ? 0 : of.shard.tensors.front().offset, '\0');
    co_await file.async_read_front(host_span{std::span{header}});
    co_await file.async_fetch(of.placements);
    of.stats = file.stats();
}

asio::awaitable<void> fetch_at_once(asio::any_io_executor executor, rx_session& session,
                                    std::span<fetched_shard> shards)
{
    using operation = decltype(asio::co_spawn(executor, fetch_shard(executor, session, shards[0]), asio::deferred));
    std::vector<operation> operations;
    for (auto& shard : shards)
        operations.push_back(asio::co_spawn(executor, fetch_shard(executor, session, shard), asio::deferred));
    rethrow_first(
        co_await run_together(std::move(executor), std::move(operations), asio::experimental::wait_for_one_error()));
}

// How many flows a file can use: one for each chunk.
unsigned flows_for(checkpoint_shard const& shard, fetch_options const& options) noexcept
{
    auto const chunks = shard.size / std::max<std::uint64_t>(options.chunk_size, 1) + 1;
    return static_cast<unsigned>(std::clamp<std::uint64_t>(chunks, 1, std::max(options.flows, 1U)));
}

// The next shards whose flows together are no more than the options have; at least one.
std::vector<fetched_shard> next_shards(std::span<checkpoint_shard const> left, tensor_layout const& layout,
                                       std::size_t& tensors, memory_span block, fetch_options const& options)
{
    std::vector<fetched_shard> next;
    for (unsigned used = 0; auto const& shard : left) {
        auto own = options;
        own.flows = flows_for(shard, options);
        used += own.flows;
        if (!next.empty() && used > options.flows)
            break;
        auto const first = layout.offsets.begin() + static_cast<std::ptrdiff_t>(tensors);
        tensors += shard.tensors.size();
        tensor_layout const of_shard{{first, first + std::ssize(shard.tensors)}, layout.size};
        next.push_back({shard, placements_of(shard.tensors, of_shard, block), std::move(own)});
    }
    return next;
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

// What is wrong with a header names the tensor, and here the file too.
asio::awaitable<safetensors_header> async_read_safetensors_header(object& file)
try {
    std::array<std::byte, safetensors_prefix> prefix{};
    // A file without even that is judged by its size.
    if (file.size() >= prefix.size())
        co_await file.async_read_front(host_span{prefix});
    std::string text(safetensors_header_size(prefix, file.size()), '\0');
    co_await file.async_read_front(host_span{std::span{text}});
    co_return parse_safetensors(text, file.size());
} catch (system_error const& failure) {
    if (failure.code() != errc::bad_safetensors)
        throw;
    auto why = failure.why();
    why.object += " of " + (is_local(file.url()) ? printable_text(file.url()) : redacted_url(file.url()));
    throw system_error{failure.code(), why};
}

checkpoint_shard const* checkpoint::shard_of(std::string_view tensor) const noexcept
{
    for (auto const& shard : shards) {
        if (std::ranges::find(shard.tensors, tensor, &safetensor::name) != shard.tensors.end())
            return &shard;
    }
    return nullptr;
}

asio::awaitable<checkpoint> async_read_shards(asio::any_io_executor executor, rx_session& session,
                                              std::vector<std::string> urls, fetch_options options)
{
    check_no_mirrors(options);
    auto const began = std::chrono::steady_clock::now();
    checkpoint result;
    for (auto& url : urls)
        result.shards.push_back({.url = std::move(url), .size = 0, .etag = {}, .commit = {}, .tensors = {}});
    auto const flows = std::min<std::size_t>(std::max(options.flows, 1U), result.shards.size());
    options.flows = 1;
    options.chunk_size = std::min(options.chunk_size, header_chunk);
    shard_reading reading{asio::make_strand(executor), session, std::move(options), began, result};
    using operation = decltype(asio::co_spawn(reading.executor, read_headers(reading), asio::deferred));
    std::vector<operation> operations;
    for (std::size_t i = 0; i < flows; ++i)
        operations.push_back(asio::co_spawn(reading.executor, read_headers(reading), asio::deferred));
    if (!operations.empty()) {
        rethrow_first(co_await run_together(std::move(executor), std::move(operations),
                                            asio::experimental::wait_for_one_error()));
    }
    check_once(result);
    check_one_commit(commits_of(result));
    for (auto& shard : result.shards)
        shard.url = url_at_commit(shard.url, shard.commit);
    co_return result;
}

asio::awaitable<checkpoint> async_read_checkpoint(asio::any_io_executor executor, rx_session& session,
                                                  std::string index, fetch_options options)
{
    check_no_mirrors(options);
    auto const began = std::chrono::steady_clock::now();
    auto files = co_await files_at(index, options);
    if (files.size() == 1)
        index = files.front();
    if (files.size() > 1 || !is_index(index))
        co_return co_await async_read_shards(std::move(executor), session, std::move(files),
                                             with_rest_of_deadline(std::move(options), began));
    auto const read = co_await read_text(executor, session, index, with_rest_of_deadline(options, began));
    auto const named = parse_index(read.text, url_at_commit(index, read.commit));
    auto result = co_await async_read_shards(std::move(executor), session, named.urls,
                                             with_rest_of_deadline(std::move(options), began));
    check_index(result, named, index);
    auto commits = commits_of(result);
    commits.push_back({index, read.commit});
    check_one_commit(commits);
    co_return result;
}

bool is_checkpoint(std::string_view place)
{
    return is_index(place) || is_directory(place);
}

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
    auto const start = std::chrono::steady_clock::now();
    fetch_stats done;
    std::size_t placed = 0;
    for (std::span<checkpoint_shard const> left{of.shards}; !left.empty();) {
        auto shards = next_shards(left, layout, placed, block, with_rest_of_deadline(options, start));
        left = left.subspan(shards.size());
        co_await fetch_at_once(executor, session, shards);
        for (auto const& each : shards)
            add(done, each.stats);
    }
    co_return done;
}

}  // namespace gpurx::ingest
