// SPDX-License-Identifier: Apache-2.0
//
// devmem TCP: the NIC has written the bytes into the session's memory, recvmsg says where, setsockopt gives pages back.
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <new>
#include <utility>
#include <vector>

#include "devmem_cmsg.hpp"
#include "devmem_uapi.hpp"
#include "syscalls.hpp"
#include "token_ledger.hpp"
#include "transport.hpp"

namespace gpurx::detail {

namespace {

// A recvmsg that ends in the middle of a segment pays for tokens that it throws away again, so the control buffer is
// many segments (of at most 17 fragments) long.
constexpr std::size_t pieces_per_call = 512;
constexpr std::size_t most_pieces_per_call = 64 * pieces_per_call;
// What can arrive on the host in one call, and a limit to all bytes of one call: as much as the pieces make up.
constexpr std::size_t chunk_size = pieces_per_call * 4096;

error_code system_code(int number) noexcept
{
    return {number, boost::system::system_category()};
}

error_code protocol_error() noexcept
{
    return system_code(EPROTO);
}

// Not of a piece without bytes.
bool lies_in(device_span memory, devmem_piece const& piece) noexcept
{
    return piece.size > 0 && piece.offset < memory.size() && piece.size <= memory.size() - piece.offset;
}

class devmem_transport final : public flow_transport {
  public:
    devmem_transport(session_flow& place, int socket)
        : place_{place},
          socket_{socket},
          memory_{place.session().memory().span()},
          dmabuf_id_{place.session().dmabuf_id()},
          control_(devmem_control_size(pieces_per_call))
    {}
    devmem_transport(devmem_transport const&) = delete;
    devmem_transport& operator=(devmem_transport const&) = delete;
    ~devmem_transport() override
    {
        while (chunks_ != nullptr)
            chunks_ = std::move(chunks_->next);
    }

    error_code receive(std::size_t limit, loan& into) override;
    void give_back(loan& from, bool hold) noexcept override;
    void flush() noexcept override;

  private:
    // Bytes of one call by the way they came.
    struct tally {
        std::size_t device = 0;
        std::size_t resteered = 0;
        std::size_t linear = 0;
        std::size_t undelivered = 0;     // behind the end of the stream
        std::uint64_t stray_tokens = 0;  // of pages in no session's memory

        [[nodiscard]] std::size_t total() const noexcept { return device + resteered + linear + undelivered; }
    };

    void provide_chunk();
    // For all that one call can say.
    void make_room(loan& into) const;
    [[nodiscard]] ssize_t call(std::size_t limit, loan& into, std::size_t& control_size);
    [[nodiscard]] error_code deliver(std::span<std::byte const> control, std::size_t received, loan& into);
    void deliver_plain(std::size_t received, loan& into);
    void add_other(devmem_piece const& piece, loan& into, tally& sum);
    [[nodiscard]] fragment locate_linear(devmem_piece const& piece, tally& sum);
    [[nodiscard]] fragment locate(devmem_piece const& piece, loan& into, tally& sum);
    // Where the pieces of another binding lie; null: in no session of this process, or the stream has ended.
    [[nodiscard]] foreign_hold* hold_foreign(std::uint32_t dmabuf_id, loan& into);
    void count(tally const& sum, loan const& into) noexcept;
    // Hands the ledger's batch to the kernel, without the mutex.
    void hand_over(std::unique_lock<std::mutex> lock) noexcept;

    session_flow& place_;
    int socket_;
    device_span memory_;
    std::uint32_t dmabuf_id_;
    std::vector<std::byte> control_;
    std::unique_ptr<host_chunk> chunk_;  // what the next call offers for bytes on the host
    error_code ended_;                   // met behind bytes that were delivered first

    std::mutex mutex_;  // guards what follows
    std::unique_ptr<host_chunk> chunks_;
    token_ledger ledger_;
};

error_code devmem_transport::receive(std::size_t limit, loan& into)
{
    if (ended_)
        return ended_;
    // All that can fail comes first: nothing may be lost once the bytes have left the socket.
    provide_chunk();
    make_room(into);
    std::size_t control_size = 0;
    auto const received = call(limit, into, control_size);
    if (received > 0)
        return deliver(std::span{control_}.first(control_size), static_cast<std::size_t>(received), into);
    if (received == 0)
        return asio::error::eof;
    switch (errno) {
        case EAGAIN:
            return asio::error::would_block;
        case ENODEV:
            return errc::mixed_fragments;
        case uapi::etoosmall:
            return system_code(EMSGSIZE);
        default:
            return system_code(errno);
    }
}

void devmem_transport::provide_chunk()
{
    if (chunk_ != nullptr)
        return;
    {
        std::lock_guard const lock{mutex_};
        if (chunks_ != nullptr) {
            auto next = std::move(chunks_->next);
            chunk_ = std::exchange(chunks_, std::move(next));
            return;
        }
    }
    auto fresh = std::make_unique<host_chunk>();
    fresh->bytes = place_.session().memory().allocate_host(chunk_size);
    fresh->size = chunk_size;
    chunk_ = std::move(fresh);
}

void devmem_transport::make_room(loan& into) const
{
    auto const pieces = control_.size() / devmem_control_size(1);
    into.fragments.reserve(pieces);
    into.tokens.reserve(pieces);
}

ssize_t devmem_transport::call(std::size_t limit, loan& into, std::size_t& control_size)
{
    for (;;) {
        iovec bytes{.iov_base = chunk_->bytes.get(), .iov_len = std::min(limit, chunk_->size)};
        msghdr message{};
        message.msg_iov = &bytes;
        message.msg_iovlen = 1;
        message.msg_control = control_.data();
        message.msg_controllen = control_.size();
        auto const received = sys::recvmsg(socket_, &message, uapi::msg_sock_devmem | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        place_.counters.receive_calls.add(1);
        if (received >= 0) {
            control_size = std::min<std::size_t>(message.msg_controllen, control_.size());
            return received;
        }
        if (errno == uapi::etoosmall && control_.size() < devmem_control_size(most_pieces_per_call)) {
            control_.resize(control_.size() * 2);
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
    bool plain = true;
    while (reader.next(piece)) {
        plain = false;
        // What nearly all pieces are, with as few instructions as possible.
        if (piece.kind == devmem_piece::where::device && piece.dmabuf_id == dmabuf_id_ && lies_in(memory_, piece) &&
            sum.undelivered == 0) [[likely]] {
            into.append_token(piece.token);
            into.append({memory_.address() + piece.offset, piece.size, memory_.kind()});
            sum.device += piece.size;
            ++into.own_tokens;
        } else {
            add_other(piece, into, sum);
        }
    }
    if (plain && !reader.malformed()) {
        deliver_plain(received, into);
        return {};
    }
    if (reader.malformed() || sum.total() != received)
        ended_ = protocol_error();  // bytes we were not told about: the stream has a hole
    count(sum, into);
    if (sum.linear > 0)
        into.host = std::move(chunk_);
    return into.bytes > 0 ? error_code{} : ended_;
}

// Segments that did not land in device memory at all: a rule missed, or they came before it.
void devmem_transport::deliver_plain(std::size_t received, loan& into)
{
    into.append({reinterpret_cast<std::uintptr_t>(chunk_->bytes.get()), received, memory_kind::host});
    into.host = std::move(chunk_);
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
    if (!ended_ && piece.size > chunk_->size - sum.linear)
        ended_ = protocol_error();
    if (ended_)
        return {};
    auto* const address = chunk_->bytes.get() + sum.linear;
    sum.linear += piece.size;
    return {reinterpret_cast<std::uintptr_t>(address), piece.size, memory_kind::host};
}

// Its token goes back with the loan in any case.
fragment devmem_transport::locate(devmem_piece const& piece, loan& into, tally& sum)
{
    into.append_token(piece.token);
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
        ended_ = protocol_error();
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

void devmem_transport::count(tally const& sum, loan const& into) noexcept
{
    auto tokens = into.own_tokens + sum.stray_tokens;
    for (auto const& hold : into.foreign) {
        tokens += hold.tokens;
        hold.session->tokens_taken(hold.tokens);
    }
    place_.session().tokens_taken(into.own_tokens);
    auto& counters = place_.counters;
    counters.tokens_high_water.raise_to(counters.tokens_out.add(tokens));
    counters.device_bytes.add(sum.device);
    counters.resteered_bytes.add(sum.resteered);
    counters.linear_bytes.add(sum.linear);
    counters.fragments.add(into.fragments.size());
}

void devmem_transport::give_back(loan& from, bool hold) noexcept
{
    std::unique_lock lock{mutex_};
    std::uint64_t count = 0;
    for (auto range : from.tokens) {
        count += range.count;
        for (range = ledger_.add(range); range.count > 0; range = ledger_.add(range)) {
            hand_over(std::move(lock));
            lock = std::unique_lock{mutex_};
        }
    }
    if (from.host != nullptr) {
        from.host->next = std::move(chunks_);
        chunks_ = std::move(from.host);
    }
    place_.counters.tokens_out.subtract(count);
    place_.session().tokens_returned(from.own_tokens);
    for (auto const& foreign : from.foreign)
        foreign.session->tokens_returned(foreign.tokens);
    if (!hold)
        hand_over(std::move(lock));
    else if (!ledger_.empty())
        set_gathered(true);
}

void devmem_transport::flush() noexcept
{
    hand_over(std::unique_lock{mutex_});
}

void devmem_transport::hand_over(std::unique_lock<std::mutex> lock) noexcept
{
    if (ledger_.empty())
        return;
    token_batch batch;
    ledger_.take(batch);
    set_gathered(false);
    lock.unlock();

    auto const tokens = batch.used();
    auto const accepted = sys::setsockopt(socket_, SOL_SOCKET, uapi::so_devmem_dontneed, tokens.data(),
                                          static_cast<socklen_t>(tokens.size_bytes()));
    auto& counters = place_.counters;
    counters.release_calls.add(1);
    // Neither is tried again: which of the pages the kernel took back is not known, and asking for the wrong ones could
    // free pages that were lent out anew meanwhile. They return when the socket closes (xarray tokens) or the memory is
    // unbound (array tokens).
    if (accepted < 0)
        counters.release_failures.add(1);
    else if (static_cast<std::size_t>(accepted) < batch.pages)
        counters.release_shortfalls.add(batch.pages - static_cast<std::size_t>(accepted));
}

}  // namespace

std::unique_ptr<flow_transport> make_devmem_transport(session_flow& place, int socket)
{
    return std::make_unique<devmem_transport>(place, socket);
}

}  // namespace gpurx::detail
