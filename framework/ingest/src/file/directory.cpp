// SPDX-License-Identifier: Apache-2.0
#include "directory.hpp"

#include <algorithm>
#include <filesystem>
#include <gpurx/ingest/error.hpp>
#include <utility>

#include "../http/shown.hpp"
#include "io_threads.hpp"
#include "location.hpp"

namespace gpurx::ingest::detail {

namespace {

constexpr std::string_view index_suffix = ".safetensors.index.json";
constexpr std::string_view tensors_suffix = ".safetensors";

struct directory_content {
    bool is_directory = false;
    std::vector<std::string> indices;
    std::vector<std::string> files;
};

error_code look_into(std::string const& path, directory_content& found)
{
    std::error_code code;
    found.is_directory = std::filesystem::is_directory(path, code);
    if (!found.is_directory)
        return {};  // to open it tells what it is
    std::filesystem::directory_iterator each{path, code};
    for (; !code && each != std::filesystem::directory_iterator{}; each.increment(code)) {
        auto name = each->path().string();
        if (name.ends_with(index_suffix))
            found.indices.push_back(std::move(name));
        else if (name.ends_with(tensors_suffix))
            found.files.push_back(std::move(name));
    }
    std::ranges::sort(found.files);
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
    if (found.indices.size() > 1)
        why.advice = "the directory has several indices; name one of them";
    else if (found.indices.empty() && found.files.empty())
        why.advice = "the directory has no .safetensors file";
    if (!why.advice.empty())
        throw system_error{errc::bad_safetensors, why};
    co_return found.indices.empty() ? found.files : found.indices;
}

}  // namespace gpurx::ingest::detail
