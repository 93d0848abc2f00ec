// SPDX-License-Identifier: Apache-2.0
//
// devmem TCP: the NIC has written the bytes into the session's memory, recvmsg says where, setsockopt gives pages back.
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "cuda/gpu_work.hpp"
#include "devmem_cmsg.hpp"
#include "devmem_uapi.hpp"
#include "host_chunks.hpp"
#include "loan.hpp"
#include "transport.hpp"

namespace gpurx::detail {

namespace {

// A recvmsg that ends in the middle of a segment pays for tokens that it throws away again, so the control buffer is
// many segments long, and never less than one.
constexpr std::size_t pieces_per_call = 512;
constexpr std::size_t most_pieces_per_call = 64 * pieces_per_call;

// Not of a piece without bytes, and not where offset and size overflow.
bool lies_in(memory_span memory, devmem_piece const& piece) noexcept
{
    auto const end = piece.offset + piece.size;
    return piece.offset < end && end <= memory.size();
}

class devmem_transport final : public flow_transport {
  public:
    devmem_transport(flow_place& place, int socket)
        : place_{place},
          socket_{socket},
          memory_{place.session().memory().span()},
          page_shift_{std::countr_zero(place.session().nic_page_size())},
          dmabuf_id_{place.session().dmabuf_id()},
          all_xarray_{!place.session().has_array_tokens()},
          control_(devmem_control_size(pieces_)),
          host_{place}
    {}
    devmem_transport(devmem_transport const&) = delete;
    devmem_transport& operator=(devmem_transport const&) = delete;

    error_code receive(std::size_t limit, loan& into) override;
    void give_back(loan& from, bool hold) noexcept override;
    void flush() noexcept override;

  private:
    // Bytes of one call by the way they came.
    struct tally {
        std::size_t received = 0;
        std::size_t device = 0;
        std::size_t resteered = 0;
        std::size_t linear = 0;
        std::size_t undelivered = 0;      // behind the end of the stream
        std::uint64_t stray_tokens = 0;   // of pages in no session's memory
        std::uint64_t own_pages = 0;      // of the session, each once where its fragments come together
        std::uint64_t marked_tokens = 0;  // from uapi::xarray_token on
        std::uint64_t last_offset = ~std::uint64_t{0};

        [[nodiscard]] std::size_t total() const noexcept { return device + resteered + linear + undelivered; }
    };

    // For all that one call can say.
    void make_room(loan& into) const;
    [[nodiscard]] std::size_t control_size_for(std::size_t limit) const noexcept;
    [[nodiscard]] ssize_t call(std::size_t limit, loan& into, std::size_t& control_size);
    [[nodiscard]] error_code deliver(std::span<std::byte const> control, std::size_t received, loan& into);
    // Pieces in the session's memory, up to the first that is not; returns how many.
    [[gnu::noinline]] std::size_t deliver_own(devmem_cmsg_reader& reader, loan& into, tally& sum) const;
    void deliver_plain(std::size_t received, loan& into);
    void add_other(devmem_piece const& piece, loan& into, tally& sum);
    [[nodiscard]] fragment locate_linear(devmem_piece const& piece, tally& sum);
    [[nodiscard]] fragment locate(devmem_piece const& piece, loan& into, tally& sum);
    // The hold on the session that the pieces of another binding lie in; null: in none of this process, or the stream
    // has ended.
    [[nodiscard]] foreign_hold* hold_foreign(std::uint32_t dmabuf_id, loan& into);
    void count(tally const& sum, loan& into) noexcept;
    // Adds them to the batch, which is handed over where it is full, and, without `hold`, at the end.
    void gather(std::span<token_range const> ranges, bool hold) noexcept;
    // Hands the batch to the kernel, without the mutex.
    void hand_over(std::unique_lock<std::mutex> lock) noexcept;
    // Hands tokens to the kernel as they are, as many as calls can take; returns the others.
    [[nodiscard]] std::span<token_range const> hand_over(std::span<token_range const> ranges,
                                                         std::uint64_t tokens) noexcept;
    void call_dontneed(void const* tokens, std::size_t entries, std::size_t pages) noexcept;

    flow_place& place_;
    int socket_;
    memory_span memory_;
    int page_shift_;
    std::uint32_t dmabuf_id_;
    bool all_xarray_;                       // tokens, and the bit that says so means nothing
    std::size_t pieces_ = pieces_per_call;  // that control_ has room for
    std::vector<std::byte> control_;
    host_chunks host_;
    error_code ended_;  // met behind bytes that were delivered first

    std::mutex mutex_;  // guards what follows
    release_batch batch_;
};

error_code devmem_transport::receive(std::size_t limit, loan& into)
{
    if (ended_)
        return ended_;
    // All that can fail comes first: nothing may be lost once the bytes have left the socket.
    host_.provide();
    make_room(into);
    std::size_t control_size = 0;
    auto const received = call(limit, into, control_size);
    if (received > 0)
        return deliver(std::span{control_}.first(control_size), static_cast<std::size_t>(received), into);
    return received == 0 ? error_code{asio::error::eof} : error_of_recvmsg(errno);
}

void devmem_transport::make_room(loan& into) const
{
    into.fragments.reserve(pieces_);
    into.tokens.reserve(pieces_);
}

// Fragments take a page each, or less: what the limit has no page for is not asked for.
std::size_t devmem_transport::control_size_for(std::size_t limit) const noexcept
{
    return devmem_control_size(std::clamp(limit >> page_shift_, pieces_per_segment, pieces_));
}

ssize_t devmem_transport::call(std::size_t limit, loan& into, std::size_t& control_size)
{
    for (auto offered = control_size_for(limit);;) {
        iovec bytes{.iov_base = host_.place(), .iov_len = std::min(limit, host_.room())};
        msghdr message{};
        message.msg_iov = &bytes;
        message.msg_iovlen = 1;
        message.msg_control = control_.data();
        message.msg_controllen = offered;
        auto const received = sys::recvmsg(socket_, &message, uapi::msg_sock_devmem | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        place_.counters.receive_calls.add(1);
        if (received >= 0) {
            control_size = std::min<std::size_t>(message.msg_controllen, offered);
            set_drained(static_cast<std::size_t>(received) < bytes.iov_len &&
                        control_size + devmem_control_size(1) <= offered);
            return received;
        }
        if (errno == uapi::etoosmall && offered < control_.size()) {
            offered = control_.size();
        } else if (errno == uapi::etoosmall && offered < devmem_control_size(most_pieces_per_call)) {
            control_.resize(devmem_control_size(pieces_ * 2));
            pieces_ *= 2;
            offered = control_.size();
            make_room(into);
        } else if (errno != EINTR) {
            return received;
        }
    }
}

error_code devmem_transport::deliver(std::span<std::byte const> control, std::size_t received, loan& into)
{
    devmem_cmsg_reader reader{control};
    devmem_piece piece;
    tally sum;
    sum.received = received;
    bool plain = true;
    for (;;) {
        if (!ended_ && deliver_own(reader, into, sum) > 0)
            plain = false;
        if (!reader.next(piece))
            break;
        plain = false;
        add_other(piece, into, sum);
    }
    if (plain && !reader.malformed()) {
        deliver_plain(received, into);
        return {};
    }
    if (reader.malformed() || sum.total() != received)
        ended_ = errno_code(EPROTO);  // bytes we were not told about: the stream has a hole
    if (ended_)
        set_drained(false);  // what is to be told next is known without the socket
    count(sum, into);
    into.charge = (sum.own_pages << page_shift_) + sum.linear + sum.resteered;
    if (sum.linear > 0)
        host_.share(into, sum.linear);
    return into.bytes > 0 ? error_code{} : ended_;
}

// Nearly all pieces come through here, with as few instructions as possible: what the loop changes is seen by nobody
// else, the lists have room for all of it (make_room()), and the function is no part of a larger one, so that it fits
// into registers.
std::size_t devmem_transport::deliver_own(devmem_cmsg_reader& reader, loan& into, tally& sum) const
{
    auto const memory = memory_;
    auto const dmabuf_id = dmabuf_id_;
    auto const page_size = std::uint64_t{1} << page_shift_;
    auto last_offset = sum.last_offset;
    std::uint64_t shared_pages = 0;  // that the piece before lies in, too
    std::uint64_t marked_tokens = 0;
    std::size_t bytes = 0;
    auto* fragments = into.fragments.end();
    std::uintptr_t last_end = 0;
    auto* ranges = into.tokens.end();
    token_range tokens;
    auto const count = reader.take_on_device([&](devmem_piece const& piece) {
        if (piece.dmabuf_id != dmabuf_id || !lies_in(memory, piece))
            return false;
        bytes += piece.size;
        if ((piece.offset ^ last_offset) < page_size)
            ++shared_pages;
        last_offset = piece.offset;
        marked_tokens += piece.token >= uapi::xarray_token ? 1 : 0;
        if (!tokens.join({piece.token, 1})) {
            if (tokens.count > 0)
                *ranges++ = tokens;
            tokens = {piece.token, 1};
        }
        auto const address = memory.address() + piece.offset;
        if (address == last_end)
            fragments[-1].size += piece.size;
        else
            *fragments++ = {address, piece.size, memory.kind()};
        last_end = address + piece.size;
        return true;
    });
    if (count == 0)
        return 0;
    *ranges++ = tokens;
    into.tokens.extend_to(ranges);
    into.fragments.extend_to(fragments);
    into.bytes += bytes;
    into.own_tokens += count;
    sum.device += bytes;
    sum.own_pages += count - shared_pages;
    sum.last_offset = last_offset;
    sum.marked_tokens += marked_tokens;
    return count;
}

// Segments that did not land in device memory at all: a rule missed, or they came before it.
void devmem_transport::deliver_plain(std::size_t received, loan& into)
{
    host_.move_into_reach(received);
    into.append({reinterpret_cast<std::uintptr_t>(host_.place()), received, memory_kind::host});
    into.charge = received;
    host_.share(into, received);
    place_.counters.host_bytes.add(received);
    place_.counters.fragments.add(1);
}

// Linear payload, memory of another session, and what ends the stream; from there on nothing is delivered.
void devmem_transport::add_other(devmem_piece const& piece, loan& into, tally& sum)
{
    auto const address =
        piece.kind == devmem_piece::where::linear ? locate_linear(piece, sum) : locate(piece, into, sum);
    if (ended_)
        sum.undelivered += piece.size;
    else if (piece.size > 0)
        into.append(address);
}

fragment devmem_transport::locate_linear(devmem_piece const& piece, tally& sum)
{
    if (!ended_ && piece.size > host_.room() - sum.linear)
        ended_ = errno_code(EPROTO);
    if (ended_)
        return {};
    if (sum.linear == 0)
        host_.move_into_reach(sum.received);
    auto* const address = host_.place() + sum.linear;
    sum.linear += piece.size;
    return {reinterpret_cast<std::uintptr_t>(address), piece.size, memory_kind::host};
}

// Its token goes back with the loan in any case.
fragment devmem_transport::locate(devmem_piece const& piece, loan& into, tally& sum)
{
    into.append_token(piece.token);
    sum.marked_tokens += piece.token >= uapi::xarray_token ? 1 : 0;
    auto memory = memory_;
    auto* bytes = &sum.device;
    if (piece.dmabuf_id == dmabuf_id_) {
        ++into.own_tokens;
    } else if (auto* const hold = hold_foreign(piece.dmabuf_id, into)) {
        ++hold->tokens;
        memory = hold->session->memory().span();
        bytes = &sum.resteered;
    } else {
        ++sum.stray_tokens;
        if (!ended_)
            ended_ = errc::foreign_memory;
    }
    if (!ended_ && piece.size > 0 && !lies_in(memory, piece))
        ended_ = errno_code(EPROTO);
    if (!ended_)
        *bytes += piece.size;
    return {memory.address() + piece.offset, piece.size, memory.kind()};
}

foreign_hold* devmem_transport::hold_foreign(std::uint32_t dmabuf_id, loan& into)
{
    auto const known = std::ranges::find(into.foreign, dmabuf_id, &foreign_hold::dmabuf_id);
    if (known != into.foreign.end())
        return &*known;
    auto session = session_state::find_binding(dmabuf_id);
    if (session == nullptr)
        return nullptr;
    try {
        into.foreign.push_back({.session = std::move(session), .dmabuf_id = dmabuf_id, .tokens = 0});
    } catch (std::bad_alloc const&) {
        // The bytes have left the socket: to go on without them would leave a hole in the stream.
        ended_ = make_error_code(boost::system::errc::not_enough_memory);
        return nullptr;
    }
    return &into.foreign.back();
}

void devmem_transport::count(tally const& sum, loan& into) noexcept
{
    into.token_count = into.own_tokens + sum.stray_tokens;
    for (auto const& hold : into.foreign) {
        into.token_count += hold.tokens;
        hold.session->tokens_taken(hold.tokens);
    }
    place_.session().tokens_taken(into.own_tokens);
    auto& counters = place_.counters;
    counters.tokens_high_water.raise_to(counters.tokens_out.add(into.token_count));
    counters.xarray_tokens.add(all_xarray_ ? into.token_count : sum.marked_tokens);
    counters.device_bytes.add(sum.device);
    if (sum.resteered + sum.linear > 0) {
        counters.resteered_bytes.add(sum.resteered);
        counters.linear_bytes.add(sum.linear);
    }
    counters.fragments.add(into.fragments.size());
}

void devmem_transport::give_back(loan& from, bool hold) noexcept
{
    std::span<token_range const> rest = from.tokens;
    // Nothing has been gathered: a loan's tokens are as the kernel wants them.
    if (!hold && !gathered())
        rest = hand_over(rest, from.token_count);
    if (!rest.empty())
        gather(rest, hold);
    if (from.host != nullptr)
        host_.let_go(std::exchange(from.host, nullptr));
    place_.counters.tokens_out.subtract(from.token_count);
    place_.session().tokens_returned(from.own_tokens);
    for (auto const& foreign : from.foreign)
        foreign.session->tokens_returned(foreign.tokens);
}

void devmem_transport::gather(std::span<token_range const> ranges, bool hold) noexcept
{
    std::unique_lock lock{mutex_};
    for (auto range : ranges) {
        for (range = batch_.add(range); range.count > 0; range = batch_.add(range)) {
            hand_over(std::move(lock));
            lock = std::unique_lock{mutex_};
        }
    }
    if (!hold)
        hand_over(std::move(lock));
    else if (!batch_.empty())
        set_gathered(true);
}

void devmem_transport::flush() noexcept
{
    hand_over(std::unique_lock{mutex_});
}

void devmem_transport::hand_over(std::unique_lock<std::mutex> lock) noexcept
{
    if (batch_.empty())
        return;
    token_batch taken;
    batch_.take(taken);
    set_gathered(false);
    lock.unlock();
    call_dontneed(taken.tokens.data(), taken.entries, taken.pages);
}

std::span<token_range const> devmem_transport::hand_over(std::span<token_range const> ranges,
                                                         std::uint64_t tokens) noexcept
{
    static_assert(sizeof(token_range) == sizeof(uapi::dmabuf_token) &&
                  offsetof(token_range, first) == offsetof(uapi::dmabuf_token, token_start) &&
                  offsetof(token_range, count) == offsetof(uapi::dmabuf_token, token_count));
    if (ranges.size() <= uapi::max_dontneed_entries && tokens <= uapi::max_dontneed_pages) {
        if (!ranges.empty())
            call_dontneed(ranges.data(), ranges.size(), tokens);
        return {};
    }
    while (!ranges.empty()) {
        auto const most = std::min<std::size_t>(ranges.size(), uapi::max_dontneed_entries);
        std::size_t entries = 0;
        std::size_t pages = 0;
        while (entries < most && pages + ranges[entries].count <= uapi::max_dontneed_pages)
            pages += ranges[entries++].count;
        if (entries == 0)
            break;  // a range has to be divided
        call_dontneed(ranges.data(), entries, pages);
        ranges = ranges.subspan(entries);
    }
    return ranges;
}

void devmem_transport::call_dontneed(void const* tokens, std::size_t entries, std::size_t pages) noexcept
{
    auto const accepted = sys::setsockopt(socket_, SOL_SOCKET, uapi::so_devmem_dontneed, tokens,
                                          static_cast<socklen_t>(entries * sizeof(uapi::dmabuf_token)));
    auto& counters = place_.counters;
    counters.release_calls.add(1);
    // A call that fails has done nothing, and is not tried again: its pages return when the socket closes. Tokens that
    // are not out are skipped by the kernel; which ones, it does not say, and to ask again could give back pages that
    // were lent out anew meanwhile.
    if (accepted < 0)
        counters.release_failures.add(1);
    else if (static_cast<std::size_t>(accepted) < pages)
        counters.release_shortfalls.add(pages - static_cast<std::size_t>(accepted));
}

}  // namespace

error_code error_of_recvmsg(int error) noexcept
{
    switch (error) {
        case EAGAIN:
            return asio::error::would_block;
        case ENODEV:
            return errc::mixed_fragments;
        case uapi::etoosmall:
            return errno_code(EMSGSIZE);
        case ENOBUFS:  // would say that a page is lacking
            return errno_code(ENOMEM);
        default:
            return errno_code(error);
    }
}

std::unique_ptr<flow_transport> make_devmem_transport(flow_place& place, int socket)
{
    return std::make_unique<devmem_transport>(place, socket);
}

}  // namespace gpurx::detail
