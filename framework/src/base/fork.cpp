// SPDX-License-Identifier: Apache-2.0
#include "fork.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "failure.hpp"

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

unshared_mapping::unshared_mapping(int fd, std::uint64_t offset, std::size_t size, char const* object) : size_{size}
{
    // A child that is forked between the two calls would have it.
    std::scoped_lock const lock{unshared_fd::all_mutex()};
    auto* const mapped =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(offset));
    if (mapped == MAP_FAILED)
        fail(errno, "map", object);
    start_ = static_cast<std::byte*>(mapped);
    if (::madvise(start_, size_, MADV_DONTFORK) != 0) {
        auto const error = errno;
        ::munmap(start_, size_);
        fail(error, "keep out of children", object);
    }
}

unshared_mapping::unshared_mapping(unshared_mapping&& other) noexcept
    : born_{other.born_}, start_{std::exchange(other.start_, nullptr)}, size_{other.size_}
{}

unshared_mapping& unshared_mapping::operator=(unshared_mapping&& other) noexcept
{
    std::swap(born_, other.born_);
    std::swap(start_, other.start_);
    std::swap(size_, other.size_);
    return *this;
}

unshared_mapping::~unshared_mapping()
{
    // In a child something else may be mapped there.
    if (start_ != nullptr && born_.is_here())
        ::munmap(start_, size_);
}

}  // namespace gpurx::detail
