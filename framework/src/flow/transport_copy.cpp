// SPDX-License-Identifier: Apache-2.0
//
// Ordinary TCP: the kernel copies the bytes into pages of the session's memory, or straight to where they are wanted.
// Bytes for a GPU go through pinned staging, from where they cross PCIe while the next bytes are received.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include <gpurx/views.hpp>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "cuda/gpu_work.hpp"
#include "loan.hpp"
#include "memory/page_pool.hpp"
#include "transport.hpp"

namespace gpurx::detail {

namespace {

// Which pages the next bytes of one flow go to: the rest of the page in use, so that small receives share one, then
// fresh pages. One thread at a time.
class page_filler {
  public:
    // Offered to one receive, unless the limit is lower or pages are short.
    static constexpr std::size_t most_bytes = 512 << 10;
    // At the smallest page size, and one for the rest of the page in use.
    static constexpr std::size_t most_parts = most_bytes / 4096 + 1;

    // A part of a page; its address is one of the session's memory.
    struct part {
        std::uintptr_t address;
        std::size_t size;
    };
    struct offer {
        std::array<part, most_parts> parts;           // not initialized: only `count` mean anything
        std::array<std::uint32_t, most_parts> pages;  // that the parts lie in
        std::size_t count = 0;

        [[nodiscard]] std::span<part const> used() const noexcept { return std::span{parts}.first(count); }
        [[nodiscard]] std::size_t size() const noexcept;
    };

    page_filler(page_pool& pool, memory_span memory) noexcept : pool_{pool}, memory_{memory} {}
    page_filler(page_filler const&) = delete;
    page_filler& operator=(page_filler const&) = delete;
    ~page_filler();

    // Room for at most `limit` bytes; none if no page is free.
    void prepare(std::size_t limit, offer& what) noexcept;
    // Before the bytes have left the socket: nothing may fail afterwards.
    static void make_room(loan& into);
    // Describes the first `received` bytes of what was offered in `into`, and gives back the rest.
    void settle(offer const& what, std::size_t received, loan& into) noexcept;

  private:
    [[nodiscard]] std::uintptr_t address_of(std::uint32_t page) const noexcept
    {
        return memory_.address() + page * pool_.page_size();
    }

    page_pool& pool_;
    memory_span memory_;
    // The page that is partly filled; the flow holds a reference of its own to it.
    bool filling_ = false;
    std::uint32_t page_ = 0;
    std::size_t filled_ = 0;  // less than a page
    std::uint32_t next_ = 0;  // the page behind the one used last
};

std::size_t page_filler::offer::size() const noexcept
{
    std::size_t sum = 0;
    for (auto const& each : used())
        sum += each.size;
    return sum;
}

page_filler::~page_filler()
{
    if (filling_)
        pool_.put({&page_, 1});
}

void page_filler::prepare(std::size_t limit, offer& what) noexcept
{
    limit = std::min(limit, most_bytes);
    auto const page_size = pool_.page_size();
    what.count = 0;
    auto const add = [&](std::uint32_t page, std::size_t from) {
        auto const size = std::min(page_size - from, limit);
        what.pages[what.count] = page;
        what.parts[what.count++] = {.address = address_of(page) + from, .size = size};
        limit -= size;
    };
    if (filling_) {
        if (filled_ > 0 && pool_.is_sole_owner(page_))
            filled_ = 0;
        add(page_, filled_);
    }
    std::array<std::uint32_t, most_parts> fresh;
    auto const wanted = std::min((limit + page_size - 1) / page_size, most_parts - what.count);
    for (auto const page : std::span{fresh}.first(pool_.take(std::span{fresh}.first(wanted), next_)))
        add(page, 0);
}

void page_filler::make_room(loan& into)
{
    into.fragments.reserve(most_parts);
    into.pages.reserve(most_parts);
}

void page_filler::settle(offer const& what, std::size_t received, loan& into) noexcept
{
    std::size_t used = 0;
    for (; received > 0; ++used) {
        auto const [address, room] = what.parts[used];
        auto const size = std::min(room, received);
        into.append({address, size, memory_.kind()});
        into.pages.push_back(what.pages[used]);
        received -= size;
        // A page that is full now passes from the flow to the loan; any other has both as its holders.
        page_ = what.pages[used];
        next_ = page_ + 1;
        filled_ = address - address_of(page_) + size;
        filling_ = filled_ < pool_.page_size();
        if (filling_)
            pool_.add_references({&page_, 1});
    }
    // The page in use stays where it is if nothing was received.
    if (used == 0 && filling_)
        used = 1;
    pool_.put(std::span{what.pages}.subspan(used, what.count - used));
}

// The kernel transfers no more per call (MAX_RW_COUNT), and refuses sizes above SSIZE_MAX.
constexpr auto most_per_call = static_cast<std::size_t>(std::numeric_limits<int>::max() & ~4095);

// Bytes that make the socket readable while a read waits, if it waits for as many. A sender of 1 GB/s that sends 256
// KiB at a time makes 3,900 waits a GiB of a read into a GPU without a mark (`./run bench copy`), 1,920 to 2,030 with
// 512 KiB, and 1,290 to 1,350 with 768 KiB for the same CPU time as with 512 KiB. A load into memory of the host takes
// 0.31 CPU s/GiB without a mark, 0.22 to 0.24 with 384 to 768 KiB (`./run bench ingest --only memory`). Below the
// least, the few waits that are saved cost less than the calls that set the mark.
constexpr std::size_t largest_mark = 768 << 10;
constexpr std::size_t least_mark = 128 << 10;

error_code receive_error() noexcept
{
    if (errno == EAGAIN)
        return asio::error::would_block;
    return errno_code(errno);
}

class copy_transport final : public flow_transport {
  public:
    copy_transport(flow_place& place, int socket)
        : place_{place},
          socket_{socket},
          memory_{place.session().memory()},
          pool_{place.session().pages()},
          filler_{pool_, memory_.span()}
    {}
    copy_transport(copy_transport const&) = delete;
    copy_transport& operator=(copy_transport const&) = delete;
    ~copy_transport() override
    {
        if (event_ >= 0)
            pool_.forget(event_);
    }

    error_code receive(std::size_t limit, loan& into) override;
    bool writes_in_place() const noexcept override { return true; }
    error_code receive_into(landing const& destination, std::size_t size, std::size_t& placed) override;
    void expect(landing const& destination, std::size_t missing) noexcept override;
    error_code finish(std::size_t& lost) noexcept override;
    bool notify_of_pages(int event) override;
    void give_back(loan& from, bool hold) noexcept override;

  private:
    [[nodiscard]] error_code receive_on_host(page_filler::offer const& what, loan& into);
    [[nodiscard]] error_code receive_on_gpu(page_filler::offer& what, std::size_t limit, loan& into);
    [[nodiscard]] error_code send_to_gpu(loan const& from) noexcept;
    [[nodiscard]] error_code flush_staging() noexcept;
    // Sets how many bytes make the socket readable.
    void set_mark(int bytes) noexcept;
    // Finds room for bytes for `on`; no_buffer_space: all of it is under way.
    [[nodiscard]] error_code find_staging(gpu_stream const& on, std::span<std::byte>& room);
    [[nodiscard]] error_code call(iovec* bytes, std::size_t count, std::size_t& received, int flags = 0) noexcept;

    flow_place& place_;
    int socket_;
    memory_state& memory_;
    page_pool& pool_;
    page_filler filler_;
    std::unique_ptr<staging> staging_;  // null until a GPU is to have something
    int staging_for_ = no_gpu;
    gpu_stream copies_;           // of the memory's GPU, resolved
    bool lacks_staging_ = false;  // and not pages
    error_code ended_;            // bytes were lost between the socket and a GPU
    std::size_t lost_ = 0;        // of these, those of the running read that were reported as placed
    int mark_ = 1;                // of the socket, as the transport knows it
    int own_mark_ = 1;            // the program's
    int event_ = -1;
};

error_code copy_transport::receive(std::size_t limit, loan& into)
{
    if (ended_)
        return ended_;
    page_filler::make_room(into);
    page_filler::offer what;
    if (memory_.span().kind() == memory_kind::device)
        return receive_on_gpu(what, limit, into);
    filler_.prepare(limit, what);
    return receive_on_host(what, into);
}

error_code copy_transport::receive_on_host(page_filler::offer const& what, loan& into)
{
    lacks_staging_ = false;
    if (what.count == 0)
        return asio::error::no_buffer_space;
    std::array<iovec, page_filler::most_parts> bytes;
    for (std::size_t i = 0; i < what.count; ++i)
        bytes[i] = {.iov_base = reinterpret_cast<void*>(what.parts[i].address), .iov_len = what.parts[i].size};
    std::size_t received = 0;
    auto const code = call(bytes.data(), what.count, received);
    filler_.settle(what, received, into);
    into.charge = into.bytes;
    place_.counters.fragments.add(into.fragments.size());
    return code;
}

error_code copy_transport::receive_on_gpu(page_filler::offer& what, std::size_t limit, loan& into)
{
    error_code code;
    if (copies_.ordinal == no_gpu)
        copies_ = copy_stream_of(memory_.ordinal(), code);
    std::span<std::byte> room;
    if (!code)
        code = find_staging(copies_, room);
    if (code)
        return code;
    filler_.prepare(std::min(limit, room.size()), what);
    if (what.count == 0) {
        lacks_staging_ = false;
        return asio::error::no_buffer_space;
    }
    iovec bytes{.iov_base = room.data(), .iov_len = what.size()};
    std::size_t received = 0;
    code = call(&bytes, 1, received);
    filler_.settle(what, received, into);
    into.charge = into.bytes;
    place_.counters.fragments.add(into.fragments.size());
    return code ? code : ended_ = send_to_gpu(into);
}

error_code copy_transport::send_to_gpu(loan const& from) noexcept
{
    // Fragments are joined where pages are adjacent: so are the copies.
    for (auto const& piece : from.fragments)
        if (auto const code = staging_->copy(piece.address, piece.size))
            return code;
    return staging_->flush();
}

error_code copy_transport::receive_into(landing const& destination, std::size_t size, std::size_t& placed)
{
    if (ended_)
        return ended_;
    if (destination.kind == memory_kind::host) {
        iovec bytes{.iov_base = destination.on_host(), .iov_len = std::min(size, most_per_call)};
        // The kernel takes bytes off the queue without a copy.
        return call(&bytes, 1, placed, destination.nowhere ? MSG_TRUNC : 0);
    }
    std::span<std::byte> room;
    if (auto const code = find_staging(destination.on, room))
        return code;
    iovec bytes{.iov_base = room.data(), .iov_len = std::min(size, room.size())};
    if (auto const code = call(&bytes, 1, placed))
        return code;
    auto const held = staging_->held();
    ended_ = staging_->copy(destination.address, placed, destination.backlog);
    if (ended_)
        lost_ += held;
    return ended_;
}

error_code copy_transport::flush_staging() noexcept
{
    if (ended_ || staging_ == nullptr)
        return ended_;
    auto const held = staging_->held();
    ended_ = staging_->flush();
    if (ended_)
        lost_ += held;
    return ended_;
}

error_code copy_transport::finish(std::size_t& lost) noexcept
{
    set_mark(own_mark_);
    // An error that an earlier operation has reported is not this one's.
    auto const had_ended = static_cast<bool>(ended_);
    auto const code = flush_staging();
    lost = std::exchange(lost_, 0);
    return had_ended && lost == 0 ? error_code{} : code;
}

// The kernel lets the mark reach half of a fixed receive buffer, and calls a socket readable whose window is closed.
void copy_transport::expect(landing const& destination, std::size_t missing) noexcept
{
    if (destination.nowhere || missing < least_mark)
        return set_mark(own_mark_);
    set_mark(static_cast<int>(std::min(missing, largest_mark)));
}

void copy_transport::set_mark(int bytes) noexcept
{
    if (bytes == mark_)
        return;
    if (mark_ == own_mark_) {
        int own = 1;
        socklen_t size = sizeof own;
        if (::getsockopt(socket_, SOL_SOCKET, SO_RCVLOWAT, &own, &size) != 0 || own >= bytes)
            return;
        mark_ = own_mark_ = own;
    }
    if (sys::setsockopt(socket_, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0)
        mark_ = bytes;
}

error_code copy_transport::find_staging(gpu_stream const& on, std::span<std::byte>& room)
{
    error_code code;
    if (staging_ != nullptr && !staging_->is_for(on))
        code = flush_staging();
    if (code)
        return code;
    if (staging_ == nullptr || staging_for_ != on.ordinal) {
        staging_ = make_staging(on.ordinal, code);
        staging_for_ = on.ordinal;
    }
    if (!code)
        room = staging_->room(on, code);
    lacks_staging_ = !code && room.empty();
    return lacks_staging_ ? error_code{asio::error::no_buffer_space} : code;
}

error_code copy_transport::call(iovec* bytes, std::size_t count, std::size_t& received, int flags) noexcept
{
    msghdr message{};
    message.msg_iov = bytes;
    message.msg_iovlen = count;
    std::size_t room = 0;
    for (auto const& one : std::span{bytes, count})
        room += one.iov_len;
    for (;;) {
        auto const answer = sys::recvmsg(socket_, &message, MSG_DONTWAIT | flags);
        place_.counters.receive_calls.add(1);
        if (answer < 0 && errno == EINTR)
            continue;
        if (answer < 0)
            return receive_error();
        received = static_cast<std::size_t>(answer);
        set_drained(received < room);
        place_.counters.host_bytes.add(received);
        return received > 0 ? error_code{} : error_code{asio::error::eof};
    }
}

bool copy_transport::notify_of_pages(int event)
{
    if (lacks_staging_)
        return staging_->notify(event);
    event_ = event;
    return pool_.notify(event);
}

void copy_transport::give_back(loan& from, bool /*hold*/) noexcept
{
    pool_.put(from.pages);
}

}  // namespace

std::unique_ptr<flow_transport> make_copy_transport(flow_place& place, int socket)
{
    return std::make_unique<copy_transport>(place, socket);
}

}  // namespace gpurx::detail
