// SPDX-License-Identifier: Apache-2.0
#include "filter.hpp"

#include <fmt/format.h>
#include <linux/if_ether.h>
#include <netinet/in.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>

namespace gpurx::doctor::tap {

namespace {

namespace ip = boost::asio::ip;

struct flow_end {
    std::optional<ip::address> address;
    std::uint16_t port = 0;
};

[[noreturn]] void refuse(std::string_view text, std::string_view why)
{
    throw std::invalid_argument{fmt::format("'{}' {}", text, why)};
}

std::uint16_t parse_port(std::string_view text)
{
    if (text == "*")
        return 0;
    std::uint16_t port = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    if (error != std::errc{} || end != text.data() + text.size() || port == 0)
        refuse(text, "is not a port: 1 to 65535, or *");
    return port;
}

std::optional<ip::address> parse_address(std::string_view text)
{
    if (text == "*")
        return std::nullopt;
    if (text.starts_with('[') && text.ends_with(']'))
        text = text.substr(1, text.size() - 2);
    boost::system::error_code error;
    auto const address = ip::make_address(std::string{text}, error);
    if (error || (address.is_v6() && address.to_v6().scope_id() != 0))
        refuse(text, "is not an address: 10.0.0.1, [fd00::1], or *");
    return address;
}

flow_end parse_end(std::string_view text)
{
    auto const colon = text.rfind(':');
    if (colon == std::string_view::npos || text.ends_with(']'))
        refuse(text, "is not an endpoint of a flow: ADDRESS:PORT");
    return {parse_address(text.substr(0, colon)), parse_port(text.substr(colon + 1))};
}

bool fits(std::optional<ip::address> const& address, bool v6)
{
    return !address || address->is_v6() == v6;
}

constexpr std::uint32_t payload_bytes = 1;  // that are let through behind the headers

// Offsets in a frame.
constexpr std::uint32_t ether_type = 12;
constexpr std::uint32_t ip_header = ETH_HLEN;
constexpr std::uint32_t v4_fragment = ip_header + 6;
constexpr std::uint32_t v4_protocol = ip_header + 9;
constexpr std::uint32_t v4_source = ip_header + 12;
constexpr std::uint32_t v4_destination = ip_header + 16;
constexpr std::uint32_t v6_next_header = ip_header + 6;
constexpr std::uint32_t v6_source = ip_header + 8;
constexpr std::uint32_t v6_destination = ip_header + 24;
constexpr std::uint32_t v6_headers = ip_header + 40;
constexpr std::uint32_t tcp_data_offset = 12;

constexpr std::uint16_t word_at = BPF_LD | BPF_W | BPF_ABS;
constexpr std::uint16_t half_at = BPF_LD | BPF_H | BPF_ABS;
constexpr std::uint16_t byte_at = BPF_LD | BPF_B | BPF_ABS;
// Behind the IPv4 header, whose length is in X.
constexpr std::uint16_t half_behind = BPF_LD | BPF_H | BPF_IND;
constexpr std::uint16_t byte_behind = BPF_LD | BPF_B | BPF_IND;

// A field of the frame that must have a value.
struct condition {
    std::uint16_t load;
    std::uint32_t where;
    std::uint32_t value;
};

// BPF_K is 0, and so is BPF_ADD: who reads BPF_ALU | BPF_ADD | BPF_K takes it for a mistake.
constexpr std::uint16_t add = BPF_ALU | BPF_K;

class assembler {
  public:
    void put(std::uint16_t code, std::uint32_t k = 0, std::uint8_t if_true = 0, std::uint8_t if_false = 0)
    {
        program_.push_back({code, if_true, if_false, k});
    }
    // Goes on if the field has the value, else ends: nothing of the frame is let through.
    void require(condition const& what)
    {
        put(what.load, what.where);
        put(BPF_JMP | BPF_JEQ | BPF_K, what.value, 1, 0);
        reject();
    }
    void reject() { put(BPF_RET | BPF_K, 0); }
    // Goes to the place that land() says later, however far.
    [[nodiscard]] std::size_t jump()
    {
        put(BPF_JMP | BPF_JA);
        return program_.size() - 1;
    }
    void land(std::size_t jump) { program_[jump].k = static_cast<std::uint32_t>(program_.size() - jump - 1); }

    // Jumps if all hold, else goes on. Returns the jump.
    [[nodiscard]] std::size_t jump_if(std::span<condition const> all)
    {
        // Of each two instructions, the second must reach behind the jump.
        auto left = all.size() * 2;
        for (auto const& one : all) {
            left -= 2;
            put(one.load, one.where);
            put(BPF_JMP | BPF_JEQ | BPF_K, one.value, 0, static_cast<std::uint8_t>(left + 1));
        }
        return jump();
    }

    [[nodiscard]] std::vector<sock_filter> take() { return std::move(program_); }

  private:
    std::vector<sock_filter> program_;
};

std::uint32_t word_of(std::span<std::uint8_t const, 4> bytes)
{
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
}

void put_address(std::vector<condition>& into, std::optional<ip::address> const& address, std::uint32_t where)
{
    if (!address)
        return;
    if (address->is_v4()) {
        into.push_back({word_at, where, address->to_v4().to_uint()});
        return;
    }
    auto const bytes = address->to_v6().to_bytes();
    std::span const all{bytes};
    // The last word first: it tells hosts apart.
    for (std::uint32_t const word : {12U, 8U, 4U, 0U})
        into.push_back({word_at, where + word, word_of(all.subspan(word).first<4>())});
}

void put_port(std::vector<condition>& into, bool v6, std::uint16_t port, std::uint32_t where)
{
    if (port != 0)
        into.push_back({v6 ? half_at : half_behind, (v6 ? v6_headers : ip_header) + where, port});
}

std::vector<condition> conditions(selection const& of, bool outgoing)
{
    constexpr std::uint32_t source_port = 0;
    constexpr std::uint32_t destination_port = 2;
    auto const source = of.v6 ? v6_source : v4_source;
    auto const destination = of.v6 ? v6_destination : v4_destination;
    std::vector<condition> all;
    put_port(all, of.v6, of.local_port, outgoing ? source_port : destination_port);
    put_port(all, of.v6, of.remote_port, outgoing ? destination_port : source_port);
    put_address(all, of.remote, outgoing ? destination : source);
    put_address(all, of.local, outgoing ? source : destination);
    return all;
}

// Lets the headers through, and what follows them. The length of the TCP header is in bits 4 to 7, in words.
void put_headers(assembler& code, bool v6)
{
    code.put(v6 ? byte_at : byte_behind, (v6 ? v6_headers : ip_header) + tcp_data_offset);
    code.put(BPF_ALU | BPF_AND | BPF_K, 0xf0);
    code.put(BPF_ALU | BPF_RSH | BPF_K, 2);
    if (!v6)
        code.put(BPF_ALU | BPF_ADD | BPF_X);
    code.put(add, (v6 ? v6_headers : ip_header) + payload_bytes);
    code.put(BPF_RET | BPF_A);
}

void put_family(assembler& code, selections const& chosen, bool v6)
{
    code.require({byte_at, v6 ? v6_next_header : v4_protocol, IPPROTO_TCP});
    if (!v6) {
        code.put(half_at, v4_fragment);
        code.put(BPF_JMP | BPF_JSET | BPF_K, 0x1fff, 0, 1);
        code.reject();
        code.put(BPF_LDX | BPF_B | BPF_MSH, ip_header);
    }
    std::vector<std::size_t> found;
    for (auto const& one : chosen) {
        if (one.v6 != v6)
            continue;
        for (bool const outgoing : {false, true})
            found.push_back(code.jump_if(conditions(one, outgoing)));
    }
    code.reject();
    if (found.empty())
        return;
    for (auto const jump : found)
        code.land(jump);
    put_headers(code, v6);
}

std::vector<sock_filter> assemble(selections const& chosen)
{
    assembler code;
    code.put(half_at, ether_type);
    code.put(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IP, 1, 0);
    auto const other = code.jump();
    put_family(code, chosen, false);
    code.land(other);
    code.require({half_at, ether_type, ETH_P_IPV6});
    put_family(code, chosen, true);
    return code.take();
}

}  // namespace

selections of_port(std::uint16_t port)
{
    selections chosen;
    for (bool const v6 : {false, true}) {
        chosen.insert({.v6 = v6, .local = {}, .local_port = port, .remote = {}, .remote_port = 0});
        chosen.insert({.v6 = v6, .local = {}, .local_port = 0, .remote = {}, .remote_port = port});
    }
    return chosen;
}

selections of_flow(std::string_view text)
{
    auto const comma = text.find(',');
    if (comma == std::string_view::npos)
        refuse(text, "is not a flow: LOCAL,REMOTE, each ADDRESS:PORT");
    auto const local = parse_end(text.substr(0, comma));
    auto const remote = parse_end(text.substr(comma + 1));
    selections chosen;
    for (bool const v6 : {false, true}) {
        if (fits(local.address, v6) && fits(remote.address, v6))
            chosen.insert({v6, local.address, local.port, remote.address, remote.port});
    }
    if (chosen.empty())
        refuse(text, "mixes IPv4 and IPv6");
    return chosen;
}

selections of_sessions(std::vector<detail::journal_owner> const& owners)
{
    selections chosen;
    for (auto const& owner : owners) {
        for (auto const& [id, rule] : owner.rules) {
            selection one{rule.match.v6, rule.match.local, rule.match.local_port, {}, 0};
            if (rule.match.remote) {
                one.remote = rule.match.remote->address();
                one.remote_port = rule.match.remote->port();
            }
            chosen.insert(one);
        }
    }
    return chosen;
}

selections widened(selections const& chosen)
{
    selections wider;
    for (auto const& one : chosen) {
        auto const remote_port = one.local_port != 0 ? std::uint16_t{0} : one.remote_port;
        wider.insert({one.v6, {}, one.local_port, {}, remote_port});
    }
    return wider;
}

filter make_filter(selections const& chosen)
{
    filter made{assemble(chosen)};
    if (made.program.size() > longest_program)
        made = {assemble(widened(chosen)), true};
    if (made.program.size() > longest_program)
        throw std::length_error{"too many flows for one filter of the kernel: choose fewer, or use --port"};
    return made;
}

}  // namespace gpurx::doctor::tap
