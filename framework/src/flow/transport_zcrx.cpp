// SPDX-License-Identifier: Apache-2.0
//
// io_uring zero-copy receive: the NIC has written the bytes into the session's memory, completions of a ring say where,
// and pages return by a ring in memory, without a system call. The ring is used like a system call: Asio waits for the
// socket, and one io_uring_enter submits the receive and what cancels the rest of it. So no thread ever waits in a
// ring, and no request outlives the call that made it.
#include <linux/io_uring.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "base/zcrx_queue.hpp"
#include "devmem_cmsg.hpp"
#include "devmem_uapi.hpp"
#include "host_chunks.hpp"
#include "loan.hpp"
#include "transport.hpp"

namespace gpurx::detail {

namespace {

namespace zc = uapi::zcrx;

constexpr std::uint64_t of_receive = 1;  // user_data
constexpr std::uint64_t of_cancel = 2;
constexpr std::size_t most_pieces = zcrx_queue::completions;
constexpr std::size_t longest = std::size_t{1} << 30;  // of one request, whose length has 32 bits

// For more pieces than the first call of a request can have told.
[[gnu::noinline]] bool make_room(loan& into, std::size_t pieces) noexcept
try {
    into.fragments.reserve(into.fragments.size() + pieces);
    into.pages.reserve(into.pages.size() + pieces);
    return true;
} catch (std::bad_alloc const&) {
    return false;
}

class zcrx_transport final : public flow_transport {
  public:
    zcrx_transport(flow_place& place, int socket)
        : place_{place},
          socket_{socket},
          queues_{place.session().zcrx()},
          host_{place},
          piece_size_{place.session().nic_page_size()}
    {
        // A request that finds nothing is armed and cancelled, which costs more than a wait.
        set_waits_between_tries(256);
    }

    error_code receive(std::size_t limit, loan& into) override;
    void give_back(loan& from, bool hold) noexcept override;

  private:
    using session_ptr = std::shared_ptr<session_state>;

    // How one request ended; the loan has what it delivered.
    struct outcome {
        std::uint64_t shared_pages = 0;  // pieces on the page of the piece before
        int error = 0;      // negative, of the last completion; 0: all that was asked for, or the end of the stream
        bool over = false;  // the last completion is there
        bool stray = false;
        int refused = 0;  // errno of the call, which took nothing

        void end(int result) noexcept
        {
            over = true;
            error = std::min(result, 0);
        }
    };

    // Asks one queue of a session; `from` is null for the flow's own.
    [[nodiscard]] error_code receive_from(session_ptr const& from, std::uint32_t number, std::size_t limit, loan& into);
    // Asks each queue of the process but the one that was asked last.
    [[nodiscard, gnu::noinline]] error_code receive_from_others(std::size_t limit, loan& into);
    [[nodiscard]] outcome request(zcrx_queue& queue, memory_span memory, std::size_t size, loan& into);
    // Takes the completions that are there.
    [[gnu::noinline]] static void take(io_ring& ring, memory_span const& memory, int page_shift, outcome& so_far,
                                       loan& into) noexcept;
    // After a request; `into` may have bytes.
    [[nodiscard]] error_code conclude(outcome const& of, std::size_t asked, loan& into);
    // Whether the socket counts bytes as readable.
    [[nodiscard]] bool has_bytes() const noexcept
    {
        int bytes = 0;
        return ::ioctl(socket_, SIOCINQ, &bytes) == 0 && bytes > 0;
    }
    // Bytes that missed the memory.
    [[nodiscard]] error_code receive_on_host(std::size_t limit, loan& into);
    [[nodiscard]] error_code deliver_host_bytes(std::span<std::byte const> control, std::size_t size, loan& into);
    void count(outcome const& of, session_ptr const& from, int page_shift, loan& into) noexcept;
    // Bytes to ask for.
    [[nodiscard]] std::size_t within(std::size_t limit, int page_shift) const noexcept;

    flow_place& place_;
    int socket_;
    zcrx_queues queues_;  // of the flow's own session
    host_chunks host_;
    // The session whose queue had the last bytes, if it is not the flow's own, and the queue. The NIC puts a flow on
    // one queue, and a flow is moved once, if at all.
    std::weak_ptr<session_state> source_;
    std::uint32_t source_queue_ = 0;
    std::size_t piece_size_;     // of the last requests, on average
    bool host_is_next_ = false;  // the next byte is not in the memory of a queue
    error_code met_;             // behind bytes that were delivered first; told once
    bool broken_ = false;        // the kernel named a place outside of the memory
};

error_code zcrx_transport::receive(std::size_t limit, loan& into)
{
    if (met_)
        return broken_ ? met_ : std::exchange(met_, {});
    if (std::exchange(host_is_next_, false))
        return receive_on_host(limit, into);
    auto const source = source_.lock();
    auto const most = static_cast<std::uint32_t>((source != nullptr ? source->zcrx() : queues_).size() - 1);
    auto code = receive_from(source, std::min(source_queue_, most), limit, into);
    if (code && code == errc::foreign_memory)
        code = receive_from_others(limit, into);
    if (into.bytes == 0 && std::exchange(host_is_next_, false))
        return receive_on_host(limit, into);
    if (code == asio::error::would_block && has_bytes()) {
        // A ring stops at urgent data for good, and recvmsg passes over them. Bytes may have come since, too.
        auto const passed = receive_on_host(limit, into);
        return passed == errc::mixed_fragments ? code : passed;
    }
    return code;
}

error_code zcrx_transport::receive_from(session_ptr const& from, std::uint32_t number, std::size_t limit, loan& into)
{
    auto& session = from != nullptr ? *from : place_.session();
    auto& queue = *(from != nullptr ? session.zcrx() : queues_)[number];
    // All that can fail comes first: nothing may be lost once the bytes have left the socket.
    into.fragments.reserve(most_pieces);
    into.pages.reserve(most_pieces);
    if (from != nullptr)
        into.foreign.reserve(1);
    auto const asked = within(limit, queue.page_shift());
    into.queue = number;
    auto const got = request(queue, session.memory().span().subspan(queue.offset(), queue.size()), asked, into);
    if (got.refused != 0)
        return errno_code(got.refused);
    count(got, from, queue.page_shift(), into);
    return conclude(got, asked, into);
}

error_code zcrx_transport::receive_from_others(std::size_t limit, loan& into)
{
    auto const asked = source_.lock();
    for (auto const& each : session_state::all_of_zcrx()) {
        auto const from = each.get() == &place_.session() ? nullptr : each;
        auto const count = static_cast<std::uint32_t>(each->zcrx().size());
        for (std::uint32_t queue = 0; queue < count; ++queue) {
            if (from == asked && queue == source_queue_)
                continue;
            auto const code = receive_from(from, queue, limit, into);
            if (code == errc::foreign_memory)
                continue;
            source_ = from;
            source_queue_ = queue;
            return code;
        }
    }
    return errc::foreign_memory;
}

// A limit is one of pages, too, and a piece takes a page whatever its size. A request has no limit but of bytes, so
// that pieces that are suddenly smaller than those before take more pages than the limit has, for some requests. One
// small piece says little about the next.
std::size_t zcrx_transport::within(std::size_t limit, int page_shift) const noexcept
{
    auto const pieces = std::clamp(limit >> page_shift, pieces_per_segment, most_pieces);
    return std::min({limit, pieces * piece_size_, longest});
}

zcrx_transport::outcome zcrx_transport::request(zcrx_queue& queue, memory_span memory, std::size_t size, loan& into)
{
    auto& mine = queue.ring_of_this_thread();
    auto& ring = mine.ring;
    auto& receiving = ring.next();
    receiving.opcode = zc::op_recv_zc;
    receiving.fd = socket_;
    receiving.len = static_cast<std::uint32_t>(size);
    receiving.ioprio = zc::recv_multishot;
    receiving.splice_fd_in = static_cast<std::int32_t>(mine.queue_id);
    receiving.user_data = of_receive;
    auto const page_shift = queue.page_shift();
    auto const lost = ring.lost();
    outcome result;
    // What is not there now is not waited for. The cancellation finds nothing if the kernel is just about to look
    // again.
    for (unsigned least = 0; !result.over; least = 1) {
        auto& cancelling = ring.next();
        cancelling.opcode = IORING_OP_ASYNC_CANCEL;
        cancelling.fd = -1;
        cancelling.addr = of_receive;
        cancelling.user_data = of_cancel;
        int error = 0;
        do {
            error = ring.enter(least);
            place_.counters.receive_calls.add(1);
            take(ring, memory, page_shift, result, into);
        } while (error == EINTR || error == EAGAIN || error == EBUSY);
        if (error == 0 && (result.over || ring.lost() == lost)) [[likely]]
            continue;
        if (least == 0 && error != 0) {
            ring.drop();
            result.refused = error;
        } else {
            result.stray = true;  // the kernel has the request, whose bytes nobody will see
            queue.close_ring_of_this_thread();
        }
        break;
    }
    return result;
}

// Nearly all instructions of a piece are in this loop. It changes only local variables, the lists have room for all
// pieces, and the function is not inlined, so that the variables fit into registers.
void zcrx_transport::take(io_ring& ring, memory_span const& memory, int page_shift, outcome& so_far,
                          loan& into) noexcept
{
    auto const count = ring.ready();
    if (count > std::min(into.pages.spare_room(), into.fragments.spare_room()) && !make_room(into, count))
        [[unlikely]] {
        ring.reap(count, [&](zc::cqe const& completion) {
            if ((completion.flags & IORING_CQE_F_MORE) == 0 && completion.user_data == of_receive)
                so_far.end(completion.res);
        });
        so_far.stray = true;  // their pages return when the queue ends
        return;
    }
    auto const start = memory.address();
    auto const size = memory.size();
    auto const kind = memory.kind();
    auto const within_page = (std::uint64_t{1} << page_shift) - 1;
    auto reachable = so_far.stray ? 0 : size;
    std::size_t bytes = 0;
    auto* fragments = into.fragments.end();
    std::uintptr_t last_end = 0;
    auto* const first_page = into.pages.begin();
    auto* pages = into.pages.end();
    ring.reap(count, [&](zc::cqe const& completion) {
        auto const offset = completion.off & ((std::uint64_t{1} << zc::area_shift) - 1);
        auto const page = static_cast<std::uint32_t>(offset >> page_shift);
        auto const length = static_cast<std::size_t>(completion.res);
        auto const more = (completion.flags & IORING_CQE_F_MORE) != 0;
        if (!more || completion.res <= 0 || offset + length > reachable) [[unlikely]] {
            if (more)
                reachable = 0;
            else if (completion.user_data == of_receive)
                so_far.end(completion.res);
            if (more && completion.res > 0 && offset + length <= size)
                *pages++ = page;  // behind a hole: the page goes back all the same
            return;
        }
        // Only a piece behind the begin of its page can share it with the one before.
        if ((offset & within_page) != 0 && pages != first_page && pages[-1] == page) [[unlikely]]
            ++so_far.shared_pages;
        *pages++ = page;
        bytes += length;
        auto const address = start + offset;
        if (address == last_end)
            fragments[-1].size += length;
        else
            *fragments++ = {address, length, kind};
        last_end = address + length;
    });
    into.pages.extend_to(pages);
    into.fragments.extend_to(fragments);
    into.bytes += bytes;
    so_far.stray = reachable == 0;
}

error_code zcrx_transport::conclude(outcome const& of, std::size_t asked, loan& into)
{
    set_drained(false);
    switch (of.error) {
        case 0:
            if (into.bytes < asked)
                met_ = asio::error::eof;
            break;
        case -ECANCELED:
            set_drained(true);
            break;
        case -ENOSPC:  // the ring is full: there is more
            break;
        case -ENOMEM:
            host_is_next_ = true;
            break;
        case -EFAULT:
            met_ = into.bytes > 0 ? error_code{} : error_code{errc::foreign_memory};
            break;
        default:
            met_ = errno_code(-of.error);
    }
    if (of.stray) {
        met_ = errno_code(EPROTO);
        broken_ = true;
    }
    if (into.bytes > 0)
        return {};
    if (!met_)
        return asio::error::would_block;
    return broken_ ? met_ : std::exchange(met_, {});
}

error_code zcrx_transport::receive_on_host(std::size_t limit, loan& into)
{
    host_.provide();
    into.fragments.reserve(1);
    // For the pieces of linear payload of one segment; those of pages end the call.
    alignas(cmsghdr) std::array<std::byte, devmem_control_size(2)> control;
    iovec bytes{.iov_base = host_.place(), .iov_len = std::min(limit, host_.room())};
    msghdr message{};
    ssize_t received = 0;
    do {
        message = {};
        message.msg_iov = &bytes;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        received = sys::recvmsg(socket_, &message, uapi::msg_sock_devmem | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        place_.counters.receive_calls.add(1);
    } while (received < 0 && errno == EINTR);
    set_drained(false);
    if (received > 0)
        return deliver_host_bytes(std::span{control}.first(std::min(message.msg_controllen, control.size())),
                                  static_cast<std::size_t>(received), into);
    // mixed_fragments: linear payload behind pages of the same segment, as GRO makes them of packets that were split
    // badly. The kernel gives it neither to a ring nor to recvmsg.
    return received == 0 ? error_code{asio::error::eof} : error_of_recvmsg(errno);
}

error_code zcrx_transport::deliver_host_bytes(std::span<std::byte const> control, std::size_t size, loan& into)
{
    std::size_t linear = 0;
    devmem_cmsg_reader reader{control};
    for (devmem_piece piece; reader.next(piece);)
        linear += piece.kind == devmem_piece::where::linear ? piece.size : 0;
    linear = std::min(linear, size);
    host_.move_into_reach(size);
    into.append({reinterpret_cast<std::uintptr_t>(host_.place()), size, memory_kind::host});
    into.charge = size;
    host_.share(into, size);
    place_.counters.linear_bytes.add(linear);
    place_.counters.host_bytes.add(size - linear);
    place_.counters.fragments.add(1);
    return {};
}

void zcrx_transport::count(outcome const& of, session_ptr const& from, int page_shift, loan& into) noexcept
{
    auto const pieces = into.pages.size();
    if (pieces > 0)
        piece_size_ = std::max<std::size_t>({into.bytes / pieces, piece_size_ / 2, 1});
    into.token_count = pieces;
    into.charge = (pieces - of.shared_pages) << page_shift;
    auto& counters = place_.counters;
    counters.tokens_high_water.raise_to(counters.tokens_out.add(pieces));
    counters.fragments.add(into.fragments.size());
    if (from == nullptr) {
        into.own_tokens = pieces;
        place_.session().tokens_taken(pieces);
        counters.device_bytes.add(into.bytes);
    } else if (pieces > 0) {
        into.foreign.push_back({.session = from, .dmabuf_id = 0, .tokens = pieces});
        from->tokens_taken(pieces);
        counters.resteered_bytes.add(into.bytes);
    }
}

void zcrx_transport::give_back(loan& from, bool /*hold*/) noexcept
{
    // All pages of a loan are of one queue.
    auto const own = from.foreign.empty();
    auto& owner = own ? place_.session() : *from.foreign.front().session;
    if (!from.pages.empty()) {
        auto const given = (own ? queues_ : owner.zcrx())[from.queue]->give_back(from.pages);
        place_.counters.release_calls.add(given.calls);
        place_.counters.release_failures.add(given.failed ? 1 : 0);
    }
    if (from.host != nullptr)
        host_.let_go(std::exchange(from.host, nullptr));
    place_.counters.tokens_out.subtract(from.token_count);
    owner.tokens_returned(from.token_count);
}

}  // namespace

std::unique_ptr<flow_transport> make_zcrx_transport(flow_place& place, int socket)
{
    return std::make_unique<zcrx_transport>(place, socket);
}

}  // namespace gpurx::detail
