// SPDX-License-Identifier: Apache-2.0
//
// One RX queue that delivers into a dmabuf through io_uring zero-copy receive (zcrx): its registration, a ring for each
// thread that receives, and the refill ring that pages return by. A disabled ring registers and flushes, so any thread
// may; the rings of threads import the queue.
//
// The queue ends with its last ring and exported descriptor. The kernel overwrites pages that are out then, so it must
// outlive every loan.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fork.hpp"
#include "io_ring.hpp"
#include "memory_part.hpp"
#include "thread.hpp"

namespace gpurx::detail {

class zcrx_queue final : public std::enable_shared_from_this<zcrx_queue> {
  public:
    // Of a thread's ring. One that is full is no error: what is left is received by the next call.
    static constexpr unsigned completions = 1024;

    struct config {
        std::string interface;  // for messages
        unsigned ifindex = 0;
        unsigned queue = 0;
        memory_part memory;           // its descriptor is used inside open() only
        std::uint32_t page_size = 0;  // 0: the kernel's
    };

    // A ring of one thread, which has imported the queue.
    struct thread_ring {
        // `disabled`: of no thread yet.
        thread_ring(zcrx_queue& queue, bool disabled);
        thread_ring(io_ring&& from, std::uint32_t id) : ring{std::move(from)}, queue_id{id} {}

        io_ring ring;
        std::uint32_t queue_id;  // on this ring
    };

    // What another process has to know of a queue that rings of it have imported, as bytes of a file.
    struct handover {
        std::uint32_t size = 0;      // of this: another version has another
        std::uint32_t queue_id = 0;  // on each of the rings
        io_uring_params ring = {};   // of each
        std::uint64_t area_token = 0;
        std::uint32_t page_shift = 0;
        std::uint32_t entries = 0;
        std::uint64_t region_offset = 0;  // of the refill ring, in each ring's file
        std::uint64_t region_size = 0;
        std::uint32_t head = 0;  // offsets in the region, as the two after it
        std::uint32_t tail = 0;
        std::uint32_t rqes = 0;
        std::uint32_t reserved = 0;
        std::uint64_t memory = 0;  // bytes
    };

    // Registers the queue. Throws system_error.
    [[nodiscard]] static std::shared_ptr<zcrx_queue> open(config const& options);
    // A disabled ring, to hand on.
    [[nodiscard]] static io_ring make_ring();
    // Imports into rings of make_ring(). The process that has them returns the pages from now on: this object only
    // keeps the queue. Throws system_error.
    [[nodiscard]] handover hand_on(std::span<io_ring> rings);
    // The queue in the process that has the rings: one for each thread, beside the first. Throws system_error.
    [[nodiscard]] static std::shared_ptr<zcrx_queue> adopt(handover const& of, std::vector<unshared_fd> rings);
    zcrx_queue(zcrx_queue const&) = delete;
    zcrx_queue& operator=(zcrx_queue const&) = delete;
    ~zcrx_queue();

    // Makes rings for threads without CAP_NET_ADMIN, which an import needs. Throws system_error.
    void add_spare_rings(unsigned count);
    // The calling thread's. At first use it takes a spare one for good, or makes one. Throws system_error.
    [[nodiscard]] thread_ring& ring_of_this_thread();
    // Ends what the kernel still does for it. The next receive makes another.
    void close_ring_of_this_thread() noexcept;

    struct given {
        unsigned calls = 0;   // of the system: one whenever the refill ring was full
        bool failed = false;  // a call did, and the pages that found no room go with the next
    };
    // Returns each page as often as completions named it. Never waits for another thread for longer than a call of this
    // takes.
    given give_back(std::span<std::uint32_t const> pages) noexcept;
    // Makes the kernel take what waits in the refill ring, whose pages it counts as out of the pool until then.
    void flush() noexcept;
    // Completions that wait in the refill ring.
    [[nodiscard]] std::uint32_t waiting() const noexcept;
    [[nodiscard]] int page_shift() const noexcept { return page_shift_; }
    // Where its bytes are in the session's memory.
    [[nodiscard]] std::size_t offset() const noexcept { return offset_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

  private:
    class own_rings;
    [[nodiscard]] static own_rings& rings_of_this_thread() noexcept;
    explicit zcrx_queue(config const& options);
    zcrx_queue(handover const& of, std::vector<unshared_fd> rings);
    void map_refill_ring(handover const& layout);
    void register_queue(config const& options);
    void export_queue(std::string const& object);
    // Returns the queue's number on the ring.
    [[nodiscard]] std::uint32_t import_into(io_ring& ring) const;
    // Returns the pages that find no room.
    [[nodiscard]] std::span<std::uint32_t const> place(std::span<std::uint32_t const> pages) noexcept;
    [[gnu::noinline]] void leave_over(std::span<std::uint32_t const> pages) noexcept;
    // Returns the place that the ring is full at now.
    [[nodiscard, gnu::noinline]] std::uint32_t make_room(std::uint32_t tail) noexcept;
    void flush_up_to(std::uint32_t tail) noexcept;
    [[nodiscard]] std::unique_ptr<thread_ring> new_ring();
    void close_ring(thread_ring* ring) noexcept;

    birthplace born_;
    io_ring holder_;
    std::uint32_t id_ = 0;  // on the holder
    std::uint64_t area_token_ = 0;
    int page_shift_ = 0;
    std::size_t offset_;
    std::size_t size_;
    std::uint32_t entries_ = 0;
    handover layout_;
    unshared_mapping region_;
    unshared_fd exported_;

    brief_lock refill_lock_;  // guards what follows
    std::uint32_t tail_ = 0;
    std::uint32_t full_ = 0;  // the tail that finds no room, as far as known
    std::uint32_t* shared_head_ = nullptr;
    std::uint32_t* shared_tail_ = nullptr;
    uapi::zcrx::rqe* refill_ = nullptr;
    unsigned flushes_ = 0;
    std::vector<std::uint32_t> left_over_;  // after a flush that failed

    std::mutex rings_mutex_;
    std::vector<std::unique_ptr<thread_ring>> rings_;  // of all threads
    std::vector<std::unique_ptr<thread_ring>> spare_;  // of no thread yet
};

}  // namespace gpurx::detail
