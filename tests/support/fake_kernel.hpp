// SPDX-License-Identifier: Apache-2.0
//
// The kernel's side of devmem TCP and of io_uring's zero-copy receive, over ordinary sockets: what arrives at a socket
// is placed into "device memory" page by page and told in control messages, as recvmsg(MSG_SOCK_DEVMEM) would, or in
// completions of a ring; epoll sees the real socket. It checks that its user keeps the rules, and misbehaves on
// request. While one exists it stands behind syscalls.hpp for the whole process; calls of recvmsg without
// MSG_SOCK_DEVMEM pass through to the real kernel, except for faults.
//
// Thread safety: safe.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/io_uring_uapi.hpp"
#include "fake_ring.hpp"
#include "flow/devmem_uapi.hpp"

namespace gpurx::detail {
class zcrx_queue;
}

namespace gpurx::test {

class fake_kernel {
  public:
    // As GPURX_TEST_PAGE_SIZE says: 4096 without it.
    static std::size_t const page_size;
    static constexpr std::byte poison{0xdd};  // what a page holds that nobody has on loan

    fake_kernel();
    fake_kernel(fake_kernel const&) = delete;
    fake_kernel& operator=(fake_kernel const&) = delete;
    // Checks the rules (Catch2, so on the test's thread): everything kept, and every token returned.
    ~fake_kernel();

    // Memory that is bound to the NIC under this id, or that a queue of io_uring is registered with, whose descriptor
    // the id stands for. The first one takes what no route names.
    void bind(std::uint32_t dmabuf_id, std::span<std::byte> memory);
    // Whose refill ring is read; a race detector sees that order through it.
    void watch(std::weak_ptr<detail::zcrx_queue> queue);
    // Before anything is received. Array tokens name pages, each of which one socket has; what is in a page that is out
    // already gets an xarray token, as everything does on a kernel without array tokens.
    void set_array_tokens(bool on);
    [[nodiscard]] bool has_array_tokens() const;

    // ---- how what arrives next is delivered ----

    // lost: in a segment that io_uring began, so that recvmsg refuses it, too.
    // urgent: a byte that recvmsg passes over, and that a ring never sees.
    enum class way { device, linear, plain, lost, urgent };
    struct route {
        way kind = way::device;
        std::size_t bytes = 0;
        std::uint32_t dmabuf_id = 0;
    };
    // The next bytes; afterwards everything goes to the first binding.
    void deliver(std::vector<route> routes);
    // Bytes of one fragment: packets of this size, each with a page of its own. At most page_size.
    void set_fragment_size(std::size_t bytes);
    // Fills a page with fragments before taking the next: several tokens of one page, adjacent in memory.
    void set_packing(bool on);
    // Hands out free pages in ascending order, so that fragments are adjacent; by default they come scattered.
    void set_ascending(bool on);
    // Other programs' control messages around ours, MSG_CTRUNC set.
    void set_noise(bool on);

    // ---- faults ----

    // The next `times` receive calls fail with this errno, before anything is taken. With io_uring EINTR, EAGAIN and
    // ENOMEM are of the call, and others of the request.
    void fail_receive(int error, int times = 1);
    // The next release calls: find so many tokens back already, as if somebody else had been faster; or fail, as
    // flushes of a refill ring then do.
    void shorten_release(std::size_t tokens);
    void fail_release(int error);
    // One control message tells this many bytes more than were delivered.
    void lie_about_size(std::uint32_t bytes);
    // The next device piece lies beyond the end of its memory.
    void lie_about_offset();
    // The next call of io_uring to set up a ring; to register or import a queue; to enter, after so many others.
    void fail_setup(int error);
    void fail_register(int error);
    void fail_enter(int error, int after);
    // The next cancellations find nothing, as the kernel is about to look at the socket again.
    void miss_cancellations(int times);
    // The end of the next request, or of its cancellation, is never told: the ring was full, and the kernel without
    // memory.
    void lose_end();
    void lose_cancellation();

    // ---- what it saw ----

    // The descriptor of the ring whose file has the refill ring of that queue; -1: there is none.
    [[nodiscard]] int ring_that_registered(unsigned queue) const;

    struct release {
        std::size_t entries = 0;
        std::size_t pages = 0;
    };
    [[nodiscard]] std::vector<release> releases() const;
    [[nodiscard]] std::size_t receive_calls() const;
    // Over all sockets; of io_uring fragments that did not return.
    [[nodiscard]] std::size_t tokens_out();
    [[nodiscard]] std::size_t free_pages(std::uint32_t dmabuf_id);
    // As the kernel does when the last descriptor of a socket closes: its tokens are gone and their pages overwritten.
    // Returns the sockets seen and not closed.
    std::size_t reap_closed();
    // What the fake itself has allocated on the calling thread, going by a counter of the test's.
    void set_allocation_counter(std::size_t (*counter)()) { allocation_counter_ = counter; }
    [[nodiscard]] std::size_t allocations() const { return allocations_; }
    // Rules broken so far; a test that breaks one on purpose takes them, so that the destructor finds none.
    [[nodiscard]] std::vector<std::string> take_violations();

    // ---- behind syscalls.hpp ----

    ssize_t recvmsg(int socket, msghdr* message, int flags);
    int setsockopt(int socket, int level, int name, void const* value, socklen_t size);
    int io_uring_setup(unsigned entries, io_uring_params& params);
    int io_uring_enter(int ring, unsigned to_submit, unsigned least, unsigned flags);
    int io_uring_register(int ring, unsigned opcode, void* argument);

  private:
    struct tcp_socket;
    // Who has a page by array tokens, and how many of them.
    struct page_owner {
        tcp_socket const* socket = nullptr;
        std::uint32_t tokens = 0;
    };
    struct memory {
        std::span<std::byte> bytes;
        std::vector<int> tokens_on;      // by page: tokens of both kinds that name it
        std::vector<page_owner> owners;  // by page
        std::set<std::size_t> free;
        std::size_t packing_page = 0;
        std::size_t packed = page_size;  // bytes of packing_page in use
        std::size_t next = 0;            // where the search for a scattered page begins
        bool io_uring = false;           // a queue of it has the pages

        [[nodiscard]] std::size_t array_tokens_out() const
        {
            return std::transform_reduce(owners.begin(), owners.end(), std::size_t{0}, std::plus{},
                                         [](page_owner const& of) { return std::size_t{of.tokens}; });
        }
    };
    struct token_target {
        std::uint32_t dmabuf_id = 0;
        std::size_t page = 0;
    };
    struct tcp_socket {
        std::map<std::uint32_t, token_target> tokens;  // xarray
        std::vector<std::uint32_t> slots;              // memories that it gets array tokens of
        bool io_uring = false;                         // received by a ring
    };
    // A queue that was registered.
    struct zcrx {
        std::uint32_t interface;
        std::uint32_t number;
        std::uint32_t dmabuf_id;
        std::uint32_t entries;  // of its refill ring
        std::byte* region;
        std::vector<std::uint64_t> rings;  // that have it
        std::unique_ptr<shared_file> exported{};
    };
    struct delivery;
    // Books what is allocated while it lives.
    class allocation_scope {
      public:
        explicit allocation_scope(fake_kernel& of) : of_{of}, before_{count()} {}
        allocation_scope(allocation_scope const&) = delete;
        allocation_scope& operator=(allocation_scope const&) = delete;
        ~allocation_scope() { of_.allocations_ += count() - before_; }

      private:
        [[nodiscard]] std::size_t count() const
        {
            return of_.allocation_counter_ == nullptr ? 0 : of_.allocation_counter_();
        }

        fake_kernel& of_;
        std::size_t before_;
    };

    void check_call(msghdr const& message, int flags, bool io_uring);
    [[nodiscard]] route next_route() const;
    void consume_route(std::size_t bytes);
    ssize_t receive_devmem(int socket, tcp_socket& state, msghdr& message);
    ssize_t deliver_one(int socket, tcp_socket& state, route const& how, delivery& into);
    ssize_t deliver_device(int socket, tcp_socket& state, route const& how, delivery& into);
    std::byte* place_for(memory& where, std::size_t& size, std::size_t& page);
    // After `size` bytes were written at `to` in the page; returns their offset.
    std::uint64_t take_page(memory& where, std::size_t page, std::byte const* to, std::size_t size);
    [[nodiscard]] std::uint32_t hand_out(tcp_socket& state, std::uint32_t dmabuf_id, std::size_t page);
    [[nodiscard]] std::optional<std::uint32_t> slot_of(tcp_socket& state, std::uint32_t dmabuf_id) const;
    // Where an array token points; nothing: nowhere, or the socket has not got it.
    [[nodiscard]] std::optional<token_target> array_target(tcp_socket const& state, std::uint32_t token) const;
    // Takes the token back; false: the socket has not got it, and nothing is done.
    bool take_back(tcp_socket& state, std::uint32_t token);
    void take_all_back(tcp_socket& state);
    void put_page(token_target const& target, bool overwrite = true);
    std::size_t release_tokens(tcp_socket& state, std::span<detail::uapi::dmabuf_token const> tokens);
    void violation(std::string text);

    [[nodiscard]] fake_ring* find_ring(int fd);
    int answer_query(detail::uapi::zcrx::query_header& header);
    int register_queue(fake_ring& ring, detail::uapi::zcrx::ifq_reg& request);
    int import_queue(fake_ring& ring, detail::uapi::zcrx::ifq_reg& request);
    int control(fake_ring& ring, detail::uapi::zcrx::ctrl& request);
    [[nodiscard]] bool is_alive(zcrx const& queue) const;
    // Takes what is in the refill ring, and overwrites its pages. Only a receive knows that their memory is there.
    void refill(zcrx& queue, bool memory_is_there = true);
    void refill_all();
    [[nodiscard]] std::size_t pages_of_io_uring() const;
    void check_end_of_queues();
    void submit(fake_ring& ring, io_uring_sqe const& entry);
    void cancel(fake_ring& ring, io_uring_sqe const& entry);
    void look(fake_ring& ring);
    [[nodiscard]] std::optional<int> receive_pages(fake_ring& ring, fake_ring::request& request);
    [[nodiscard]] std::size_t receive_page(fake_ring& ring, fake_ring::request const& request, route const& how);

    mutable std::mutex mutex_;
    std::map<std::uint32_t, memory> memories_;
    std::uint32_t first_id_ = 0;
    std::map<std::uint64_t, tcp_socket> sockets_;  // by inode
    std::map<std::uint64_t, std::unique_ptr<fake_ring>> rings_;
    std::map<std::uint64_t, zcrx> queues_;  // by the ring that registered
    std::vector<std::weak_ptr<detail::zcrx_queue>> watched_;
    std::deque<route> routes_;
    std::size_t fragment_size_ = 4096;
    bool array_tokens_ = false;
    bool packing_ = false;
    bool ascending_ = false;
    bool noise_ = false;
    std::deque<int> receive_faults_;
    std::size_t release_short_ = 0;
    int release_fault_ = 0;
    int setup_fault_ = 0;
    int register_fault_ = 0;
    int enter_fault_ = 0;
    int enter_fault_in_ = 0;
    int cancel_misses_ = 0;
    bool loses_end_ = false;
    bool loses_cancellation_ = false;
    std::uint32_t size_lie_ = 0;
    bool offset_lie_ = false;
    std::vector<release> releases_;
    std::size_t receive_calls_ = 0;
    std::vector<std::string> violations_;
    std::size_t (*allocation_counter_)() = nullptr;
    std::size_t allocations_ = 0;
};

}  // namespace gpurx::test
