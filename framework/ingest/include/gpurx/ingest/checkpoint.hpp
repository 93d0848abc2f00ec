// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints in several files: which tensors there are, and in which file each is.
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
// No tensor may be in two. To load it open an object for each shard, and fetch placements_of() its tensors.
//
// Executor, session: as for object. Cancellation: terminal. Errors: as those of object; errc::bad_safetensors, and the
// text names the shard and the tensor.
[[nodiscard]] asio::awaitable<checkpoint> async_read_shards(asio::any_io_executor executor, rx_session& session,
                                                            std::vector<std::string> urls, http_options options = {});

// The same for the shards that an index names, "model.safetensors.index.json", which lie beside it. What the index says
// has to be so: tensors that it does not name, or that a shard has not, or another has, are errors. `index` is the
// URL or path of the index; the path of a directory that has one, or files of tensors and none; or of one such file.
// For a prefix of S3 list it (async_list_s3), and give async_read_shards the files of tensors.
[[nodiscard]] asio::awaitable<checkpoint> async_read_checkpoint(asio::any_io_executor executor, rx_session& session,
                                                                std::string index, http_options options = {});

}  // namespace gpurx::ingest
