// SPDX-License-Identifier: Apache-2.0
#include "load.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <chrono>
#include <cstdint>
#include <gpurx/ingest/checkpoint.hpp>
#include <gpurx/ingest/safetensors.hpp>
#include <new>
#include <stdexcept>
#include <string>

namespace asio = boost::asio;
namespace ingest = gpurx::ingest;

namespace {

using std::chrono::steady_clock;

ingest::buffer allocate_landing(std::string const& place, int gpu, std::size_t bytes)
try {
    return gpu < 0 ? ingest::buffer::on_host(bytes) : ingest::buffer::on_gpu(gpu, bytes);
} catch (std::bad_alloc const&) {
    throw gpurx::system_error{
        make_error_code(boost::system::errc::not_enough_memory),
        {.operation = "fetch",
         .object = ingest::redacted_url(place),
         .kernel_message = {},
         .advice = fmt::format("the object needs {} bytes of memory, and this machine has {}; --output receives the "
                               "object in pieces",
                               bytes,
                               static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                                   static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)))}};
}

// Returns the rest of a deadline after the headers have been read.
ingest::fetch_options with_rest_of_time(ingest::fetch_options options, steady_clock::time_point start)
{
    using std::chrono::milliseconds;
    auto const gone = std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
    if (options.deadline != milliseconds{0})
        options.deadline = std::max(milliseconds{1}, options.deadline - gone);
    return options;
}

}  // namespace

asio::awaitable<ingest::buffer> fetch(ingest::object& object, int gpu)
{
    auto landing = allocate_landing(object.url(), gpu, object.size());
    ingest::placement const all{0, landing.span()};
    co_await object.async_fetch({&all, 1});
    co_return landing;
}

asio::awaitable<ingest::buffer> load_tensors(ingest::object& file, int gpu, report& found)
{
    auto header = co_await ingest::async_read_safetensors_header(file);
    auto const layout = ingest::lay_out(header.tensors);
    auto block = allocate_landing(file.url(), gpu, layout.size);
    auto const placements = ingest::placements_of(header.tensors, layout, block.span());
    co_await file.async_fetch(placements);
    found.tensors = std::move(header.tensors);
    found.offsets = layout.offsets;
    found.block = block.span().address();
    co_return block;
}

asio::awaitable<ingest::buffer> load_checkpoint(options const& wanted, gpurx::rx_session& session, report& found)
{
    if (!wanted.http.mirrors.empty())
        throw std::invalid_argument{"--mirror needs a single object, and this model has several files"};
    auto const executor = co_await asio::this_coro::executor;
    auto const start = steady_clock::now();
    auto const model = co_await ingest::async_read_checkpoint(executor, session, wanted.url, wanted.http);
    found.url = ingest::redacted_url(wanted.url);
    for (auto const& shard : model.shards) {
        found.size += shard.size;
        found.tensors.insert(found.tensors.end(), shard.tensors.begin(), shard.tensors.end());
    }
    auto const layout = ingest::lay_out(model);
    auto block = allocate_landing(wanted.url, wanted.nic.gpu, layout.size);
    found.http = co_await ingest::async_fetch_checkpoint(executor, session, model, layout, block.span(),
                                                         with_rest_of_time(wanted.http, start));
    found.offsets = layout.offsets;
    found.block = block.span().address();
    co_return block;
}
