// SPDX-License-Identifier: Apache-2.0
//
// Builds netlink requests and parses replies. Parsing stays within bounds, whatever the bytes; unreadable parts are
// absent. Also the requests to the genetlink controller, and the socket. Only the socket does I/O (netlink_socket.cpp).
#pragma once

#include <linux/netlink.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fork.hpp"

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
    request& append(std::uint16_t type, void const* value, std::size_t size);
    void make_room(std::size_t payload);
    void fit();
    std::size_t open_nest(std::uint16_t type);
    void close_nest(std::size_t start);

    std::vector<std::byte> bytes_;  // after each put exactly the message
};

// Returns the types of the attributes that enclose byte `offset` of a request, outermost first. It converts the
// kernel's NLMSGERR_ATTR_OFFS into names. Empty if no attribute starts there.
[[nodiscard]] std::vector<std::uint16_t> path_at(bytes_view request, std::uint32_t offset);

// ---- reading ----

// One attribute, within the bounds of the message. A value of another size than requested is absent.
class attribute {
  public:
    explicit attribute(nlattr const* at) noexcept : at_{at} {}

    [[nodiscard]] std::uint16_t type() const noexcept;
    [[nodiscard]] bytes_view value() const noexcept;
    [[nodiscard]] std::optional<std::uint8_t> u8() const noexcept;
    [[nodiscard]] std::optional<std::uint16_t> u16() const noexcept;
    [[nodiscard]] std::optional<std::uint32_t> u32() const noexcept;
    // A number of 4 or of 8 bytes ("uint" in the specs).
    [[nodiscard]] std::optional<std::uint64_t> uint() const noexcept;
    // Up to the first zero byte, or all of it.
    [[nodiscard]] std::string_view text() const noexcept;

  private:
    nlattr const* at_;
};

// A run of attributes, aligned as in a message. Iteration ends at the first that does not fit.
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
        for (auto const* at = first(); at != nullptr; at = after(at))
            visit(attribute{at});
    }

  private:
    // Null if no complete attribute is left.
    [[nodiscard]] nlattr const* first() const noexcept;
    [[nodiscard]] nlattr const* after(nlattr const* at) const noexcept;

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

// Removes the first message from `datagram`. Empty at the end, or if the rest is not a whole message.
[[nodiscard]] std::optional<message> take_message(bytes_view& datagram) noexcept;

// A generic netlink message's command and attributes.
struct generic_message {
    std::uint8_t command = 0;
    attributes attrs;
};
[[nodiscard]] std::optional<generic_message> read_generic(message const& from) noexcept;

// The kernel's answer at the end of a request: NLMSG_ERROR (which also acknowledges) or NLMSG_DONE.
struct verdict {
    int error = 0;                              // errno, 0 for success
    std::string text;                           // extack message, verbatim
    std::optional<std::uint32_t> offset;        // of the attribute at fault, in the request
    std::optional<std::uint32_t> missing_type;  // an attribute that should have been there
    std::optional<std::uint32_t> missing_in;    // offset of the nest that lacks it; absent: the top level

    friend bool operator==(verdict const&, verdict const&) = default;
};
// Returns an empty optional if `from` is neither of the two, or too short for an error number.
[[nodiscard]] std::optional<verdict> read_verdict(message const& from);

// ---- the genetlink controller: a family's number and groups by its name, and which attributes a command accepts ----

struct family {
    std::uint16_t id = 0;
    std::map<std::string, std::uint32_t, std::less<>> groups;  // multicast groups by name

    friend bool operator==(family const&, family const&) = default;
};

[[nodiscard]] request family_request(std::string_view name);
// Returns an empty optional if the reply has no number.
[[nodiscard]] std::optional<family> read_family(attributes const& answer);

// Values that the kernel accepts for an attribute, as far as it reports them.
struct attribute_rule {
    std::uint32_t type = 0;            // uapi::nlctrl::rule_type_u32 and others
    std::optional<std::uint64_t> max;  // of an unsigned number

    friend bool operator==(attribute_rule const&, attribute_rule const&) = default;
};
using attribute_rules = std::map<std::uint16_t, attribute_rule>;  // by the attribute's number

// The attributes that a command accepts, collected from the replies to one request.
[[nodiscard]] request policy_request(std::uint16_t family, std::uint8_t command);
class policy {
  public:
    void add(attributes const& answer);
    // The attributes of the command's request, at the top level.
    [[nodiscard]] attribute_rules accepted() const;

  private:
    std::optional<std::uint32_t> index_;                 // of the policy for the request
    std::map<std::uint32_t, attribute_rules> policies_;  // by their index
};

// ---- the socket: one request at a time, until the kernel has said how it ended ----

// Not thread-safe. The descriptor is closed on exec and in a forked child: replies are for one process, and memory that
// was bound to a NIC through it is unbound only when no process has it open.
class socket {
  public:
    // Throws system_error.
    socket();

    // Sends `what` and calls `answer` for every data message until the acknowledgement, or the end of the dump. It
    // skips messages that are not part of the reply. Returns the kernel's result. Throws system_error only if there is
    // none (the socket failed, or ETIMEDOUT). If the kernel marks a dump as inconsistent, it sends the request again,
    // so `restart` must discard everything that `answer` has collected.
    using on_answer = std::function<void(generic_message const&)>;
    [[nodiscard]] verdict exchange(request& what, on_answer const& answer, std::function<void()> const& restart = {});

    // Subscribes to multicast messages of `group`. The kernel keeps them until take_notifications().
    void join(std::uint32_t group);
    // Calls `each` for every message that has arrived. Does not wait.
    void take_notifications(on_answer const& each);

    // Most time for the kernel's reply to a request.
    static constexpr std::chrono::seconds timeout{10};

  private:
    void send(bytes_view bytes);
    // Returns one datagram of the kernel; empty if none comes before `deadline`.
    [[nodiscard]] bytes_view receive(std::chrono::steady_clock::time_point deadline);
    [[nodiscard]] bool wait_readable(std::chrono::steady_clock::time_point deadline) const;

    unshared_fd fd_;
    std::uint32_t port_ = 0;
    std::uint32_t sequence_ = 0;
    std::vector<std::byte> buffer_;
};

}  // namespace gpurx::detail::netlink
