// SPDX-License-Identifier: Apache-2.0
//
// The fake kernel's zero-copy receive of io_uring.
#include <linux/io_uring.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/syscalls.hpp"
#include "base/zcrx_queue.hpp"
#include "fake_kernel.hpp"

namespace gpurx::test {

namespace zc = detail::uapi::zcrx;

namespace {

// Of the refill ring's memory; unlike those of any kernel.
constexpr std::uint32_t head_offset = 16;
constexpr std::uint32_t tail_offset = 80;
constexpr std::uint32_t entries_offset = 192;
constexpr std::uint64_t area_token = std::uint64_t{5} << zc::area_shift;
constexpr unsigned ring_flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQE32;
constexpr std::uint32_t first_number = 3;  // of a ring's queues

int fail_with(int error)
{
    errno = error;
    return -1;
}

// What the next byte of a socket is: 1: there is one; otherwise as recv().
ssize_t peek(int socket)
{
    std::byte one;
    return ::recv(socket, &one, 1, MSG_PEEK | MSG_DONTWAIT);
}

}  // namespace

void fake_kernel::watch(std::weak_ptr<detail::zcrx_queue> queue)
{
    std::lock_guard const lock{mutex_};
    watched_.push_back(std::move(queue));
}

int fake_kernel::ring_that_registered(unsigned queue) const
{
    std::lock_guard const lock{mutex_};
    for (auto const& [holder, known] : queues_)
        if (known.number == queue)
            return rings_.at(holder)->descriptor;
    return -1;
}

fake_ring* fake_kernel::find_ring(int fd)
{
    struct stat status {};
    if (::fstat(fd, &status) != 0)
        return nullptr;
    auto const found = rings_.find(status.st_ino);
    return found == rings_.end() ? nullptr : found->second.get();
}

int fake_kernel::io_uring_setup(unsigned entries, io_uring_params& params)
{
    std::lock_guard const lock{mutex_};
    allocation_scope const scope{*this};
    if (auto const error = std::exchange(setup_fault_, 0); error != 0)
        return fail_with(error);
    if ((params.flags & ring_flags) != ring_flags || params.cq_entries < entries)
        violation("a ring that cannot receive without copies");
    auto made = std::make_unique<fake_ring>(entries, params);
    auto const fd = made->file().hand_out();
    made->descriptor = fd;
    rings_[made->inode()] = std::move(made);
    return fd;
}

// ---- registration ----

int fake_kernel::io_uring_register(int fd, unsigned opcode, void* argument)
{
    std::lock_guard const lock{mutex_};
    allocation_scope const scope{*this};
    if (opcode == zc::register_query && fd == -1)
        return answer_query(*static_cast<zc::query_header*>(argument));
    auto* const ring = find_ring(fd);
    if (ring == nullptr)
        return fail_with(EBADF);
    if (!ring->is_disabled() && !ring->is_of_this_thread())
        return fail_with(EEXIST);
    if (opcode == IORING_REGISTER_ENABLE_RINGS) {
        if (!ring->is_disabled())
            return fail_with(EBADFD);
        ring->enable();
        return 0;
    }
    if (opcode == zc::register_ctrl)
        return control(*ring, *static_cast<zc::ctrl*>(argument));
    if (opcode != zc::register_ifq)
        return fail_with(EINVAL);
    auto& request = *static_cast<zc::ifq_reg*>(argument);
    if (auto const error = std::exchange(register_fault_, 0); error != 0)
        return fail_with(error);
    return request.flags == zc::import ? import_queue(*ring, request) : register_queue(*ring, request);
}

int fake_kernel::answer_query(zc::query_header& header)
{
    auto& answer = *reinterpret_cast<zc::query*>(header.query_data);
    header.result = header.query_op == zc::query_zcrx && header.size == sizeof answer ? 0 : -EINVAL;
    answer = {.register_flags = 3,
              .area_flags = zc::area_dmabuf,
              .nr_ctrl_opcodes = 4,
              .features = 3,
              .rq_hdr_size = entries_offset,
              .rq_hdr_alignment = 64,
              .reserved = 0};
    return 0;
}

int fake_kernel::register_queue(fake_ring& ring, zc::ifq_reg& request)
{
    auto& area = *reinterpret_cast<zc::area_reg*>(request.area_ptr);
    auto& region = *reinterpret_cast<zc::region_desc*>(request.region_ptr);
    auto const exported = memories_.find(area.dmabuf_fd);
    if (area.flags != zc::area_dmabuf || area.addr != 0 || exported == memories_.end() ||
        area.len != exported->second.bytes.size() || request.rq_entries > zc::most_refill_entries ||
        !std::has_single_bit(request.rq_entries) || region.size % 4096 != 0 || region.size > fake_ring::region_size ||
        region.size < entries_offset + request.rq_entries * sizeof(zc::rqe))
        return fail_with(EINVAL);
    for (auto const& [holder, queue] : queues_) {
        if (!is_alive(queue))
            continue;
        if (queue.interface == request.if_idx && queue.number == request.if_rxq)
            return fail_with(EEXIST);
        if (queue.dmabuf_id == area.dmabuf_fd)
            violation("one dmabuf on two queues");
    }
    exported->second.io_uring = true;
    queues_[ring.inode()] = {.interface = request.if_idx,
                             .number = request.if_rxq,
                             .dmabuf_id = area.dmabuf_fd,
                             .entries = request.rq_entries,
                             .region = ring.file().at(fake_ring::region_offset),
                             .rings = {ring.inode()}};
    region.mmap_offset = fake_ring::region_offset;
    area.rq_area_token = area_token;
    request.head = head_offset;
    request.tail = tail_offset;
    request.rqes = entries_offset;
    request.zcrx_id = first_number;
    ring.queues[first_number] = ring.inode();
    return 0;
}

int fake_kernel::import_queue(fake_ring& ring, zc::ifq_reg& request)
{
    struct stat status {};
    if (::fstat(static_cast<int>(request.if_idx), &status) != 0)
        return fail_with(EBADF);
    for (auto& [holder, queue] : queues_) {
        if (queue.exported == nullptr || queue.exported->inode() != status.st_ino)
            continue;
        queue.rings.push_back(ring.inode());
        // The first of a ring's queues always has the same number; a mistake would not be seen by that.
        request.zcrx_id = first_number + (ring.is_disabled() ? 0 : 1) + static_cast<std::uint32_t>(ring.queues.size());
        ring.queues[request.zcrx_id] = holder;
        return 0;
    }
    return fail_with(EINVAL);
}

int fake_kernel::control(fake_ring& ring, zc::ctrl& request)
{
    auto const known = ring.queues.find(request.zcrx_id);
    if (known == ring.queues.end())
        return fail_with(ENXIO);
    auto& queue = queues_.at(known->second);
    if (request.op == zc::ctrl_flush_rq) {
        if (auto const error = std::exchange(release_fault_, 0); error != 0)
            return fail_with(error);
        refill(queue);
        return 0;
    }
    if (request.op != zc::ctrl_export)
        return fail_with(EOPNOTSUPP);
    queue.exported = std::make_unique<shared_file>(4096);
    request.zcrx_fd = static_cast<std::uint32_t>(queue.exported->hand_out());
    return 0;
}

bool fake_kernel::is_alive(zcrx const& queue) const
{
    if (queue.exported != nullptr && queue.exported->is_open())
        return true;
    return std::ranges::any_of(queue.rings, [&](auto inode) { return rings_.at(inode)->file().is_open(); });
}

// ---- returned pages ----

void fake_kernel::refill(zcrx& queue, bool memory_is_there)
{
    // The owner's side of the ring is elsewhere in memory; this is an order that a race detector knows.
    for (auto const& watched : watched_)
        if (auto const owner = watched.lock())
            (void)owner->waiting();
    auto& head = *reinterpret_cast<std::uint32_t*>(queue.region + head_offset);
    auto const tail =
        std::atomic_ref{*reinterpret_cast<std::uint32_t*>(queue.region + tail_offset)}.load(std::memory_order_acquire);
    if (tail - head > queue.entries)
        violation("a refill ring with more entries than it has places");
    auto at = head;
    for (; at != tail; ++at) {
        zc::rqe entry;
        std::memcpy(&entry, queue.region + entries_offset + (at & (queue.entries - 1)) * sizeof entry, sizeof entry);
        auto& where = memories_.at(queue.dmabuf_id);
        auto const page = (entry.off ^ area_token) / page_size;
        if (page >= where.tokens_on.size() || where.tokens_on[page] == 0)
            violation("page " + std::to_string(page) + " returned too often, or never handed out");
        else
            put_page({queue.dmabuf_id, page}, memory_is_there);
    }
    std::atomic_ref{head}.store(at, std::memory_order_release);
}

void fake_kernel::refill_all()
{
    for (auto& [holder, queue] : queues_)
        refill(queue, false);
}

std::size_t fake_kernel::pages_of_io_uring() const
{
    std::size_t count = 0;
    for (auto const& [id, where] : memories_)
        if (where.io_uring)
            for (auto const pieces : where.tokens_on)
                count += static_cast<std::size_t>(pieces);
    return count;
}

// The last of them closes the queue, whose pages the kernel overwrites.
void fake_kernel::check_end_of_queues()
{
    refill_all();
    for (auto const& [holder, queue] : queues_) {
        auto const& where = memories_.at(queue.dmabuf_id);
        auto const out = std::ranges::count_if(where.tokens_on, [](int pieces) { return pieces > 0; });
        if (out > 0 && !is_alive(queue))
            violation("a queue ended while " + std::to_string(out) + " of its pages were out");
    }
    for (auto const& [inode, ring] : rings_)
        if (!ring->requests.empty() && ring->file().is_open())
            violation("a request outlived the call that made it");
}

// ---- receiving ----

int fake_kernel::io_uring_enter(int fd, unsigned to_submit, unsigned least, unsigned flags)
{
    std::lock_guard const lock{mutex_};
    allocation_scope const scope{*this};
    ++receive_calls_;
    // These say nothing of the socket: nothing was submitted.
    if (auto const first = receive_faults_.empty() ? 0 : receive_faults_.front();
        first == EINTR || first == EAGAIN || first == ENOMEM) {
        errno = receive_faults_.front();
        receive_faults_.pop_front();
        return -1;
    }
    if (enter_fault_ != 0 && enter_fault_in_-- == 0)
        return fail_with(std::exchange(enter_fault_, 0));
    auto* const ring = find_ring(fd);
    if (ring == nullptr)
        return fail_with(EBADF);
    if (ring->is_disabled())
        return fail_with(EBADFD);
    if (!ring->is_of_this_thread())
        return fail_with(EEXIST);
    if (flags != IORING_ENTER_GETEVENTS)
        violation("io_uring_enter with flags " + std::to_string(flags));
    ring->flush();
    for (unsigned i = 0; i < to_submit; ++i) {
        auto const entry = ring->next();
        if (!entry)
            violation("io_uring_enter of more entries than there are");
        else
            submit(*ring, *entry);
    }
    look(*ring);
    if (ring->completions() < least) {
        violation("a thread that would sleep in its ring");
        return fail_with(EINTR);
    }
    return static_cast<int>(to_submit);
}

void fake_kernel::submit(fake_ring& ring, io_uring_sqe const& entry)
{
    if (entry.opcode == IORING_OP_ASYNC_CANCEL)
        return cancel(ring, entry);
    auto const number = static_cast<std::uint32_t>(entry.splice_fd_in);
    struct stat status {};
    if (entry.opcode != zc::op_recv_zc || entry.ioprio != zc::recv_multishot || entry.addr != 0 ||
        !ring.queues.contains(number) || ::fstat(entry.fd, &status) != 0 || !S_ISSOCK(status.st_mode)) {
        violation("a request that the kernel refuses");
        return ring.post({.user_data = entry.user_data, .res = -EINVAL, .flags = 0, .off = 0, .pad = 0});
    }
    sockets_[status.st_ino].io_uring = true;
    ring.requests.push_back({.user_data = entry.user_data, .socket = entry.fd, .queue = number, .left = entry.len});
    look(ring);
}

void fake_kernel::cancel(fake_ring& ring, io_uring_sqe const& entry)
{
    auto const found = std::ranges::find(ring.requests, entry.addr, &fake_ring::request::user_data);
    int result = -ENOENT;
    if (found != ring.requests.end() && cancel_misses_ > 0) {
        --cancel_misses_;
        found->looks = true;
    } else if (found != ring.requests.end()) {
        ring.post({.user_data = found->user_data, .res = -ECANCELED, .flags = 0, .off = 0, .pad = 0});
        ring.requests.erase(found);
        result = 0;
    }
    if (std::exchange(loses_cancellation_, false))
        ring.lose();
    else
        ring.post({.user_data = entry.user_data, .res = result, .flags = 0, .off = 0, .pad = 0});
}

void fake_kernel::look(fake_ring& ring)
{
    std::erase_if(ring.requests, [&](auto& request) {
        if (!std::exchange(request.looks, false))
            return false;
        auto const end = receive_pages(ring, request);
        if (end && std::exchange(loses_end_, false))
            ring.lose();
        else if (end)
            ring.post({.user_data = request.user_data, .res = *end, .flags = 0, .off = 0, .pad = 0});
        return end.has_value();
    });
}

// Posts all that is there; returns how the request ends, nothing: it waits for more.
std::optional<int> fake_kernel::receive_pages(fake_ring& ring, fake_ring::request& request)
{
    auto& queue = queues_.at(ring.queues.at(request.queue));
    refill(queue);
    for (;;) {
        if (!receive_faults_.empty()) {
            auto const error = receive_faults_.front();
            receive_faults_.pop_front();
            return -error;
        }
        auto const there = peek(request.socket);
        if (there == 0)
            return 0;
        if (there < 0)
            return errno == EAGAIN ? std::nullopt : std::optional{-errno};
        auto const how = next_route();
        if (how.kind == way::urgent)
            return std::nullopt;
        if (how.kind != way::device)
            return -ENOMEM;
        if (how.dmabuf_id != queue.dmabuf_id)
            return -EFAULT;
        if (!ring.has_room())
            return -ENOSPC;
        auto const size = receive_page(ring, request, how);
        if (size == 0)
            return std::nullopt;  // what the NIC could not place never arrived
        consume_route(size);
        if (request.left == 0)
            continue;
        request.left -= size;
        if (request.left == 0)
            return 0;
    }
}

// Bytes of the next fragment; 0: no page is free.
std::size_t fake_kernel::receive_page(fake_ring& ring, fake_ring::request const& request, route const& how)
{
    auto& where = memories_.at(how.dmabuf_id);
    auto size = std::min({how.bytes, request.left == 0 ? how.bytes : request.left, fragment_size_});
    std::size_t page = 0;
    auto* const to = place_for(where, size, page);
    if (to == nullptr)
        return 0;
    size = static_cast<std::size_t>(::recv(request.socket, to, size, MSG_DONTWAIT));
    auto offset = take_page(where, page, to, size);
    ++where.tokens_on[page];
    if (std::exchange(offset_lie_, false)) {
        offset = where.bytes.size() - size + 1;
        put_page({how.dmabuf_id, page});  // its user cannot
    }
    ring.post({.user_data = request.user_data,
               .res = static_cast<std::int32_t>(size),
               .flags = IORING_CQE_F_MORE,
               .off = offset | area_token,
               .pad = 0});
    return size;
}

}  // namespace gpurx::test
