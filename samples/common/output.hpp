// SPDX-License-Identifier: Apache-2.0
//
// Output of fetched bytes: a file, a pipe or standard output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

// A file has its name only once it is whole: until commit() the bytes are in a file without a name, next to it, and a
// file that was there stays as it is, whatever happens. (Where the file system has no files without a name, it has one
// that begins with ".gpurx-", which a killed program leaves behind.) A mount point cannot be replaced: commit() copies
// the bytes into it. "-", pipes and devices are written to directly.
//
// Errors: gpurx::system_error, which names the path. Thread safety: write() at several offsets of a file at a time.
class output {
  public:
    // Opens it, or finds out that it cannot be written. To open a pipe waits for its reader. "-": standard output.
    explicit output(std::filesystem::path path);
    output(output const&) = delete;
    output& operator=(output const&) = delete;
    ~output();

    // Bytes can be written in any order, and read again; otherwise in their order alone.
    [[nodiscard]] bool is_file() const noexcept { return is_file_; }
    // So many bytes are to come. A disk without room for them is an error now.
    void reserve(std::uint64_t size);
    void write(std::uint64_t offset, std::span<std::byte const> bytes);
    // Returns the written bytes. Precondition: is_file().
    void read(std::uint64_t offset, std::span<std::byte> bytes) const;
    // All has been written: the disk has it, and the file its name.
    void commit();

  private:
    // The mode of the file that is there; 0: none is.
    void open_file(unsigned old_mode);
    void open_named(std::filesystem::path const& directory);
    void give_name();
    void overwrite();
    [[noreturn]] void fail(char const* operation, int reason, std::string advice = {}) const;

    std::filesystem::path path_;       // as it was asked for
    std::filesystem::path target_;     // behind symbolic links
    std::filesystem::path temporary_;  // empty: the file has no name
    int file_ = -1;
    bool is_file_ = false;
    std::uint64_t written_ = 0;  // in order
};
