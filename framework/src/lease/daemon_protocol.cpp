// SPDX-License-Identifier: Apache-2.0
#include "daemon_protocol.hpp"

#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>
#include <boost/system/generic_category.hpp>
#include <boost/system/system_category.hpp>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

namespace gpurx::detail {

namespace {

enum class message_kind : std::uint16_t {
    open = 1,
    steer_flow = 2,
    steer_port = 3,
    unsteer = 4,
    probe = 5,
    opened = 0x101,
    steered = 0x102,
    unsteered = 0x103,
    refused = 0x104,
    notice = 0x105,
};

enum class error_family : std::uint8_t { system = 0, gpurx = 1 };

constexpr std::size_t text_limit = 900;  // four of them fit into a message

// Numbers are in the machine's own order: both ends are on it.
class message_writer {
  public:
    explicit message_writer(message_kind kind)
    {
        put(daemon_protocol_version);
        put(static_cast<std::uint16_t>(kind));
    }

    template <class Number>
    void put(Number value) requires std::is_integral_v<Number>
    {
        auto const at = bytes_.size();
        bytes_.resize(at + sizeof value);
        std::memcpy(bytes_.data() + at, &value, sizeof value);
    }
    void put_text(std::string_view text)
    {
        text = text.substr(0, text_limit);
        put(static_cast<std::uint16_t>(text.size()));
        auto const at = bytes_.size();
        bytes_.resize(at + text.size());
        std::ranges::transform(text, bytes_.begin() + static_cast<std::ptrdiff_t>(at),
                               [](char letter) { return static_cast<std::byte>(letter); });
    }
    void put_endpoint(asio::ip::tcp::endpoint const& value)
    {
        auto const address = value.address();
        put(static_cast<std::uint8_t>(address.is_v6() ? 6 : 4));
        if (address.is_v6()) {
            for (auto const part : address.to_v6().to_bytes())
                put(part);
            put(static_cast<std::uint32_t>(address.to_v6().scope_id()));
        } else {
            for (auto const part : address.to_v4().to_bytes())
                put(part);
        }
        put(value.port());
    }
    [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

  private:
    std::vector<std::byte> bytes_;
};

// A message has these as they are in memory: a number, or the bytes of an address.
template <class Value>
concept plain = std::is_integral_v<Value> || std::is_same_v<Value, asio::ip::address_v4::bytes_type> ||
    std::is_same_v<Value, asio::ip::address_v6::bytes_type>;

// After the first thing that is not there all others are 0 or empty.
class message_reader {
  public:
    explicit message_reader(std::span<std::byte const> bytes) : left_{bytes} {}

    template <plain Value>
    [[nodiscard]] Value take()
    {
        Value value{};
        if (has(sizeof value)) {
            std::memcpy(&value, left_.data(), sizeof value);
            left_ = left_.subspan(sizeof value);
        }
        return value;
    }
    [[nodiscard]] bool take_flag()
    {
        auto const value = take<std::uint8_t>();
        if (value > 1)
            fail("a flag is neither 0 nor 1");
        return value == 1;
    }
    [[nodiscard]] std::string take_text()
    {
        auto const size = take<std::uint16_t>();
        if (size > text_limit)
            fail("a text is too long");
        std::string text;
        if (!has(size))
            return text;
        for (auto const letter : left_.first(size))
            text.push_back(static_cast<char>(letter));
        left_ = left_.subspan(size);
        return text;
    }
    [[nodiscard]] asio::ip::tcp::endpoint take_endpoint()
    {
        auto const version = take<std::uint8_t>();
        asio::ip::address address;
        if (version == 6) {
            auto const bytes = take<asio::ip::address_v6::bytes_type>();
            address = asio::ip::address_v6{bytes, take<std::uint32_t>()};
        } else if (version == 4) {
            address = asio::ip::address_v4{take<asio::ip::address_v4::bytes_type>()};
        } else {
            fail("an address is neither IPv4 nor IPv6");
        }
        auto const port = take<std::uint16_t>();
        return {address, port};
    }
    void fail(char const* what)
    {
        if (damage_ == nullptr)
            damage_ = what;
        left_ = {};
    }
    // Null: it was whole, and nothing is left over.
    [[nodiscard]] char const* damage() const
    {
        return damage_ != nullptr || left_.empty() ? damage_ : "it is too long";
    }

  private:
    [[nodiscard]] bool has(std::size_t size)
    {
        if (damage_ == nullptr && left_.size() < size)
            fail("it is too short");
        return damage_ == nullptr;
    }

    std::span<std::byte const> left_;
    char const* damage_ = nullptr;
};

std::vector<std::byte> write(open_request const& from)
{
    message_writer out{from.probe_memory != 0 ? message_kind::probe : message_kind::open};
    out.put_text(from.interface);
    out.put(from.rx_queues);
    out.put(from.rx_page_size);
    if (from.probe_memory != 0)
        out.put(from.probe_memory);
    return out.take();
}

std::vector<std::byte> write(steer_flow_request const& from)
{
    message_writer out{message_kind::steer_flow};
    out.put_endpoint(from.local);
    out.put_endpoint(from.remote);
    out.put(static_cast<std::uint8_t>(from.exact));
    return out.take();
}

std::vector<std::byte> write(steer_port_request const& from)
{
    message_writer out{message_kind::steer_port};
    out.put_endpoint(from.local);
    out.put(static_cast<std::uint8_t>(from.also_v4));
    return out.take();
}

std::vector<std::byte> write(unsteer_request const& from)
{
    message_writer out{message_kind::unsteer};
    out.put(from.rule);
    return out.take();
}

std::vector<std::byte> write(opened_reply const& from)
{
    message_writer out{message_kind::opened};
    out.put(from.dmabuf_id);
    out.put(from.page_size);
    out.put(static_cast<std::uint8_t>(from.array_tokens));
    out.put(static_cast<std::uint8_t>(from.steers));
    out.put(static_cast<std::uint8_t>(from.ring.frames.has_value()));
    out.put(from.ring.frames.value_or(0));
    out.put(from.ring.mtu);
    auto const count = std::min(from.queues.size(), daemon_queue_limit);
    out.put(static_cast<std::uint16_t>(count));
    for (std::size_t i = 0; i < count; ++i)
        out.put(static_cast<std::uint32_t>(from.queues[i]));
    return out.take();
}

std::vector<std::byte> write(steered_reply const& from)
{
    message_writer out{message_kind::steered};
    out.put(from.rule);
    return out.take();
}

std::vector<std::byte> write(unsteered_reply const& /*from*/)
{
    return message_writer{message_kind::unsteered}.take();
}

std::vector<std::byte> write(refused_reply const& from)
{
    message_writer out{message_kind::refused};
    auto const& category = from.code.category();
    bool const ours = category == gpurx_category();
    bool const known =
        ours || category == boost::system::system_category() || category == boost::system::generic_category();
    out.put(static_cast<std::uint8_t>(ours ? error_family::gpurx : error_family::system));
    out.put(static_cast<std::int32_t>(known ? from.code.value() : EIO));
    out.put_text(from.why.operation);
    out.put_text(from.why.object);
    out.put_text(known ? from.why.kernel_message : from.code.message());
    out.put_text(from.why.advice);
    return out.take();
}

std::vector<std::byte> write(notice_reply const& from)
{
    message_writer out{message_kind::notice};
    out.put_text(from.sentence);
    return out.take();
}

open_request read_open(message_reader& in, bool is_probe)
{
    open_request result;
    result.interface = in.take_text();
    if (result.interface.empty() || result.interface.size() >= IFNAMSIZ ||
        result.interface.find('\0') != std::string::npos)
        in.fail("it has no valid name of an interface");
    result.rx_queues = in.take<std::uint32_t>();
    result.rx_page_size = in.take<std::uint32_t>();
    if (is_probe)
        result.probe_memory = in.take<std::uint64_t>();
    if (is_probe && result.probe_memory == 0)
        in.fail("it requests 0 bytes of memory");
    return result;
}

opened_reply read_opened(message_reader& in)
{
    opened_reply result;
    result.dmabuf_id = in.take<std::uint32_t>();
    result.page_size = in.take<std::uint32_t>();
    result.array_tokens = in.take_flag();
    result.steers = in.take_flag();
    auto const has_frames = in.take_flag();
    if (auto const frames = in.take<std::uint32_t>(); has_frames)
        result.ring.frames = frames;
    else if (frames != 0)
        in.fail("an unknown ring has frames");
    result.ring.mtu = in.take<std::uint32_t>();
    auto const count = in.take<std::uint16_t>();
    if (count == 0 || count > daemon_queue_limit)
        in.fail("the number of queues is impossible");
    else if (result.page_size == 0 || (result.page_size & (result.page_size - 1)) != 0)
        in.fail("the page size is not a power of two");
    else
        for (unsigned i = 0; i < count; ++i)
            result.queues.push_back(in.take<std::uint32_t>());
    return result;
}

refused_reply read_refused(message_reader& in)
{
    refused_reply result;
    auto const family = in.take<std::uint8_t>();
    auto const value = in.take<std::int32_t>();
    if (family > static_cast<std::uint8_t>(error_family::gpurx))
        in.fail("the kind of the error is unknown");
    else if (value == 0)
        in.fail("the error is none");
    result.code = family == static_cast<std::uint8_t>(error_family::gpurx)
                      ? error_code{value, gpurx_category()}
                      : error_code{value, boost::system::system_category()};
    result.why.operation = in.take_text();
    result.why.object = in.take_text();
    result.why.kernel_message = in.take_text();
    result.why.advice = in.take_text();
    return result;
}

message_damage unknown(message_kind kind)
{
    return {fmt::format("the message kind {} is unknown", static_cast<unsigned>(kind))};
}

// The kind; or damage of what every message begins with.
std::variant<message_kind, message_damage> read_head(message_reader& in, std::size_t size)
{
    if (size > daemon_message_limit)
        return message_damage{"it is too long"};
    auto const version = in.take<std::uint16_t>();
    auto const kind = in.take<std::uint16_t>();
    if (size >= sizeof version && version != daemon_protocol_version)
        return message_damage{
            fmt::format("version {} of the protocol, and this is version {}", version, daemon_protocol_version), true};
    if (in.damage() != nullptr && size < sizeof version + sizeof kind)
        return message_damage{in.damage()};
    return static_cast<message_kind>(kind);
}

template <class Message>
std::variant<Message, message_damage> whole(message_reader const& in, Message value)
{
    if (auto const* const damage = in.damage())
        return message_damage{damage};
    return value;
}

}  // namespace

std::vector<std::byte> encode(daemon_request const& from)
{
    return std::visit([](auto const& what) { return write(what); }, from);
}

std::vector<std::byte> encode(daemon_reply const& from)
{
    return std::visit([](auto const& what) { return write(what); }, from);
}

std::variant<daemon_request, message_damage> parse_daemon_request(std::span<std::byte const> message)
{
    message_reader in{message};
    auto const head = read_head(in, message.size());
    if (auto const* const damage = std::get_if<message_damage>(&head))
        return *damage;
    switch (auto const kind = std::get<message_kind>(head)) {
        case message_kind::open:
        case message_kind::probe: {
            auto value = read_open(in, kind == message_kind::probe);
            return whole<daemon_request>(in, std::move(value));
        }
        case message_kind::steer_flow: {
            auto const local = in.take_endpoint();
            auto const remote = in.take_endpoint();
            auto const exact = in.take_flag();
            return whole<daemon_request>(in, steer_flow_request{local, remote, exact});
        }
        case message_kind::steer_port: {
            auto const local = in.take_endpoint();
            auto const also_v4 = in.take_flag();
            return whole<daemon_request>(in, steer_port_request{local, also_v4});
        }
        case message_kind::unsteer: {
            auto const rule = in.take<std::uint32_t>();
            return whole<daemon_request>(in, unsteer_request{rule});
        }
        default:
            return unknown(kind);
    }
}

std::variant<daemon_reply, message_damage> parse_daemon_reply(std::span<std::byte const> message)
{
    message_reader in{message};
    auto const head = read_head(in, message.size());
    if (auto const* const damage = std::get_if<message_damage>(&head))
        return *damage;
    switch (auto const kind = std::get<message_kind>(head)) {
        case message_kind::opened: {
            auto value = read_opened(in);
            return whole<daemon_reply>(in, std::move(value));
        }
        case message_kind::steered: {
            auto const rule = in.take<std::uint32_t>();
            return whole<daemon_reply>(in, steered_reply{rule});
        }
        case message_kind::unsteered:
            return whole<daemon_reply>(in, unsteered_reply{});
        case message_kind::refused: {
            auto value = read_refused(in);
            return whole<daemon_reply>(in, std::move(value));
        }
        case message_kind::notice: {
            auto sentence = in.take_text();
            return whole<daemon_reply>(in, notice_reply{std::move(sentence)});
        }
        default:
            return unknown(kind);
    }
}

}  // namespace gpurx::detail
