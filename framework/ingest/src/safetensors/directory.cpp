// SPDX-License-Identifier: Apache-2.0
#include "directory.hpp"

#include <filesystem>
#include <gpurx/ingest/error.hpp>
#include <utility>

#include "../file/io_threads.hpp"
#include "../file/location.hpp"
#include "shard_index.hpp"

namespace gpurx::ingest::detail {

namespace {

struct directory_content {
    bool is_directory = false;
    std::vector<std::string> files;
};

error_code look_into(std::string const& path, directory_content& found)
{
    std::error_code code;
    found.is_directory = std::filesystem::is_directory(path, code);
    if (!found.is_directory)
        return {};  // to open it tells what it is
    std::filesystem::directory_iterator each{path, code};
    for (; !code && each != std::filesystem::directory_iterator{}; each.increment(code))
        found.files.push_back(each->path().string());
    return {code.value(), boost::system::system_category()};
}

}  // namespace

boost::asio::awaitable<std::vector<std::string>> async_files_of(boost::asio::any_io_executor executor,
                                                                std::string place)
{
    error_code code;
    diagnostics why;
    auto const path = parse_path(place, code, why);
    if (code)
        throw system_error{code, why};
    directory_content found;
    code = co_await async_run(executor, [&] { return look_into(path, found); });
    if (!code && !found.is_directory)
        co_return std::vector<std::string>(1, place);
    why.operation = "read the shards of";
    if (code)
        throw system_error{code, why};
    co_return files_among(std::move(found.files), place);
}

}  // namespace gpurx::ingest::detail
