// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Checkpoints in several files, loaded into one block of memory.
///
/// @code{.cpp}
/// #include <gpurx/ingest/buffer.hpp>
/// // In a coroutine, given executor, session
/// using namespace gpurx::ingest;
/// auto const model = co_await async_read_checkpoint(executor, session, "s3://models/llama/");
/// auto const layout = lay_out(model);
/// auto const block = buffer::on_gpu(0, layout.size);
/// co_await async_fetch_checkpoint(executor, session, model, layout, block.span());
/// @endcode
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

/// @brief Most bytes of an index of shards. The largest known indices have some MiB.
inline constexpr std::uint64_t safetensors_index_limit = 100'000'000;

/// @brief One file of a checkpoint.
struct checkpoint_shard {
    /// @brief URL or path of the file, at the commit that its server stated.
    std::string url;

    /// @brief Size of the file in bytes.
    std::uint64_t size = 0;
    /// @brief ETag of the file, as object::etag() returns it.
    ///
    /// Before you fetch tensors from an object, compare its ETag and size with these.
    std::string etag;
    std::string commit;               ///< Commit of the file, as object::commit() returns it.
    std::vector<safetensor> tensors;  ///< Tensors in the order of the file.

    friend bool operator==(checkpoint_shard const&, checkpoint_shard const&) = default;
};

/// @brief The files of a checkpoint.
struct checkpoint {
    /// @brief Shards in the order in which the index first names them.
    ///
    /// Without an index they are in the order of the list of URLs, or of their names.
    std::vector<checkpoint_shard> shards;

    /// @brief Returns the shard of a tensor; null if no tensor has the name.
    ///
    /// @par Cost
    /// The function searches the tensors of all shards.
    [[nodiscard]] checkpoint_shard const* shard_of(std::string_view tensor) const noexcept;
};

/// @brief Reads the headers of the shards of one checkpoint.
///
/// The operation reads `options.flows` headers at a time, each through one flow. Two shards must not have the same
/// tensor. To load a part of the checkpoint, open an object for a shard and fetch the placements_of() its tensors.
///
/// @param executor Executor of the connections, as for object.
/// @param session Session of the flows, as for object.
/// @param urls URLs or paths of the shards.
/// @param options Options of fetching. `deadline` applies to all headers together.
/// @returns The shards with their tensors.
/// @throws system_error See Errors.
/// @throws std::invalid_argument If `options.mirrors` has URLs. Mirrors belong to one file.
///
/// @par Per-operation cancellation
/// Terminal.
///
/// @par Errors
/// - The errors of object.
/// - errc::bad_safetensors: the diagnostics name the shard and the tensor.
/// - errc::object_changed: the shards are of different commits (check_one_commit()).
[[nodiscard]] asio::awaitable<checkpoint> async_read_shards(asio::any_io_executor executor, rx_session& session,
                                                            std::vector<std::string> urls, fetch_options options = {});

/// @brief Reads the index of a checkpoint and the headers of its shards.
///
/// The shards are in the directory of their index, `model.safetensors.index.json`. The operation fails if the shard of
/// a tensor in the index does not have it. Tensors that the index does not name belong to the checkpoint, too.
/// Otherwise the operation works as async_read_shards().
///
/// @param executor Executor of the connections, as for object.
/// @param session Session of the flows, as for object.
/// @param index URL or path of the index, or of one file of tensors. Also a directory as
///   async_list_files() takes it, with an index, or with files of tensors and no index. Shards are of the commit that
///   the index has.
/// @param options Options of fetching. `deadline` applies to the index and all headers together.
/// @returns The shards with their tensors.
[[nodiscard]] asio::awaitable<checkpoint> async_read_checkpoint(asio::any_io_executor executor, rx_session& session,
                                                                std::string index, fetch_options options = {});

/// @brief Lays out the tensors of all shards in one block of memory.
///
/// The shards follow each other.
/// @returns The layout. Its offsets are in the order of the shards, and of the tensors in each shard.
[[nodiscard]] tensor_layout lay_out(checkpoint const& of);

/// @brief Receives all tensors into their places in the block.
///
/// The operation uses `options.flows` flows of the session, as one file does. A shard takes one for each chunk, at most
/// all of them. So small shards are fetched at a time, and large ones one after the other. It receives headers again,
/// so it can compare the checksum that a server announces for a file.
///
/// @param executor Executor of the connections, as for object.
/// @param session Session of the flows, as for object.
/// @param of Checkpoint to fetch.
/// @param layout Layout of the checkpoint, from lay_out().
/// @param block Memory of at least `layout.size` bytes. On a GPU, completion has the same meaning as in
///   object::async_fetch().
/// @param options Options of fetching. `deadline` applies to all shards together.
/// @returns Counters of all shards together.
/// @throws system_error See Errors.
/// @throws std::invalid_argument If `options.mirrors` has URLs, if the layout does not belong to this checkpoint, or if
///   it is larger than the block.
///
/// @par Lifetime
/// The checkpoint must outlive the operation.
///
/// @par Per-operation cancellation
/// Terminal.
///
/// @par Errors
/// - The errors of object.
/// - errc::object_changed: the size or the ETag of a file has changed since its header was read.
[[nodiscard]] asio::awaitable<fetch_stats> async_fetch_checkpoint(asio::any_io_executor executor, rx_session& session,
                                                                  checkpoint const& of, tensor_layout layout,
                                                                  memory_span block, fetch_options options = {});

/// @brief Returns whether a URL or path names a checkpoint in several files.
///
/// False: it names one file of tensors.
///
/// The name decides. For a path the function also inspects the disk.
[[nodiscard]] bool is_checkpoint(std::string_view place);

}  // namespace gpurx::ingest
