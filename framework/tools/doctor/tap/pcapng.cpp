// SPDX-License-Identifier: Apache-2.0
#include "pcapng.hpp"

#include <cstring>
#include <type_traits>

namespace gpurx::doctor::tap {

namespace {

// draft-ietf-opsawg-pcapng
enum class block_type : std::uint32_t { section = 0x0a0d0d0a, interface = 1, statistics = 5, packet = 6 };

constexpr std::uint16_t end_of_options = 0;
constexpr std::uint16_t user_application = 4;
constexpr std::uint16_t interface_name = 2;
constexpr std::uint16_t interface_resolution = 9;
constexpr std::uint16_t packet_flags = 2;
constexpr std::uint16_t received_packets = 4;
constexpr std::uint16_t dropped_packets = 5;

constexpr std::uint16_t ethernet = 1;

template <class Number>
void put(bytes& into, Number value)
{
    static_assert(std::is_integral_v<Number>);
    auto const at = into.size();
    into.resize(at + sizeof value);
    std::memcpy(into.data() + at, &value, sizeof value);
}

void put_padded(bytes& into, std::span<std::byte const> what)
{
    into.insert(into.end(), what.begin(), what.end());
    into.resize((into.size() + 3) / 4 * 4);
}

void put_option(bytes& into, std::uint16_t code, std::span<std::byte const> value)
{
    put(into, code);
    put(into, static_cast<std::uint16_t>(value.size()));
    put_padded(into, value);
}

template <class Number>
void put_option(bytes& into, std::uint16_t code, Number const& value)
{
    put_option(into, code, std::as_bytes(std::span{&value, 1}));
}

void put_option(bytes& into, std::uint16_t code, std::string_view text)
{
    put_option(into, code, std::as_bytes(std::span{text}));
}

void put_end_of_options(bytes& into)
{
    put(into, end_of_options);
    put(into, std::uint16_t{0});
}

// A block around what `body` puts: its size is in front of it and behind.
template <class Body>
void put_block(bytes& file, block_type type, Body const& body)
{
    auto const begin = file.size();
    put(file, static_cast<std::uint32_t>(type));
    put(file, std::uint32_t{0});
    body();
    auto const size = static_cast<std::uint32_t>(file.size() - begin + sizeof(std::uint32_t));
    put(file, size);
    std::memcpy(file.data() + begin + sizeof(std::uint32_t), &size, sizeof size);
}

void put_moment(bytes& into, moment when)
{
    auto const count = static_cast<std::uint64_t>(when.count());
    put(into, static_cast<std::uint32_t>(count >> 32));
    put(into, static_cast<std::uint32_t>(count));
}

constexpr std::uint32_t only_interface = 0;

}  // namespace

void put_section(bytes& file, std::string_view application)
{
    put_block(file, block_type::section, [&] {
        put(file, std::uint32_t{0x1a2b3c4d});  // tells the byte order
        put(file, std::uint16_t{1});
        put(file, std::uint16_t{0});
        put(file, std::int64_t{-1});  // how long the section is: not known
        put_option(file, user_application, application);
        put_end_of_options(file);
    });
}

void put_interface(bytes& file, std::string_view name, std::uint32_t most_captured)
{
    constexpr std::uint8_t nanoseconds = 9;  // the negative power of ten
    put_block(file, block_type::interface, [&] {
        put(file, ethernet);
        put(file, std::uint16_t{0});
        put(file, most_captured);
        put_option(file, interface_name, name);
        put_option(file, interface_resolution, nanoseconds);
        put_end_of_options(file);
    });
}

void put_packet(bytes& file, moment when, std::span<std::byte const> captured, std::uint32_t length, bool outgoing)
{
    std::uint32_t const direction = outgoing ? 2 : 1;
    put_block(file, block_type::packet, [&] {
        put(file, only_interface);
        put_moment(file, when);
        put(file, static_cast<std::uint32_t>(captured.size()));
        put(file, length);
        put_padded(file, captured);
        put_option(file, packet_flags, direction);
        put_end_of_options(file);
    });
}

void put_statistics(bytes& file, moment when, std::uint64_t received, std::uint64_t dropped)
{
    put_block(file, block_type::statistics, [&] {
        put(file, only_interface);
        put_moment(file, when);
        put_option(file, received_packets, received);
        put_option(file, dropped_packets, dropped);
        put_end_of_options(file);
    });
}

}  // namespace gpurx::doctor::tap
