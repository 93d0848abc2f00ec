// SPDX-License-Identifier: Apache-2.0
#include "ring.hpp"

#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>

#include "base/failure.hpp"

namespace gpurx::doctor::tap {

namespace {

constexpr std::size_t block_size = 64 << 10;
// Has no meaning with blocks, but must be a part of one.
constexpr std::size_t frame_size = 2048;

void set(int socket, int name, void const* value, socklen_t size, char const* operation, std::string const& object)
{
    if (::setsockopt(socket, SOL_PACKET, name, value, size) != 0)
        detail::fail(errno, operation, object, errno == ENOMEM ? "reduce --buffer" : "");
}

// The kernel writes the status last, and reads it first.
bool is_filled(tpacket_block_desc const& block)
{
    std::atomic_ref<std::uint32_t const> const status{block.hdr.bh1.block_status};
    return (status.load(std::memory_order_acquire) & TP_STATUS_USER) != 0;
}

void give_back(tpacket_block_desc& block)
{
    std::atomic_ref<std::uint32_t>{block.hdr.bh1.block_status}.store(TP_STATUS_KERNEL, std::memory_order_release);
}

tapped_packet packet_at(std::byte const* where)
{
    auto const& header = *reinterpret_cast<tpacket3_hdr const*>(where);
    auto const& link = *reinterpret_cast<sockaddr_ll const*>(where + TPACKET_ALIGN(sizeof header));
    return {.captured = {where + header.tp_mac, header.tp_snaplen},
            .length = header.tp_len,
            .when = std::chrono::seconds{header.tp_sec} + moment{header.tp_nsec},
            .outgoing = link.sll_pkttype == PACKET_OUTGOING};
}

}  // namespace

packet_ring::packet_ring(std::string const& interface, unsigned index, std::size_t size,
                         std::span<sock_filter const> program)
    // Protocol 0: packets come from bind() on, when all is in place.
    : interface_{interface}, socket_{::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0)}
{
    if (!socket_)
        detail::fail(errno, "open packet socket on", interface, errno == EPERM ? "this needs CAP_NET_RAW" : "");
    map(size);
    try {
        set_filter(program);
        sockaddr_ll where{};
        where.sll_family = AF_PACKET;
        where.sll_protocol = htons(ETH_P_ALL);
        where.sll_ifindex = static_cast<int>(index);
        if (::bind(socket_.get(), reinterpret_cast<sockaddr const*>(&where), sizeof where) != 0)
            detail::fail(errno, "bind packet socket to", interface);
    } catch (...) {
        ::munmap(blocks_, count_ * block_size);
        throw;
    }
}

packet_ring::~packet_ring()
{
    ::munmap(blocks_, count_ * block_size);
}

void packet_ring::map(std::size_t size)
{
    int const version = TPACKET_V3;
    set(socket_.get(), PACKET_VERSION, &version, sizeof version, "set TPACKET_V3 on", interface_);
    count_ = size / block_size;
    tpacket_req3 request{};
    request.tp_block_size = block_size;
    request.tp_block_nr = static_cast<unsigned>(count_);
    request.tp_frame_size = frame_size;
    request.tp_frame_nr = static_cast<unsigned>(count_ * (block_size / frame_size));
    request.tp_retire_blk_tov = static_cast<unsigned>(patience.count());
    set(socket_.get(), PACKET_RX_RING, &request, sizeof request, "make packet ring for", interface_);
    auto* const mapped = ::mmap(nullptr, count_ * block_size, PROT_READ | PROT_WRITE, MAP_SHARED, socket_.get(), 0);
    if (mapped == MAP_FAILED)
        detail::fail(errno, "map packet ring for", interface_);
    blocks_ = static_cast<std::byte*>(mapped);
}

void packet_ring::take(std::function<void(tapped_packet const&)> const& taker)
{
    // Once round at most, however fast more comes.
    for (std::size_t i = 0; i < count_; ++i) {
        auto& block = *reinterpret_cast<tpacket_block_desc*>(blocks_ + next_ * block_size);
        if (!is_filled(block))
            return;
        auto const* at = reinterpret_cast<std::byte const*>(&block) + block.hdr.bh1.offset_to_first_pkt;
        for (unsigned left = block.hdr.bh1.num_pkts; left > 0; --left) {
            taker(packet_at(at));
            at += reinterpret_cast<tpacket3_hdr const*>(at)->tp_next_offset;
        }
        give_back(block);
        next_ = (next_ + 1) % count_;
    }
}

void packet_ring::set_filter(std::span<sock_filter const> program)
{
    sock_fprog const all{static_cast<unsigned short>(program.size()), const_cast<sock_filter*>(program.data())};
    if (::setsockopt(socket_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &all, sizeof all) != 0)
        detail::fail(errno, "attach filter to packet socket on", interface_,
                     errno == ENOMEM ? "choose fewer flows, or raise net.core.optmem_max" : "");
}

int packet_ring::take_error() noexcept
{
    int error = 0;
    socklen_t size = sizeof error;
    return ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

ring_counts packet_ring::counts() noexcept
{
    // Each call tells what came since the last.
    tpacket_stats_v3 since{};
    socklen_t size = sizeof since;
    if (::getsockopt(socket_.get(), SOL_PACKET, PACKET_STATISTICS, &since, &size) == 0) {
        counts_.packets += since.tp_packets;
        counts_.dropped += since.tp_drops;
    }
    return counts_;
}

}  // namespace gpurx::doctor::tap
