// SPDX-License-Identifier: Apache-2.0
//
// The kernel's side of one io_uring: its memory, what its owner submitted, and the completions posted to it. A file in
// memory stands for the ring, so its owner maps and closes it as it does a ring.
#pragma once

#include <linux/io_uring.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/io_uring_uapi.hpp"

namespace gpurx::test {

// Memory of a file, mapped here too.
class shared_file {
  public:
    explicit shared_file(std::size_t size);
    shared_file(shared_file const&) = delete;
    shared_file& operator=(shared_file const&) = delete;
    ~shared_file();

    // The descriptor for the owner, once.
    [[nodiscard]] int hand_out() noexcept;
    [[nodiscard]] std::uint64_t inode() const noexcept { return inode_; }
    // Whether a descriptor of this process names it.
    [[nodiscard]] bool is_open() const;
    [[nodiscard]] std::byte* at(std::size_t offset) const noexcept { return start_ + offset; }

  private:
    std::size_t size_;
    int fd_;
    std::uint64_t device_;
    std::uint64_t inode_;
    std::byte* start_;
};

class fake_ring {
  public:
    // A receive that was submitted and has not ended.
    struct request {
        std::uint64_t user_data;
        int socket;
        std::uint32_t queue;
        std::size_t left;   // bytes; 0: to the end of the stream
        bool looks = true;  // at the socket, with the next enter()
    };

    static constexpr std::size_t region_offset = 0x18000000;  // of a refill ring
    static constexpr std::size_t region_size = 1u << 20;

    // Fills in the sizes and offsets of `params`.
    fake_ring(unsigned entries, io_uring_params& params);

    [[nodiscard]] shared_file& file() noexcept { return file_; }
    [[nodiscard]] std::uint64_t inode() const noexcept { return file_.inode(); }
    [[nodiscard]] bool is_disabled() const noexcept { return disabled_; }
    [[nodiscard]] bool is_of_this_thread() const noexcept;
    // Makes it that of this thread, once.
    void enable() noexcept;

    // The next entry that is submitted; nothing: the owner promised more than there are.
    [[nodiscard]] std::optional<io_uring_sqe> next();
    // Space for a completion beside those that wait.
    [[nodiscard]] bool has_room() const noexcept;
    // Drops a completion for good, as a kernel without memory does.
    void lose();
    // Posts it, or keeps it until there is space.
    void post(detail::uapi::zcrx::cqe const& completion);
    // Posts what was kept.
    void flush();
    [[nodiscard]] std::size_t completions() const noexcept;

    int descriptor = -1;  // its owner's
    std::vector<request> requests;
    std::map<std::uint32_t, std::uint64_t> queues;  // by number on this ring: the inode of the one that registered

  private:
    std::uint32_t& word(std::uint32_t offset) const noexcept;

    bool disabled_;
    pid_t submitter_;
    io_uring_params params_;
    shared_file file_;
    std::deque<detail::uapi::zcrx::cqe> kept_;
};

}  // namespace gpurx::test
