// SPDX-License-Identifier: Apache-2.0
//
// Netlink messages as bytes: requests are built, replies are taken apart. No I/O. Whatever the bytes are, reading them
// stays within their bounds; what cannot be read is absent.
#pragma once

#include <linux/netlink.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpurx::detail::netlink {

using bytes_view = std::span<std::byte const>;

// ---- building ----

// A generic netlink request. Attributes are appended in order; nests are closed in reverse.
class request {
  public:
    request(std::uint16_t family, std::uint8_t command, std::uint8_t version, std::uint16_t flags);

    request& put(std::uint16_t type, std::uint8_t value);
    request& put(std::uint16_t type, std::uint16_t value);
    request& put(std::uint16_t type, std::uint32_t value);
    request& put(std::uint16_t type, std::string_view value);  // with its terminating zero
    request& put_flag(std::uint16_t type);

    // Runs `fill(*this)` between the opening and the closing of a nested attribute.
    template <std::invocable<request&> Fill>
    request& nest(std::uint16_t type, Fill&& fill)
    {
        std::size_t const start = open_nest(type);
        fill(*this);
        close_nest(start);
        return *this;
    }

    [[nodiscard]] std::uint32_t sequence() const noexcept;
    void set_sequence(std::uint32_t value) noexcept;
    [[nodiscard]] bool is_dump() const noexcept;
    [[nodiscard]] bytes_view bytes() const noexcept { return bytes_; }

  private:
    [[nodiscard]] nlmsghdr* header() noexcept;
    [[nodiscard]] nlmsghdr const* header() const noexcept;
    void make_room(std::size_t payload);
    void fit();
    std::size_t open_nest(std::uint16_t type);
    void close_nest(std::size_t start);

    std::vector<std::byte> bytes_;  // after each put exactly the message
};

// The types of the attributes that enclose byte `offset` of a request, outermost first: how the kernel's
// NLMSGERR_ATTR_OFFS becomes a name. Empty if no attribute starts there.
[[nodiscard]] std::vector<std::uint16_t> path_at(bytes_view request, std::uint32_t offset);

// ---- reading ----

// One attribute. A value of another size than asked for is absent.
class attribute {
  public:
    attribute(std::uint16_t type, bytes_view value) noexcept : type_{type}, value_{value} {}

    [[nodiscard]] std::uint16_t type() const noexcept { return type_; }
    [[nodiscard]] bytes_view value() const noexcept { return value_; }
    [[nodiscard]] std::optional<std::uint8_t> u8() const noexcept;
    [[nodiscard]] std::optional<std::uint16_t> u16() const noexcept;
    [[nodiscard]] std::optional<std::uint32_t> u32() const noexcept;
    // A number of 4 or of 8 bytes ("uint" in the specs).
    [[nodiscard]] std::optional<std::uint64_t> uint() const noexcept;
    // Up to the first zero byte, or all of it.
    [[nodiscard]] std::string_view text() const noexcept;

  private:
    std::uint16_t type_;
    bytes_view value_;
};

// A run of attributes. Iteration ends at the first that does not fit.
class attributes {
  public:
    attributes() noexcept = default;
    explicit attributes(bytes_view bytes) noexcept : bytes_{bytes} {}

    // The first of this type.
    [[nodiscard]] std::optional<attribute> find(std::uint16_t type) const noexcept;
    [[nodiscard]] std::optional<std::uint8_t> u8(std::uint16_t type) const noexcept;
    [[nodiscard]] std::optional<std::uint32_t> u32(std::uint16_t type) const noexcept;
    [[nodiscard]] std::optional<std::uint64_t> uint(std::uint16_t type) const noexcept;
    // The attributes inside the first of this type; none if it is absent.
    [[nodiscard]] attributes nested(std::uint16_t type) const noexcept;

    template <class Visit>
    void for_each(Visit&& visit) const
    {
        for (bytes_view rest = bytes_; auto const one = take(rest);)
            visit(*one);
    }

  private:
    // Removes the first attribute from `rest`.
    [[nodiscard]] static std::optional<attribute> take(bytes_view& rest) noexcept;

    bytes_view bytes_;
};

// One message of those that a datagram holds.
struct message {
    std::uint16_t type = 0;
    std::uint16_t flags = 0;
    std::uint32_t sequence = 0;
    std::uint32_t port = 0;
    bytes_view payload;
};

// Removes the first message from `datagram`; nothing at the end, or where the rest is not a whole message.
[[nodiscard]] std::optional<message> take_message(bytes_view& datagram) noexcept;

// A generic netlink message's command and attributes.
struct generic_message {
    std::uint8_t command = 0;
    attributes attrs;
};
[[nodiscard]] std::optional<generic_message> read_generic(message const& from) noexcept;

// What the kernel said at the end of a request: NLMSG_ERROR (which also acknowledges) or NLMSG_DONE.
struct verdict {
    int error = 0;                              // errno, 0 for success
    std::string text;                           // extack message, verbatim
    std::optional<std::uint32_t> offset;        // of the attribute at fault, in the request
    std::optional<std::uint32_t> missing_type;  // an attribute that should have been there
    std::optional<std::uint32_t> missing_in;    // offset of the nest that lacks it; absent: the top level

    friend bool operator==(verdict const&, verdict const&) = default;
};
// Nothing if `from` is neither of the two, or too short to hold an error number.
[[nodiscard]] std::optional<verdict> read_verdict(message const& from);

}  // namespace gpurx::detail::netlink
