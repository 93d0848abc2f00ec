// SPDX-License-Identifier: Apache-2.0
#include "fork.hpp"

#include <pthread.h>

#include <utility>

namespace gpurx::detail {

namespace {

// Neither is destroyed: sessions may die in static destructors.
constinit std::mutex mutex;
constinit unshared_fd* first = nullptr;

}  // namespace

struct fork_handlers {
    static void prepare() noexcept { mutex.lock(); }
    static void in_parent() noexcept { mutex.unlock(); }
    static void in_child() noexcept
    {
        fork_generation.fetch_add(1, std::memory_order_relaxed);
        for (auto* one = first; one != nullptr; one = one->next_)
            one->fd_.reset();
        mutex.unlock();
    }
    static void install() noexcept
    {
        [[maybe_unused]] static int const once = ::pthread_atfork(prepare, in_parent, in_child);
    }
};

birthplace::birthplace() noexcept : generation_{fork_generation.load(std::memory_order_relaxed)}
{
    fork_handlers::install();
}

std::mutex& unshared_fd::all_mutex() noexcept
{
    fork_handlers::install();
    return mutex;
}

void unshared_fd::link() noexcept
{
    if (!fd_)
        return;
    link_ = &first;
    next_ = std::exchange(*link_, this);
    if (next_ != nullptr)
        next_->link_ = &next_;
}

void unshared_fd::unlink() noexcept
{
    if (link_ == nullptr)
        return;
    *link_ = next_;
    if (next_ != nullptr)
        next_->link_ = link_;
    link_ = nullptr;
}

unshared_fd::unshared_fd(unshared_fd&& other) noexcept
{
    *this = std::move(other);
}

unshared_fd& unshared_fd::operator=(unshared_fd&& other) noexcept
{
    if (this != &other) {
        std::scoped_lock const lock{all_mutex()};
        unlink();
        other.unlink();
        fd_ = std::move(other.fd_);
        link();
    }
    return *this;
}

unshared_fd::~unshared_fd()
{
    // Closed under the lock: a fork between the two would leave a child with the descriptor.
    std::scoped_lock const lock{all_mutex()};
    unlink();
    fd_.reset();
}

}  // namespace gpurx::detail
