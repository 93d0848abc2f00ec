// SPDX-License-Identifier: Apache-2.0
//
// What tests of checkpoints have in common: files of tensors and indices, and reading them.
#pragma once

#include <fmt/format.h>

#include <gpurx/ingest/checkpoint.hpp>
#include <string>
#include <utility>
#include <vector>

#include "file_bed.hpp"

namespace gpurx::test {

// Tensors of four bytes each.
inline std::string shard_of(std::vector<std::string> const& names)
{
    std::string header = "{";
    std::string bytes;
    for (auto const& name : names) {
        header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[4],"data_offsets":[{},{}]}})",
                              header.size() > 1 ? "," : "", name, bytes.size(), bytes.size() + 4);
        bytes += fmt::format("{:4.4}", name);
    }
    header += "}";
    std::string text;
    for (int shift = 0; shift < 64; shift += 8)
        text += static_cast<char>(header.size() >> shift & 0xff);
    return text + header + bytes;
}

inline std::string index_of(std::vector<std::pair<std::string, std::string>> const& tensors)
{
    std::string map;
    for (auto const& [tensor, file] : tensors)
        map += fmt::format(R"({}"{}":"{}")", map.empty() ? "" : ",", tensor, file);
    return R"({"metadata":{"total_size":8},"weight_map":{)" + map + "}}";
}

struct reading {
    ingest::checkpoint found;
    std::string error;
    error_code code;
};

template <class Read>
reading read(Read start)
{
    world in{transport::copy, {.max_flows = 5}};
    reading result;
    outcome ended;
    run(in, ended, [&]() -> asio::awaitable<void> { result.found = co_await start(in); });
    result.error = ended.error;
    result.code = ended.code;
    return result;
}

inline reading read_at(std::string const& where)
{
    return read([&](world& in) {
        return ingest::async_read_checkpoint(in.io->get_executor(), *in.session, where, options_for_tests());
    });
}

inline reading read_list(std::vector<std::string> const& urls)
{
    return read([&](world& in) {
        return ingest::async_read_shards(in.io->get_executor(), *in.session, urls, options_for_tests());
    });
}

}  // namespace gpurx::test
