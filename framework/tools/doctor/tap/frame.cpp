// SPDX-License-Identifier: Apache-2.0
#include "frame.hpp"

#include <fmt/format.h>
#include <linux/if_ether.h>
#include <netinet/in.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>

namespace gpurx::doctor::tap {

namespace {

constexpr std::size_t shortest_v4 = 20;
constexpr std::size_t shortest_v6 = 40;
constexpr std::size_t shortest_tcp = 20;

// Numbers in network order. Whoever asks has looked at the size.
class packet_bytes {
  public:
    explicit packet_bytes(std::span<std::byte const> all) : all_{all} {}

    [[nodiscard]] std::size_t size() const { return all_.size(); }
    [[nodiscard]] packet_bytes from(std::size_t where) const { return packet_bytes{all_.subspan(where)}; }
    [[nodiscard]] packet_bytes first(std::size_t count) const { return packet_bytes{all_.first(count)}; }
    [[nodiscard]] std::uint8_t u8(std::size_t where) const { return std::to_integer<std::uint8_t>(all_[where]); }
    [[nodiscard]] std::uint16_t u16(std::size_t where) const
    {
        return static_cast<std::uint16_t>(u8(where) << 8 | u8(where + 1));
    }
    [[nodiscard]] std::uint32_t u32(std::size_t where) const
    {
        return std::uint32_t{u16(where)} << 16 | u16(where + 2);
    }
    [[nodiscard]] socket_end end(bool v6, std::size_t where) const
    {
        socket_end made{.v6 = v6};
        for (std::size_t i = 0; i < (v6 ? 16U : 4U); ++i)
            made.address[i] = u8(where + i);
        return made;
    }

  private:
    std::span<std::byte const> all_;
};

// The fields of the IP header.
struct packet {
    socket_end source;
    socket_end destination;
    std::size_t header = 0;
    std::size_t size = 0;  // with the header; 0: more than fits its field
    std::optional<std::uint16_t> id{};
};

std::optional<packet> parse_v4(packet_bytes ip)
{
    if (ip.size() < shortest_v4 || ip.u8(0) >> 4 != 4 || ip.u8(9) != IPPROTO_TCP)
        return std::nullopt;
    return packet{ip.end(false, 12), ip.end(false, 16), std::size_t{ip.u8(0) & 0xfU} * 4, ip.u16(2), ip.u16(4)};
}

std::optional<packet> parse_v6(packet_bytes ip)
{
    if (ip.size() < shortest_v6 || ip.u8(0) >> 4 != 6 || ip.u8(6) != IPPROTO_TCP)
        return std::nullopt;
    auto const payload = ip.u16(4);
    return packet{ip.end(true, 8), ip.end(true, 24), shortest_v6, payload == 0 ? 0 : shortest_v6 + payload};
}

void read_options(packet_bytes options, segment& into)
{
    constexpr std::uint8_t end = 0;
    constexpr std::uint8_t nothing = 1;
    constexpr std::uint8_t window_scale = 3;
    constexpr std::uint8_t timestamps = 8;
    for (std::size_t at = 0; at < options.size() && options.u8(at) != end;) {
        if (options.u8(at) == nothing) {
            ++at;
            continue;
        }
        if (at + 2 > options.size())
            return;
        auto const size = options.u8(at + 1);
        if (size < 2 || at + size > options.size())
            return;
        if (options.u8(at) == window_scale && size == 3)
            into.window_scale = std::min<std::uint8_t>(options.u8(at + 2), 14);
        if (options.u8(at) == timestamps && size == 10)
            into.timestamp = options.u32(at + 2);
        at += size;
    }
}

}  // namespace

std::string to_string(socket_end const& end)
{
    namespace ip = boost::asio::ip;
    if (end.v6)
        return fmt::format("[{}]:{}", ip::make_address_v6(end.address).to_string(), end.port);
    ip::address_v4::bytes_type bytes{};
    std::copy_n(end.address.begin(), bytes.size(), bytes.begin());
    return fmt::format("{}:{}", ip::make_address_v4(bytes).to_string(), end.port);
}

std::optional<segment> parse_frame(std::span<std::byte const> captured, std::size_t length)
{
    packet_bytes const frame{captured};
    if (frame.size() < ETH_HLEN)
        return std::nullopt;
    auto const type = frame.u16(12);
    auto const ip = frame.from(ETH_HLEN);
    auto const found = type == ETH_P_IP ? parse_v4(ip) : type == ETH_P_IPV6 ? parse_v6(ip) : std::nullopt;
    if (!found || ip.size() < found->header + shortest_tcp || found->header < shortest_v4)
        return std::nullopt;
    auto const tcp = ip.from(found->header);
    auto const tcp_header = std::size_t{tcp.u8(12)} / 16 * 4;
    auto const headers = ETH_HLEN + found->header + tcp_header;
    // A short frame is padded on the wire; one that is put together of many may be too long for the IP header to say.
    auto const end = found->size != 0 ? ETH_HLEN + found->size : length;
    if (tcp_header < shortest_tcp || tcp.size() < tcp_header || end < headers)
        return std::nullopt;

    segment read{found->source, found->destination};
    read.source.port = tcp.u16(0);
    read.destination.port = tcp.u16(2);
    read.id = found->id;
    read.sequence = tcp.u32(4);
    read.acknowledgement = tcp.u32(8);
    auto const flags = tcp.u8(13);
    read.fin = (flags & 0x01) != 0;
    read.syn = (flags & 0x02) != 0;
    read.rst = (flags & 0x04) != 0;
    read.ack = (flags & 0x10) != 0;
    read.window = tcp.u16(14);
    read_options(tcp.first(tcp_header).from(shortest_tcp), read);
    read.payload = static_cast<std::uint32_t>(end - headers);
    read.headers = static_cast<std::uint32_t>(headers);
    read.readable = read.payload > 0 && frame.size() > headers;
    return read;
}

}  // namespace gpurx::doctor::tap
