// SPDX-License-Identifier: Apache-2.0
//
// Frames for tests of the tap.
#pragma once

#include <linux/if_ether.h>

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpurx::doctor::tap {

struct made_frame {
    std::string source = "10.0.0.2";
    std::uint16_t source_port = 4000;
    std::string destination = "10.0.0.1";
    std::uint16_t destination_port = 5000;
    std::uint8_t flags = 0x10;  // ACK
    std::uint32_t sequence = 1;
    std::uint32_t acknowledgement = 1;
    std::uint16_t window = 512;
    std::vector<std::uint8_t> ip_options{};   // of IPv4: whole words
    std::vector<std::uint8_t> tcp_options{};  // whole words
    std::size_t payload = 0;
    std::uint8_t protocol = 6;
    std::uint16_t fragment = 0;    // flags and offset
    std::size_t padding = 0;       // of the frame, behind the packet
    bool has_length = true;        // of the packet; false: 0, as if it were too long
    std::uint16_t ether_type = 0;  // 0: of the addresses

    [[nodiscard]] std::vector<std::byte> bytes() const
    {
        namespace ip = boost::asio::ip;
        auto const from = ip::make_address(source);
        auto const to = ip::make_address(destination);
        std::vector<std::uint8_t> frame(12, 0x02);
        auto const put16 = [&frame](std::size_t value) {
            frame.push_back(static_cast<std::uint8_t>(value >> 8));
            frame.push_back(static_cast<std::uint8_t>(value));
        };
        auto const put32 = [&](std::uint32_t value) {
            put16(value >> 16);
            put16(value & 0xffff);
        };
        auto const put = [&frame](auto const& all) { frame.insert(frame.end(), all.begin(), all.end()); };
        auto const behind_ip = 20 + tcp_options.size() + payload;
        put16(ether_type != 0 ? ether_type : from.is_v4() ? ETH_P_IP : ETH_P_IPV6);
        if (from.is_v4()) {
            frame.push_back(static_cast<std::uint8_t>(0x45 + ip_options.size() / 4));
            frame.push_back(0);
            put16(has_length ? 20 + ip_options.size() + behind_ip : 0);
            put16(7);
            put16(fragment);
            frame.push_back(64);
            frame.push_back(protocol);
            put16(0);
            put(from.to_v4().to_bytes());
            put(to.to_v4().to_bytes());
            put(ip_options);
        } else {
            put32(0x60000000);
            put16(has_length ? behind_ip : 0);
            frame.push_back(protocol);
            frame.push_back(64);
            put(from.to_v6().to_bytes());
            put(to.to_v6().to_bytes());
        }
        put16(source_port);
        put16(destination_port);
        put32(sequence);
        put32(acknowledgement);
        frame.push_back(static_cast<std::uint8_t>((5 + tcp_options.size() / 4) << 4));
        frame.push_back(flags);
        put16(window);
        put32(0);
        put(tcp_options);
        frame.resize(frame.size() + payload, 0xdd);
        frame.resize(frame.size() + padding, 0);
        std::vector<std::byte> all;
        for (auto const one : frame)
            all.push_back(std::byte{one});
        return all;
    }
    // Bytes before the payload.
    [[nodiscard]] std::size_t headers() const { return bytes().size() - payload - padding; }
};

}  // namespace gpurx::doctor::tap
