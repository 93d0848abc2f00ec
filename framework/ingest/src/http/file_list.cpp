// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <filesystem>
#include <gpurx/ingest/object.hpp>
#include <string>
#include <utility>

#include "../hub/description.hpp"
#include "../net/io_threads.hpp"
#include "../net/url.hpp"
#include "../s3/location.hpp"

namespace gpurx::ingest {

namespace {

using namespace detail;
namespace filesystem = std::filesystem;

std::string with_slash(std::string_view text)
{
    return std::string{text} + (text.ends_with('/') ? "" : "/");
}

// Takes a name below the directory, if it is one.
void add(file_list& to, listed_file file, bool recursive)
{
    auto const& name = file.name;
    if (is_name_below(name) && !name.ends_with('/') && (recursive || name.find('/') == std::string::npos))
        to.files.push_back(std::move(file));
}

// ---- on this machine ----

void add(file_list& to, filesystem::directory_entry const& each, filesystem::path const& root)
{
    std::error_code code;
    if (each.is_directory(code))
        return;
    auto const size = each.file_size(code);
    to.files.push_back({each.path().lexically_relative(root).string(), code ? std::nullopt : std::optional{size}, {}});
}

template <class Iterator>
std::error_code list_with(filesystem::path const& root, file_list& to)
{
    std::error_code code;
    for (Iterator each{root, code}; !code && each != Iterator{}; each.increment(code))
        add(to, *each, root);
    return code;
}

asio::awaitable<file_list> list_local(std::string directory, bool recursive)
{
    error_code code;
    diagnostics why;
    auto const path = parse_path(directory, code, why);
    if (code)
        throw system_error{code, why};
    file_list found{.directory = with_slash(path), .files = {}};
    auto const list =
        recursive ? &list_with<filesystem::recursive_directory_iterator> : &list_with<filesystem::directory_iterator>;
    code = co_await async_run(co_await asio::this_coro::executor, [&] {
        auto const failure = list(path, found);
        return error_code{failure.value(), boost::system::system_category()};
    });
    why.operation = "list";
    if (code)
        throw system_error{code, why};
    co_return found;
}

// ---- on servers ----

asio::awaitable<file_list> list_bucket(std::string directory, bool recursive, fetch_options options)
{
    file_list found{.directory = with_slash(std::move(directory)), .files = {}};
    auto const start = recursive ? &async_list_s3 : &async_list_s3_directory;
    auto const all = co_await start(found.directory, std::move(options));
    for (auto const& each : all)
        add(found, {each.url.substr(found.directory.size()), each.size, each.etag}, recursive);
    co_return found;
}

asio::awaitable<file_list> list_model(std::string directory, bool recursive, fetch_options options)
{
    error_code code;
    diagnostics why;
    directory = with_slash(std::move(directory));
    auto const which = hub::parse_location(directory, code, why);
    if (code)
        throw system_error{code, why};
    auto const described = co_await hub::async_describe(which, std::move(options));
    file_list found{.directory = url_at_commit(directory, described.commit), .files = {}};
    for (std::string_view each : described.files)
        if (each.starts_with(which.file))
            add(found, {std::string{each.substr(which.file.size())}, std::nullopt, {}}, recursive);
    co_return found;
}

asio::awaitable<file_list> list(std::string directory, bool recursive, fetch_options options)
{
    if (is_local(directory))
        return list_local(std::move(directory), recursive);
    if (s3::is_location(directory))
        return list_bucket(std::move(directory), recursive, std::move(options));
    if (hub::is_location(directory))
        return list_model(std::move(directory), recursive, std::move(options));
    throw system_error{
        errc::bad_url,
        {.operation = "list",
         .object = redacted_url(directory),
         .kernel_message = {},
         .advice = "servers of http have no list; name a file, or a directory on disk, s3://, gs://, az:// or hf://"}};
}

}  // namespace

asio::awaitable<file_list> async_list_files(std::string directory, bool recursive, fetch_options options)
{
    auto found = co_await list(std::move(directory), recursive, std::move(options));
    std::ranges::sort(found.files, {}, &listed_file::name);
    co_return found;
}

}  // namespace gpurx::ingest
