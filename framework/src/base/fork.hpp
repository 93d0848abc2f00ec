// SPDX-License-Identifier: Apache-2.0
//
// Support for fork(). A child has a copy of every object, and shares the object's resources with its parent:
// connections, the NIC, its journal, an epoll. It has only one of the parent's threads. So for an object made before
// the fork, a child undoes, sends, returns and awaits nothing: it only closes the object's descriptors. This holds for
// children of fork(), not for those of a bare clone(2).
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "syscalls.hpp"

namespace gpurx::detail {

// Number of forks between the first process and this one.
inline constinit std::atomic<unsigned> fork_generation{0};

// Records the process that made an object.
class birthplace {
  public:
    birthplace() noexcept;

    // Returns false in a child that was forked later. One load, no system call.
    [[nodiscard]] bool is_here() const noexcept
    {
        return generation_ == fork_generation.load(std::memory_order_relaxed);
    }

  private:
    unsigned generation_;
};

// Deleter of objects that belong to the process that made them: in a child it leaves the object as it is. Its
// destruction could join a thread that the child does not have, destroy a lock held by such a thread, or undo changes
// that the parent needs.
class delete_where_born {
  public:
    template <class T>
    void operator()(T* object) const noexcept
    {
        if (born_.is_here())
            delete object;
    }

  private:
    birthplace born_;
};
template <class T>
using process_ptr = std::unique_ptr<T, delete_where_born>;

// An owned descriptor that a child closes as soon as it is forked; there the object is empty. Use it for resources that
// must end with the process that opened them. Examples are a lock, and memory that stays bound to a NIC while a process
// has the socket open.
class unshared_fd {
  public:
    unshared_fd() noexcept = default;
    // `open` returns the descriptor. No fork can happen between the call and its registration in the list.
    template <std::invocable Open>
    explicit unshared_fd(Open open)
    {
        std::scoped_lock const lock{all_mutex()};
        fd_.reset(open());
        link();
    }
    unshared_fd(unshared_fd&& other) noexcept;
    unshared_fd& operator=(unshared_fd&& other) noexcept;
    ~unshared_fd();

    [[nodiscard]] int get() const noexcept { return fd_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(fd_); }

  private:
    friend struct fork_handlers;
    friend class unshared_mapping;
    [[nodiscard]] static std::mutex& all_mutex() noexcept;
    void link() noexcept;
    void unlink() noexcept;

    unique_fd fd_;
    // Links of the list of all objects, guarded by all_mutex().
    unshared_fd* next_ = nullptr;
    unshared_fd** link_ = nullptr;  // the pointer to this object; null: in no list
};

// Memory that a descriptor maps, and that a child does not have: as above, and a mapping keeps a ring of io_uring
// alive.
class unshared_mapping {
  public:
    unshared_mapping() noexcept = default;
    // Throws system_error; `object` names what is mapped.
    unshared_mapping(int fd, std::uint64_t offset, std::size_t size, char const* object);
    unshared_mapping(unshared_mapping&& other) noexcept;
    unshared_mapping& operator=(unshared_mapping&& other) noexcept;
    ~unshared_mapping();

    [[nodiscard]] std::byte* at(std::size_t offset) const noexcept { return start_ + offset; }
    template <class T>
    [[nodiscard]] T* as(std::size_t offset) const noexcept
    {
        return reinterpret_cast<T*>(start_ + offset);
    }

  private:
    birthplace born_;
    std::byte* start_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace gpurx::detail
