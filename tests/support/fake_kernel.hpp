// SPDX-License-Identifier: Apache-2.0
//
// The kernel's side of devmem TCP, over ordinary sockets: what arrives at a socket is placed into "device memory" page
// by page and told in control messages, as recvmsg(MSG_SOCK_DEVMEM) would; epoll sees the real socket. It checks that
// its user keeps the rules, and misbehaves on request. While one exists it stands behind syscalls.hpp for the whole
// process; calls without MSG_SOCK_DEVMEM pass through to the real kernel, except for faults.
//
// Thread safety: safe.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "flow/devmem_uapi.hpp"

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

    // Memory that is bound to the NIC under this id. The first one takes what no route names.
    void bind(std::uint32_t dmabuf_id, std::span<std::byte> memory);
    // Before anything is received. Array tokens name pages, each of which one socket has; what is in a page that is out
    // already gets an xarray token, as everything does on a kernel without array tokens.
    void set_array_tokens(bool on);
    [[nodiscard]] bool has_array_tokens() const;

    // ---- how what arrives next is delivered ----

    enum class way { device, linear, plain };
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

    // The next `times` receive calls fail with this errno, before anything is taken.
    void fail_receive(int error, int times = 1);
    // The next release calls: find so many tokens back already, as if somebody else had been faster; or fail.
    void shorten_release(std::size_t tokens);
    void fail_release(int error);
    // One control message tells this many bytes more than were delivered.
    void lie_about_size(std::uint32_t bytes);
    // The next device piece lies beyond the end of its memory.
    void lie_about_offset();

    // ---- what it saw ----

    struct release {
        std::size_t entries = 0;
        std::size_t pages = 0;
    };
    [[nodiscard]] std::vector<release> releases() const;
    [[nodiscard]] std::size_t receive_calls() const;
    // Over all sockets.
    [[nodiscard]] std::size_t tokens_out() const;
    [[nodiscard]] std::size_t free_pages(std::uint32_t dmabuf_id) const;
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

  private:
    struct tcp_socket;
    struct memory {
        std::span<std::byte> bytes;
        std::vector<int> tokens_on;             // by page: tokens of both kinds that name it
        std::vector<tcp_socket const*> owners;  // by page: who has it by an array token
        std::set<std::size_t> free;
        std::size_t packing_page = 0;
        std::size_t packed = page_size;  // bytes of packing_page in use
        std::size_t next = 0;            // where the search for a scattered page begins

        [[nodiscard]] std::size_t pages_owned() const
        {
            return owners.size() - static_cast<std::size_t>(std::ranges::count(owners, nullptr));
        }
    };
    struct token_target {
        std::uint32_t dmabuf_id = 0;
        std::size_t page = 0;
    };
    struct tcp_socket {
        std::map<std::uint32_t, token_target> tokens;  // xarray
        std::vector<std::uint32_t> slots;              // memories that it gets array tokens of
    };
    struct delivery;
    class allocation_scope;

    void check_call(msghdr const& message, int flags);
    [[nodiscard]] route next_route() const;
    void consume_route(std::size_t bytes);
    ssize_t receive_devmem(int socket, tcp_socket& state, msghdr& message);
    ssize_t deliver_one(int socket, tcp_socket& state, route const& how, delivery& into);
    ssize_t deliver_device(int socket, tcp_socket& state, route const& how, delivery& into);
    std::byte* place_for(memory& where, std::size_t& size, std::size_t& page);
    [[nodiscard]] std::uint32_t hand_out(tcp_socket& state, std::uint32_t dmabuf_id, std::size_t page);
    [[nodiscard]] std::optional<std::uint32_t> slot_of(tcp_socket& state, std::uint32_t dmabuf_id) const;
    // Where an array token points; nothing: nowhere, or the socket has not got it.
    [[nodiscard]] std::optional<token_target> array_target(tcp_socket const& state, std::uint32_t token) const;
    // Takes the token back; false: the socket has not got it, and nothing is done.
    bool take_back(tcp_socket& state, std::uint32_t token);
    void take_all_back(tcp_socket& state);
    void put_page(token_target const& target);
    std::size_t release_tokens(tcp_socket& state, std::span<detail::uapi::dmabuf_token const> tokens);
    void violation(std::string text);

    mutable std::mutex mutex_;
    std::map<std::uint32_t, memory> memories_;
    std::uint32_t first_id_ = 0;
    std::map<std::uint64_t, tcp_socket> sockets_;  // by inode
    std::deque<route> routes_;
    std::size_t fragment_size_ = 4096;
    bool array_tokens_ = false;
    bool packing_ = false;
    bool ascending_ = false;
    bool noise_ = false;
    std::deque<int> receive_faults_;
    std::size_t release_short_ = 0;
    int release_fault_ = 0;
    std::uint32_t size_lie_ = 0;
    bool offset_lie_ = false;
    std::vector<release> releases_;
    std::size_t receive_calls_ = 0;
    std::vector<std::string> violations_;
    std::size_t (*allocation_counter_)() = nullptr;
    std::size_t allocations_ = 0;
};

}  // namespace gpurx::test
