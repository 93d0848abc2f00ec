// SPDX-License-Identifier: Apache-2.0
//
// Ordinary TCP: the kernel copies the bytes into pages of the session's memory, or straight to where they are wanted.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <cerrno>

#include "page_pool.hpp"
#include "syscalls.hpp"
#include "transport.hpp"

namespace gpurx::detail {

namespace {

// Offered to one recvmsg, unless the limit is lower or pages are short.
constexpr std::size_t bytes_per_call = 512 << 10;
// At the smallest page size, and one for the rest of the page in use.
constexpr std::size_t pages_per_call = bytes_per_call / 4096 + 1;

error_code last_error() noexcept
{
    if (errno == EAGAIN)
        return asio::error::would_block;
    return {errno, boost::system::system_category()};
}

class copy_transport final : public flow_transport {
  public:
    copy_transport(session_flow& place, int socket)
        : place_{place}, socket_{socket}, memory_{place.session().memory().span()}, pool_{place.session().pages()}
    {}
    copy_transport(copy_transport const&) = delete;
    copy_transport& operator=(copy_transport const&) = delete;
    ~copy_transport() override
    {
        if (event_ >= 0)
            pool_.forget(event_);
        if (filling_)
            pool_.put({&page_, 1});
    }

    error_code receive(std::size_t limit, loan& into) override;
    bool writes_in_place() const noexcept override { return true; }
    error_code receive_into(std::byte* destination, std::size_t size, std::size_t& placed) override;
    bool notify_of_pages(int event) override;
    void give_back(loan& from, bool hold) noexcept override;

  private:
    // What one recvmsg may write: the rest of the page in use, then fresh pages.
    struct offer {
        std::array<std::uint32_t, pages_per_call> pages;
        std::array<iovec, pages_per_call> bytes;
        std::size_t count = 0;
    };

    void prepare(std::size_t limit, offer& what) noexcept;
    void settle(offer const& what, std::size_t received, loan& into);
    [[nodiscard]] std::byte* page_address(std::uint32_t page) const noexcept;
    [[nodiscard]] ssize_t call(iovec* bytes, std::size_t count) noexcept;

    session_flow& place_;
    int socket_;
    device_span memory_;
    page_pool& pool_;
    int event_ = -1;

    // The page that is partly filled, so that small receives share one; the flow holds a reference of its own to it.
    bool filling_ = false;
    std::uint32_t page_ = 0;
    std::size_t filled_ = 0;  // less than a page
};

error_code copy_transport::receive(std::size_t limit, loan& into)
{
    // First, so that nothing can fail once the bytes have left the socket.
    into.fragments.reserve(pages_per_call);
    into.pages.reserve(pages_per_call);
    offer what;
    prepare(std::min(limit, bytes_per_call), what);
    if (what.count == 0)
        return asio::error::no_buffer_space;
    auto const received = call(what.bytes.data(), what.count);
    auto const code = received < 0 ? last_error() : received == 0 ? error_code{asio::error::eof} : error_code{};
    settle(what, static_cast<std::size_t>(std::max<ssize_t>(received, 0)), into);
    return code;
}

error_code copy_transport::receive_into(std::byte* destination, std::size_t size, std::size_t& placed)
{
    iovec bytes{.iov_base = destination, .iov_len = size};
    auto const received = call(&bytes, 1);
    if (received < 0)
        return last_error();
    if (received == 0)
        return asio::error::eof;
    placed = static_cast<std::size_t>(received);
    place_.counters.host_bytes.add(placed);
    return {};
}

std::byte* copy_transport::page_address(std::uint32_t page) const noexcept
{
    return reinterpret_cast<std::byte*>(memory_.address() + page * pool_.page_size());
}

void copy_transport::prepare(std::size_t limit, offer& what) noexcept
{
    auto const page_size = pool_.page_size();
    auto const add = [&](std::uint32_t page, std::size_t from) {
        auto const size = std::min(page_size - from, limit);
        what.pages[what.count] = page;
        what.bytes[what.count++] = {.iov_base = page_address(page) + from, .iov_len = size};
        limit -= size;
    };
    if (filling_) {
        if (filled_ > 0 && pool_.is_sole_owner(page_))
            filled_ = 0;
        add(page_, filled_);
    }
    std::array<std::uint32_t, pages_per_call> fresh;
    auto const wanted = std::min((limit + page_size - 1) / page_size, pages_per_call - what.count);
    for (auto const page : std::span{fresh}.first(pool_.take(std::span{fresh}.first(wanted))))
        add(page, 0);
}

void copy_transport::settle(offer const& what, std::size_t received, loan& into)
{
    auto const page_size = pool_.page_size();
    auto const kind = memory_.kind();
    place_.counters.host_bytes.add(received);
    std::size_t used = 0;
    for (; received > 0; ++used) {
        auto const page = what.pages[used];
        auto const& bytes = what.bytes[used];
        auto const size = std::min(bytes.iov_len, received);
        into.append({reinterpret_cast<std::uintptr_t>(bytes.iov_base), size, kind});
        into.pages.push_back(page);
        received -= size;
        // A page that is full now passes from the flow to the loan; any other has both as its holders.
        filled_ = static_cast<std::size_t>(static_cast<std::byte*>(bytes.iov_base) - page_address(page)) + size;
        page_ = page;
        filling_ = filled_ < page_size;
        if (filling_)
            pool_.add_references({&page, 1});
    }
    place_.counters.fragments.add(into.fragments.size());
    // The page in use stays where it is if nothing was received.
    if (used == 0 && filling_)
        used = 1;
    pool_.put(std::span{what.pages}.subspan(used, what.count - used));
}

ssize_t copy_transport::call(iovec* bytes, std::size_t count) noexcept
{
    msghdr message{};
    message.msg_iov = bytes;
    message.msg_iovlen = count;
    for (;;) {
        auto const received = sys::recvmsg(socket_, &message, MSG_DONTWAIT);
        place_.counters.receive_calls.add(1);
        if (received >= 0 || errno != EINTR)
            return received;
    }
}

bool copy_transport::notify_of_pages(int event)
{
    event_ = event;
    return pool_.notify(event);
}

void copy_transport::give_back(loan& from, bool /*hold*/) noexcept
{
    pool_.put(from.pages);
}

}  // namespace

std::unique_ptr<flow_transport> make_copy_transport(session_flow& place, int socket)
{
    return std::make_unique<copy_transport>(place, socket);
}

}  // namespace gpurx::detail
