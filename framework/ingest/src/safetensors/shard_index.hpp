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

// Returns whether the text is a path, or a location of S3 or of the hub. "?", "#" and "%" then belong to its name.
[[nodiscard]] bool is_literal(std::string_view where);

// `where` is the URL or path of the index. The query of a URL belongs to the index alone, unless it is a SAS token of
// Azure for a container, a directory or an account. Errors: errc::bad_safetensors.
[[nodiscard]] shard_index parse_index(std::string_view text, std::string_view where);

// Selects from all files of a directory, or below a prefix: the index if there is one, otherwise the files of tensors,
// in the order of their names. Of a model in two forms, model* and consolidated*, it takes the first. Errors:
// errc::bad_safetensors if there are none, or several indices.
[[nodiscard]] std::vector<std::string> files_among(std::vector<std::string> names, std::string_view where);

// Errors: errc::bad_safetensors if a tensor is in two shards.
void check_once(checkpoint const& of);
// Errors: errc::bad_safetensors if a tensor is not in the file that the index states. Tensors that the index lacks are
// part of the checkpoint, too.
void check_index(checkpoint const& of, shard_index const& index, std::string_view where);

// Checks the options: mirrors are for a single file. Errors: std::invalid_argument.
void check_no_mirrors(fetch_options const& options);

}  // namespace gpurx::ingest::detail
