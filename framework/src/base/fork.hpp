// SPDX-License-Identifier: Apache-2.0
//
// What fork() means for this library. A child has a copy of every object and shares what it stands for with its parent:
// connections, the NIC, its journal, an epoll. Of the parent's threads it has one. So in a child nothing is undone,
// sent, given back or waited for in the name of an object that was made before the fork: its descriptors are closed,
// and that is all. For a child that fork() makes; what a bare clone(2) makes knows of nothing here.
#pragma once

#include <atomic>
#include <concepts>
#include <memory>
#include <mutex>

#include "syscalls.hpp"

namespace gpurx::detail {

// Forks between the process that this began in and this one.
inline constinit std::atomic<unsigned> fork_generation{0};

// Remembers which process an object was made in.
class birthplace {
  public:
    birthplace() noexcept;

    // False in a child that was forked since. A load, no system call.
    [[nodiscard]] bool is_here() const noexcept
    {
        return generation_ == fork_generation.load(std::memory_order_relaxed);
    }

  private:
    unsigned generation_;
};

// A unique_ptr to what belongs to the process that made it: in a child the object is left as it is. To destroy it would
// join a thread, or destroy a lock that is held by one, which the child does not have; or undo what the parent needs.
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

// An owned descriptor that a child closes as soon as it is forked, and is empty there: for what must end with the
// process that opened it, as do a lock, and memory that stays bound to a NIC while some process has the socket open.
class unshared_fd {
  public:
    unshared_fd() noexcept = default;
    // `open` returns the descriptor; no fork comes between it and this object's knowing of it.
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
    [[nodiscard]] static std::mutex& all_mutex() noexcept;
    void link() noexcept;
    void unlink() noexcept;

    unique_fd fd_;
    // Of the list of all, guarded by all_mutex().
    unshared_fd* next_ = nullptr;
    unshared_fd** link_ = nullptr;  // what points here; null: in no list
};

}  // namespace gpurx::detail
