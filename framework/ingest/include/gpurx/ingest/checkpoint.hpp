// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints in several files: which tensors there are, in which file each is, and all of them in one block of memory:
//     #include <gpurx/ingest/buffer.hpp>
//     // In a coroutine, given executor, session
//     using namespace gpurx::ingest;
//     auto const model = co_await async_read_checkpoint(executor, session, "s3://models/llama/");
//     auto const layout = lay_out(model);
//     auto const block = buffer::on_gpu(0, layout.size);
//     co_await async_fetch_checkpoint(executor, session, model, layout, block.span());
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/ingest/object.hpp>
#include <gpurx/ingest/safetensors.hpp>
#include <gpurx/session.hpp>

namespace gpurx::ingest {

// The format's largest indices have some MiB.
inline constexpr std::uint64_t safetensors_index_limit = 100'000'000;

struct checkpoint_shard {
    std::string url;  // or path
    std::uint64_t size = 0;
    // As object::etag(): compare it, and the size, with those of the object that the tensors are fetched from.
    std::string etag;
    std::vector<safetensor> tensors;  // as they follow each other in the file

    friend bool operator==(checkpoint_shard const&, checkpoint_shard const&) = default;
};

struct checkpoint {
    // In the order in which an index names them first, else in that of the list, or of their names.
    std::vector<checkpoint_shard> shards;

    // Where a tensor is; nullptr: there is none of that name. It looks at all of them.
    [[nodiscard]] checkpoint_shard const* shard_of(std::string_view tensor) const noexcept;
};

// The shards that make one checkpoint: their headers are read, options.flows of them at a time through one flow each.
// No tensor may be in two. A deadline is one of all headers. To load some of it open an object for the shard, and fetch
// placements_of() these tensors.
//
// Executor, session: as for object. Cancellation: terminal. Errors: as those of object; errc::bad_safetensors, and the
// text names the shard and the tensor; std::invalid_argument for mirrors, which are those of one file.
[[nodiscard]] asio::awaitable<checkpoint> async_read_shards(asio::any_io_executor executor, rx_session& session,
                                                            std::vector<std::string> urls, fetch_options options = {});

// The same for the shards that an index names, "model.safetensors.index.json", which lie beside it. What the index says
// has to be so: tensors that it does not name, or that a shard has not, or another has, are errors. `index` is the
// URL or path of the index; the path of a directory that has one, or files of tensors and none; a prefix of S3,
// "s3://BUCKET/PREFIX/", likewise; or of one such file. A deadline is one of index and headers.
[[nodiscard]] asio::awaitable<checkpoint> async_read_checkpoint(asio::any_io_executor executor, rx_session& session,
                                                                std::string index, fetch_options options = {});

// Where the tensors of all shards lie in one block of memory, one shard behind the other: offsets are in the order of
// the shards, and of the tensors in each.
[[nodiscard]] tensor_layout lay_out(checkpoint const& of);

// Brings all tensors to their places in the block: one shard after the other, each through options.flows, so that no
// more flows of the session are used than for one file. A deadline is one of all. Headers are received again, so what a
// server announces as a file's checksum is compared. Returns what was done for all of them.
//
// Executor, session, completion on a GPU: as for object. The checkpoint has to outlive the operation. Cancellation:
// terminal. Errors: as those of object; errc::object_changed if a file has not the size and the ETag that it had when
// its header was read; std::invalid_argument for mirrors, and for a layout that is not the checkpoint's, or larger than
// the block.
[[nodiscard]] asio::awaitable<fetch_stats> async_fetch_checkpoint(asio::any_io_executor executor, rx_session& session,
                                                                  checkpoint const& of, tensor_layout layout,
                                                                  memory_span block, fetch_options options = {});

// Whether that is a place of a checkpoint in several files, and not itself a file of tensors: by its name, and by a
// look at the disk.
[[nodiscard]] bool is_checkpoint(std::string_view place);

}  // namespace gpurx::ingest
