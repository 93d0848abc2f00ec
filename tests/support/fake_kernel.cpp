// SPDX-License-Identifier: Apache-2.0
#include "fake_kernel.hpp"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/syscalls.hpp"
#include "eventually.hpp"
#include "session/nic_worker.hpp"

namespace gpurx::detail::sys {

namespace {

std::atomic<test::fake_kernel*> fake{nullptr};

}  // namespace

ssize_t recvmsg(int socket, msghdr* message, int flags) noexcept
{
    auto* const kernel = fake.load();
    return kernel == nullptr ? ::recvmsg(socket, message, flags) : kernel->recvmsg(socket, message, flags);
}

int setsockopt(int socket, int level, int name, void const* value, socklen_t size) noexcept
{
    auto* const kernel = fake.load();
    return kernel == nullptr ? ::setsockopt(socket, level, name, value, size)
                             : kernel->setsockopt(socket, level, name, value, size);
}

int shutdown(int socket, int how) noexcept
{
    return ::shutdown(socket, how);
}

int io_uring_setup(unsigned entries, io_uring_params* params) noexcept
{
    if (auto* const kernel = fake.load(); kernel != nullptr)
        return kernel->io_uring_setup(entries, *params);
    return static_cast<int>(::syscall(SYS_io_uring_setup, entries, params));
}

int io_uring_enter(int ring, unsigned to_submit, unsigned least, unsigned flags) noexcept
{
    if (auto* const kernel = fake.load(); kernel != nullptr)
        return kernel->io_uring_enter(ring, to_submit, least, flags);
    return static_cast<int>(::syscall(SYS_io_uring_enter, ring, to_submit, least, flags, nullptr, 0));
}

int io_uring_register(int ring, unsigned opcode, void* argument, unsigned count) noexcept
{
    if (auto* const kernel = fake.load(); kernel != nullptr)
        return kernel->io_uring_register(ring, opcode, argument);
    return static_cast<int>(::syscall(SYS_io_uring_register, ring, opcode, argument, count));
}

std::size_t page_size() noexcept
{
    return test::fake_kernel::page_size;
}

}  // namespace gpurx::detail::sys

namespace gpurx::test {

using detail::uapi::dmabuf_cmsg;
using detail::uapi::dmabuf_token;

namespace {

// 0: not an open socket.
std::uint64_t inode_of(int fd)
{
    struct stat status {};
    return ::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

std::set<std::uint64_t> open_sockets()
{
    std::set<std::uint64_t> inodes;
    auto* const directory = ::opendir("/proc/self/fd");
    while (auto const* const entry = ::readdir(directory))
        if (auto const inode = inode_of(std::atoi(entry->d_name)))
            inodes.insert(inode);
    ::closedir(directory);
    return inodes;
}

}  // namespace

std::size_t const fake_kernel::page_size = [] {
    auto const* const wanted = std::getenv("GPURX_TEST_PAGE_SIZE");
    return wanted == nullptr ? std::size_t{4096} : std::stoul(wanted);
}();

// What one recvmsg has delivered so far.
struct fake_kernel::delivery {
    msghdr& message;
    std::size_t limit;  // bytes
    std::size_t bytes = 0;
    std::size_t linear = 0;
    std::size_t control = 0;

    [[nodiscard]] bool has_room(std::size_t payload) const
    {
        return message.msg_controllen - control >= CMSG_SPACE(payload);
    }
    void add(int level, int type, void const* payload, std::size_t size)
    {
        cmsghdr const header{.cmsg_len = CMSG_LEN(size), .cmsg_level = level, .cmsg_type = type};
        auto* const to = static_cast<std::byte*>(message.msg_control) + control;
        std::memcpy(to, &header, sizeof header);
        std::memcpy(to + CMSG_LEN(0), payload, size);
        control += CMSG_SPACE(size);
    }
};

fake_kernel::fake_kernel()
{
    detail::sys::fake.store(this);
}

fake_kernel::~fake_kernel()
{
    // A session's worker may be the last that has it, and closes rings in a thread of its own.
    auto const any_open = [this] {
        return std::ranges::any_of(rings_, [](auto const& entry) { return entry.second->file().is_open(); });
    };
    if (!eventually([&] { return !any_open(); }))
        violation("a ring was left open");
    detail::sys::fake.store(nullptr);
    check_end_of_queues();
    for (auto const& text : violations_)
        FAIL_CHECK(text);
    for (auto const& [inode, state] : sockets_)
        if (!state.tokens.empty())
            FAIL_CHECK("socket " << inode << " kept " << state.tokens.size() << " tokens");
    for (auto const& [id, where] : memories_)
        if (auto const out = where.array_tokens_out(); out > 0)
            FAIL_CHECK("of memory " << id << " " << out << " array tokens were kept");
    if (auto const out = pages_of_io_uring(); out > 0)
        FAIL_CHECK("of io_uring " << out << " fragments did not return");
}

void fake_kernel::bind(std::uint32_t dmabuf_id, std::span<std::byte> bytes)
{
    std::lock_guard const lock{mutex_};
    if (memories_.empty())
        first_id_ = dmabuf_id;
    auto& added = memories_[dmabuf_id];
    added.bytes = bytes;
    added.tokens_on.resize(bytes.size() / page_size);
    added.owners.resize(bytes.size() / page_size);
    for (std::size_t page = 0; page < added.tokens_on.size(); ++page)
        added.free.insert(page);
    std::memset(bytes.data(), std::to_integer<int>(poison), bytes.size());
}

void fake_kernel::set_array_tokens(bool on)
{
    std::lock_guard const lock{mutex_};
    array_tokens_ = on;
}

bool fake_kernel::has_array_tokens() const
{
    std::lock_guard const lock{mutex_};
    return array_tokens_;
}

void fake_kernel::deliver(std::vector<route> routes)
{
    std::lock_guard const lock{mutex_};
    routes_.insert(routes_.end(), routes.begin(), routes.end());
}

void fake_kernel::set_fragment_size(std::size_t bytes)
{
    std::lock_guard const lock{mutex_};
    fragment_size_ = bytes;
}

void fake_kernel::set_packing(bool on)
{
    std::lock_guard const lock{mutex_};
    packing_ = on;
}

void fake_kernel::set_ascending(bool on)
{
    std::lock_guard const lock{mutex_};
    ascending_ = on;
}

void fake_kernel::set_noise(bool on)
{
    std::lock_guard const lock{mutex_};
    noise_ = on;
}

void fake_kernel::fail_receive(int error, int times)
{
    std::lock_guard const lock{mutex_};
    receive_faults_.insert(receive_faults_.end(), static_cast<std::size_t>(times), error);
}

void fake_kernel::shorten_release(std::size_t tokens)
{
    std::lock_guard const lock{mutex_};
    release_short_ = tokens;
}

void fake_kernel::fail_release(int error)
{
    std::lock_guard const lock{mutex_};
    release_fault_ = error;
}

void fake_kernel::lie_about_size(std::uint32_t bytes)
{
    std::lock_guard const lock{mutex_};
    size_lie_ = bytes;
}

void fake_kernel::lie_about_offset()
{
    std::lock_guard const lock{mutex_};
    offset_lie_ = true;
}

void fake_kernel::fail_setup(int error)
{
    std::lock_guard const lock{mutex_};
    setup_fault_ = error;
}

void fake_kernel::fail_register(int error)
{
    std::lock_guard const lock{mutex_};
    register_fault_ = error;
}

void fake_kernel::fail_enter(int error, int after)
{
    std::lock_guard const lock{mutex_};
    enter_fault_ = error;
    enter_fault_in_ = after;
}

void fake_kernel::miss_cancellations(int times)
{
    std::lock_guard const lock{mutex_};
    cancel_misses_ = times;
}

void fake_kernel::lose_cancellation()
{
    std::lock_guard const lock{mutex_};
    loses_cancellation_ = true;
}

void fake_kernel::lose_end()
{
    std::lock_guard const lock{mutex_};
    loses_end_ = true;
}

std::vector<fake_kernel::release> fake_kernel::releases() const
{
    std::lock_guard const lock{mutex_};
    return releases_;
}

std::size_t fake_kernel::receive_calls() const
{
    std::lock_guard const lock{mutex_};
    return receive_calls_;
}

std::size_t fake_kernel::tokens_out()
{
    std::lock_guard const lock{mutex_};
    refill_all();
    auto count = pages_of_io_uring();
    for (auto const& [inode, state] : sockets_)
        count += state.tokens.size();
    for (auto const& [id, where] : memories_)
        count += where.array_tokens_out();
    return count;
}

std::size_t fake_kernel::free_pages(std::uint32_t dmabuf_id)
{
    std::lock_guard const lock{mutex_};
    refill_all();
    return memories_.at(dmabuf_id).free.size();
}

std::size_t fake_kernel::reap_closed()
{
    detail::nic_worker::wait_for_all();  // they close descriptors, too, in threads of their own
    std::lock_guard const lock{mutex_};
    auto const open = open_sockets();
    for (auto at = sockets_.begin(); at != sockets_.end();) {
        if (open.contains(at->first)) {
            ++at;
            continue;
        }
        take_all_back(at->second);
        at = sockets_.erase(at);
    }
    check_end_of_queues();
    return sockets_.size();
}

std::vector<std::string> fake_kernel::take_violations()
{
    std::lock_guard const lock{mutex_};
    return std::exchange(violations_, {});
}

void fake_kernel::violation(std::string text)
{
    violations_.push_back("rule broken: " + std::move(text));
}

// ---- receiving ----

ssize_t fake_kernel::recvmsg(int socket, msghdr* message, int flags)
{
    std::lock_guard const lock{mutex_};
    allocation_scope const scope{*this};
    ++receive_calls_;
    if (!receive_faults_.empty()) {
        errno = receive_faults_.front();
        receive_faults_.pop_front();
        return -1;
    }
    if ((flags & detail::uapi::msg_sock_devmem) == 0)
        return ::recvmsg(socket, message, flags);
    auto const inode = inode_of(socket);
    check_call(*message, flags, inode != 0 && sockets_[inode].io_uring);
    if (inode == 0) {
        violation("recvmsg on a descriptor that is no socket");
        errno = EBADF;
        return -1;
    }
    return receive_devmem(socket, sockets_[inode], *message);
}

void fake_kernel::check_call(msghdr const& message, int flags, bool io_uring)
{
    if (flags != (detail::uapi::msg_sock_devmem | MSG_DONTWAIT | MSG_CMSG_CLOEXEC))
        violation("recvmsg with flags " + std::to_string(flags));
    if (message.msg_iovlen != 1 || message.msg_iov->iov_base == nullptr || message.msg_iov->iov_len == 0)
        violation("recvmsg without memory for bytes on the host");
    if (!io_uring && message.msg_controllen < 17 * CMSG_SPACE(sizeof(dmabuf_cmsg)))
        violation("a control buffer that ends inside a segment");
}

fake_kernel::route fake_kernel::next_route() const
{
    return routes_.empty() ? route{way::device, ~std::size_t{0}, first_id_} : routes_.front();
}

void fake_kernel::consume_route(std::size_t bytes)
{
    if (routes_.empty())
        return;
    routes_.front().bytes -= bytes;
    if (routes_.front().bytes == 0)
        routes_.pop_front();
}

ssize_t fake_kernel::receive_devmem(int socket, tcp_socket& state, msghdr& message)
{
    delivery into{message, message.msg_iov->iov_len};
    if (noise_ && into.has_room(sizeof(timeval))) {
        timeval const when{};
        into.add(SOL_SOCKET, SO_TIMESTAMP, &when, sizeof when);
    }
    ssize_t last = 0;
    bool first = true;
    while (into.bytes < into.limit) {
        auto const how = next_route();
        if (how.kind == way::plain && !first)
            break;  // a call ends where device memory does
        last = deliver_one(socket, state, how, into);
        if (last <= 0)
            break;
        first = false;
        consume_route(static_cast<std::size_t>(last));
        if (how.kind == way::plain)
            break;
    }
    message.msg_flags = noise_ ? MSG_CTRUNC : 0;
    if (into.bytes == 0)
        return last;
    message.msg_controllen = into.control;
    return static_cast<ssize_t>(into.bytes);
}

ssize_t fake_kernel::deliver_one(int socket, tcp_socket& state, route const& how, delivery& into)
{
    if (how.kind == way::device)
        return deliver_device(socket, state, how, into);
    if (how.kind == way::urgent) {
        std::byte passed;
        if (::recv(socket, &passed, 1, MSG_DONTWAIT) == 1)
            consume_route(1);
        errno = EAGAIN;
        return -1;
    }
    if (how.kind == way::lost) {
        errno = ENODEV;
        return -1;
    }
    auto const linear = how.kind == way::linear;
    if (linear && !into.has_room(sizeof(dmabuf_cmsg))) {
        errno = detail::uapi::etoosmall;
        return -1;
    }
    auto const most = std::min(how.bytes, into.limit - into.bytes);
    auto* const to = static_cast<std::byte*>(into.message.msg_iov->iov_base) + into.linear;
    auto const size = ::recv(socket, to, linear ? std::min(most, fragment_size_) : most, MSG_DONTWAIT);
    if (size <= 0)
        return size;
    into.bytes += static_cast<std::size_t>(size);
    if (linear) {
        into.linear += static_cast<std::size_t>(size);
        dmabuf_cmsg const payload{0, static_cast<std::uint32_t>(size) + std::exchange(size_lie_, 0), 0, 0, 0};
        into.add(SOL_SOCKET, detail::uapi::scm_devmem_linear, &payload, sizeof payload);
    }
    return size;
}

ssize_t fake_kernel::deliver_device(int socket, tcp_socket& state, route const& how, delivery& into)
{
    auto& where = memories_.at(how.dmabuf_id);
    if (where.io_uring) {
        errno = ENODEV;
        return -1;
    }
    if (!into.has_room(sizeof(dmabuf_cmsg))) {
        errno = detail::uapi::etoosmall;
        return -1;
    }
    auto size = std::min({how.bytes, into.limit - into.bytes, fragment_size_});
    std::size_t page = 0;
    auto* const to = place_for(where, size, page);
    if (to == nullptr) {
        errno = EAGAIN;  // what the NIC could not place never arrived
        return -1;
    }
    auto const received = ::recv(socket, to, size, MSG_DONTWAIT);
    if (received <= 0)
        return received;
    auto offset = take_page(where, page, to, static_cast<std::size_t>(received));
    auto const token = hand_out(state, how.dmabuf_id, page);
    if (std::exchange(offset_lie_, false))
        offset = where.bytes.size() - static_cast<std::size_t>(received) + 1;
    dmabuf_cmsg const payload{offset, static_cast<std::uint32_t>(received) + std::exchange(size_lie_, 0), token,
                              how.dmabuf_id, 0};
    into.add(SOL_SOCKET, detail::uapi::scm_devmem_dmabuf, &payload, sizeof payload);
    into.bytes += static_cast<std::size_t>(received);
    return received;
}

// Where the next fragment goes; `size` may shrink. Null: no page is free.
std::byte* fake_kernel::place_for(memory& where, std::size_t& size, std::size_t& page)
{
    if (packing_ && where.packed < page_size && where.tokens_on[where.packing_page] > 0) {
        page = where.packing_page;
        size = std::min(size, page_size - where.packed);
        return where.bytes.data() + page * page_size + where.packed;
    }
    if (where.free.empty())
        return nullptr;
    auto at = where.free.begin();
    if (!ascending_) {
        where.next = (where.next + 7) % where.tokens_on.size();
        at = where.free.lower_bound(where.next);
        if (at == where.free.end())
            at = where.free.begin();
    }
    page = *at;
    size = std::min(size, page_size);
    return where.bytes.data() + page * page_size;
}

std::uint64_t fake_kernel::take_page(memory& where, std::size_t page, std::byte const* to, std::size_t size)
{
    auto const offset = static_cast<std::size_t>(to - where.bytes.data());
    where.free.erase(page);
    where.packing_page = page;
    where.packed = offset - page * page_size + size;
    return offset;
}

// ---- releasing ----

int fake_kernel::setsockopt(int socket, int level, int name, void const* value, socklen_t size)
{
    if (level != SOL_SOCKET || name != detail::uapi::so_devmem_dontneed)
        return ::setsockopt(socket, level, name, value, size);
    std::lock_guard const lock{mutex_};
    allocation_scope const scope{*this};
    std::vector<dmabuf_token> tokens(size / sizeof(dmabuf_token));
    if (size == 0 || size % sizeof(dmabuf_token) != 0 || tokens.size() > detail::uapi::max_dontneed_entries) {
        violation("a release of " + std::to_string(size) + " bytes");
        errno = EINVAL;
        return -1;
    }
    std::memcpy(tokens.data(), value, size);
    if (release_fault_ != 0) {
        errno = std::exchange(release_fault_, 0);
        return -1;
    }
    auto const state = sockets_.find(inode_of(socket));
    if (state == sockets_.end()) {
        violation("a release through a socket that is closed, or never received");
        errno = EBADF;
        return -1;
    }
    return static_cast<int>(release_tokens(state->second, tokens));
}

std::size_t fake_kernel::release_tokens(tcp_socket& state, std::span<dmabuf_token const> tokens)
{
    std::size_t pages = 0;
    std::size_t accepted = 0;
    for (auto const& range : tokens) {
        for (std::uint32_t i = 0; i < range.token_count; ++i) {
            ++pages;
            auto const token = range.token_start + i;
            if (!take_back(state, token))
                violation("token " + std::to_string(token) + " returned too often, or never handed out");
            else if (release_short_ > 0)
                --release_short_;
            else
                ++accepted;
        }
    }
    if (pages == 0 || pages > detail::uapi::max_dontneed_pages)
        violation("a release of " + std::to_string(pages) + " pages");
    releases_.push_back({tokens.size(), pages});
    return accepted;
}

}  // namespace gpurx::test
