// SPDX-License-Identifier: Apache-2.0
//
// The index of a checkpoint in several files, and the check that it fits them. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/ingest/checkpoint.hpp>

namespace gpurx::ingest::detail {

struct shard_index {
    std::vector<std::string> urls;              // in the order of the index
    std::map<std::string, std::size_t> shards;  // of each tensor
};

// Returns whether the text is a path, or the location of an S3 object. "?", "#" and "%" then belong to its name.
[[nodiscard]] bool is_literal(std::string_view where);

// `where` is the URL or path of the index. Errors: errc::bad_safetensors.
[[nodiscard]] shard_index parse_index(std::string_view text, std::string_view where);

// Selects from all files of a directory, or below a prefix: the index if there is one, otherwise the files of tensors,
// in the order of their names. Errors: errc::bad_safetensors if there are none, or several indices.
[[nodiscard]] std::vector<std::string> files_among(std::vector<std::string> names, std::string_view where);

// Errors: errc::bad_safetensors if a tensor is in two shards.
void check_once(checkpoint const& of);
// Errors: errc::bad_safetensors if a tensor is in another file than the index states, or missing in the index.
void check_index(checkpoint const& of, shard_index const& index, std::string_view where);

// Checks the options: mirrors are for a single file. Errors: std::invalid_argument.
void check_no_mirrors(fetch_options const& options);

}  // namespace gpurx::ingest::detail
