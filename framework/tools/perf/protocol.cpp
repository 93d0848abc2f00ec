// SPDX-License-Identifier: Apache-2.0
#include "protocol.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

namespace gpurx::perf {

namespace {

constexpr std::uint64_t magic = 0x3146'5045'5258'5047;  // "GPXREPF1"

template <class Number>
void put(std::span<std::byte> to, std::size_t at, Number value)
{
    for (std::size_t i = 0; i < sizeof value; ++i)
        to[at + i] = static_cast<std::byte>(value >> (8 * i));
}

template <class Number>
Number get(std::span<std::byte const> from, std::size_t at)
{
    Number value = 0;
    for (std::size_t i = 0; i < sizeof value; ++i)
        value |= static_cast<Number>(from[at + i]) << (8 * i);
    return value;
}

// Cuts off text that does not fit; a zero byte ends it.
void put_text(std::span<std::byte> to, std::string_view text)
{
    auto const size = std::min(text.size(), to.size() - 1);
    std::transform(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size), to.begin(),
                   [](char letter) { return static_cast<std::byte>(letter); });
}

std::string get_text(std::span<std::byte const> from)
{
    std::string text;
    for (auto const letter : from) {
        if (letter == std::byte{0})
            break;
        auto const value = std::to_integer<char>(letter);
        text += value >= ' ' && value <= '~' ? value : '?';
    }
    return text;
}

constexpr std::size_t setting_size = 128;

static_assert(std::endian::native == std::endian::little, "words are compared as they lie");

constexpr std::size_t word = sizeof(std::uint64_t);

// Knuth's multiplier for linear congruential generators, so that neighbours differ in most bytes.
constexpr std::uint64_t value_at(std::uint32_t flow, std::uint64_t offset) noexcept
{
    return (offset / word + 1) * 6364136223846793005U + flow;
}

}  // namespace

std::array<std::byte, request_size> encode(request const& what)
{
    std::array<std::byte, request_size> to{};
    put(to, 0, magic);
    put(to, 8, what.flow);
    put(to, 12, what.flows);
    put(to, 16, what.message_size);
    put(to, 20, what.warm_up_ms);
    put(to, 24, what.measured_ms);
    return to;
}

std::array<std::byte, greeting_size> encode(greeting const& what)
{
    std::array<std::byte, greeting_size> to{};
    put_text(std::span{to}.first<setting_size>(), what.setting);
    put_text(std::span{to}.subspan<setting_size>(), what.transport);
    return to;
}

std::array<std::byte, result_size> encode(result const& what)
{
    std::array<std::byte, result_size> to{};
    put(to, 0, what.bytes);
    put(to, 8, what.nanoseconds);
    put(to, 16, what.process_cpu_ns);
    put(to, 24, what.machine_cpu_ns);
    put(to, 32, what.wrong_words);
    put(to, 40, what.verified);
    return to;
}

std::array<std::byte, 8> encode(std::uint64_t acknowledged)
{
    std::array<std::byte, 8> to{};
    put(to, 0, acknowledged);
    return to;
}

std::optional<request> decode_request(std::span<std::byte const, request_size> from)
{
    request const made{.flow = get<std::uint32_t>(from, 8),
                       .flows = get<std::uint32_t>(from, 12),
                       .message_size = get<std::uint32_t>(from, 16),
                       .warm_up_ms = get<std::uint32_t>(from, 20),
                       .measured_ms = get<std::uint32_t>(from, 24)};
    auto const possible = get<std::uint64_t>(from, 0) == magic && made.flows >= 1 && made.flows <= most_flows &&
                          made.flow < made.flows && made.message_size >= 8 && made.message_size % 8 == 0 &&
                          made.message_size <= largest_message && made.measured_ms > 0;
    return possible ? std::optional{made} : std::nullopt;
}

greeting decode_greeting(std::span<std::byte const, greeting_size> from)
{
    return {.setting = get_text(from.first<setting_size>()), .transport = get_text(from.subspan<setting_size>())};
}

result decode_result(std::span<std::byte const, result_size> from)
{
    return {.bytes = get<std::uint64_t>(from, 0),
            .nanoseconds = get<std::uint64_t>(from, 8),
            .process_cpu_ns = get<std::uint64_t>(from, 16),
            .machine_cpu_ns = get<std::uint64_t>(from, 24),
            .wrong_words = get<std::uint64_t>(from, 32),
            .verified = get<std::uint64_t>(from, 40)};
}

std::uint64_t decode_acknowledged(std::span<std::byte const, 8> from)
{
    return get<std::uint64_t>(from, 0);
}

void fill_pattern(std::span<std::byte> to, std::uint32_t flow, std::uint64_t offset) noexcept
{
    for (std::size_t at = 0; at < to.size(); at += word) {
        auto const value = value_at(flow, offset + at);
        std::memcpy(to.data() + at, &value, word);
    }
}

void pattern_check::take(std::span<std::byte const> bytes) noexcept
{
    auto const before = std::min<std::size_t>((word - offset_ % word) % word, bytes.size());
    take_part(bytes.first(before));
    bytes = bytes.subspan(before);
    auto const whole = bytes.size() / word * word;
    for (std::size_t at = 0; at < whole; at += word) {
        std::uint64_t there = 0;
        std::memcpy(&there, bytes.data() + at, word);
        wrong_words_ += there == value_at(flow_, offset_ + at) ? 0U : 1U;
    }
    offset_ += whole;
    take_part(bytes.subspan(whole));
}

// Of one word.
void pattern_check::take_part(std::span<std::byte const> bytes) noexcept
{
    if (bytes.empty())
        return;
    auto const value = value_at(flow_, offset_);
    auto const* const expected = reinterpret_cast<std::byte const*>(&value) + offset_ % word;
    wrong_words_ += std::memcmp(bytes.data(), expected, bytes.size()) == 0 ? 0U : 1U;
    offset_ += bytes.size();
}

}  // namespace gpurx::perf
