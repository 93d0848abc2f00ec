// SPDX-License-Identifier: Apache-2.0
//
// The index of a checkpoint in several files, and whether it fits them. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/ingest/checkpoint.hpp>

namespace gpurx::ingest::detail {

struct shard_index {
    std::vector<std::string> urls;              // as the index names them first
    std::map<std::string, std::size_t> shards;  // of each tensor
};

// `where` is the URL or path of the index. Errors: errc::bad_safetensors.
[[nodiscard]] shard_index parse_index(std::string_view text, std::string_view where);

// Errors: errc::bad_safetensors if a tensor is in two shards.
void check_once(checkpoint const& of);
// Errors: errc::bad_safetensors if a tensor is not where the index says, or not in it.
void check_index(checkpoint const& of, shard_index const& index, std::string_view where);

}  // namespace gpurx::ingest::detail
