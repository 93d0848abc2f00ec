// SPDX-License-Identifier: Apache-2.0
//
// What tests of files have in common: a directory that goes when the test ends, and what came of loading one.
#pragma once

#include <fcntl.h>
#include <stdlib.h>  // mkdtemp
#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <gpurx/ingest/object.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include "http_bed.hpp"

namespace gpurx::test {

class directory {
  public:
    // Below `parent`; of the file system that is wanted, say.
    explicit directory(std::filesystem::path const& parent = std::filesystem::temp_directory_path())
    {
        auto name = (parent / "gpurx-test-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr)
            throw std::runtime_error{"cannot make " + name};
        path_ = name;
    }
    directory(directory const&) = delete;
    directory& operator=(directory const&) = delete;
    ~directory()
    {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    [[nodiscard]] std::string operator/(std::string_view name) const { return (path_ / name).string(); }

    std::string write(std::string_view name, std::string_view bytes) const
    {
        auto path = *this / name;
        std::ofstream{path, std::ios::binary} << bytes;
        return path;
    }

    // Its bytes are on the disk then, and no longer in the page cache; where the file system is in memory they stay.
    static void evict(std::string const& path)
    {
        auto const file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
        if (file < 0 || ::fsync(file) != 0 || ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) != 0)
            throw std::runtime_error{"cannot evict " + path};
        ::close(file);
    }

  private:
    std::filesystem::path path_;
};

// All of it behind the front, and the front.
inline outcome load(world& in, std::string const& url, std::size_t front = 0,
                    ingest::fetch_options const& options = options_for_tests())
{
    outcome result;
    ingest::object object{in.io->get_executor(), *in.session, url, options};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await object.async_open();
        result.bytes.assign(object.size(), '\xee');
        co_await object.async_read_front(host_span{reinterpret_cast<std::byte*>(result.bytes.data()), front});
        ingest::placement const all{front, span_of(result.bytes).subspan(front, object.size() - front)};
        co_await object.async_fetch({&all, 1});
    });
    result.stats = object.stats();
    result.crc = object.crc32c();
    return result;
}

}  // namespace gpurx::test
