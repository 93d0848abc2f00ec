// SPDX-License-Identifier: Apache-2.0
#include "message.hpp"

#include <libmnl/libmnl.h>
#include <linux/genetlink.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "uapi.hpp"

namespace gpurx::detail::netlink {

namespace {

// A value of trivial type at the start of `bytes`, which may lie at any address.
template <class T>
std::optional<T> load(bytes_view bytes) noexcept
{
    if (bytes.size() < sizeof(T))
        return std::nullopt;
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
}

template <class T>
std::optional<T> load_exactly(bytes_view bytes) noexcept
{
    return bytes.size() == sizeof(T) ? load<T>(bytes) : std::nullopt;
}

std::size_t aligned(std::size_t bytes) noexcept
{
    return (bytes + NLMSG_ALIGNTO - 1) / NLMSG_ALIGNTO * NLMSG_ALIGNTO;
}

bytes_view after(bytes_view bytes, std::size_t count) noexcept
{
    return bytes.subspan(std::min(count, bytes.size()));
}

// libmnl counts in int.
int as_length(std::size_t bytes) noexcept
{
    return static_cast<int>(std::min<std::size_t>(bytes, std::numeric_limits<int>::max()));
}

constexpr std::size_t generic_header = NLMSG_HDRLEN + GENL_HDRLEN;

bool append_path(bytes_view request, std::size_t start, std::size_t end, std::size_t offset,
                 std::vector<std::uint16_t>& path)
{
    while (start < end) {
        auto const head = load<nlattr>(request.subspan(start, end - start));
        if (!head || !mnl_attr_ok(&*head, as_length(end - start)) || offset < start)
            return false;
        if (offset < start + head->nla_len) {
            path.push_back(mnl_attr_get_type(&*head));
            bool const nested = (head->nla_type & NLA_F_NESTED) != 0;
            return offset == start ||
                   (nested && append_path(request, start + NLA_HDRLEN, start + head->nla_len, offset, path));
        }
        start += aligned(head->nla_len);
    }
    return false;
}

}  // namespace

request::request(std::uint16_t family, std::uint8_t command, std::uint8_t version, std::uint16_t flags)
    : bytes_(generic_header)
{
    nlmsghdr* const head = mnl_nlmsg_put_header(bytes_.data());
    head->nlmsg_type = family;
    head->nlmsg_flags = static_cast<std::uint16_t>(NLM_F_REQUEST | flags);
    auto* const generic = static_cast<genlmsghdr*>(mnl_nlmsg_put_extra_header(head, sizeof(genlmsghdr)));
    generic->cmd = command;
    generic->version = version;
}

nlmsghdr* request::header() noexcept
{
    return reinterpret_cast<nlmsghdr*>(bytes_.data());
}

nlmsghdr const* request::header() const noexcept
{
    return reinterpret_cast<nlmsghdr const*>(bytes_.data());
}

void request::make_room(std::size_t payload)
{
    if (payload > std::numeric_limits<std::uint16_t>::max() - NLA_HDRLEN)
        throw std::length_error{"netlink attribute longer than 64 KiB"};
    bytes_.resize(aligned(bytes_.size()) + NLA_HDRLEN + aligned(payload));
}

void request::fit()
{
    bytes_.resize(header()->nlmsg_len);
}

request& request::put(std::uint16_t type, std::uint8_t value)
{
    make_room(sizeof(value));
    mnl_attr_put_u8(header(), type, value);
    fit();
    return *this;
}

request& request::put(std::uint16_t type, std::uint16_t value)
{
    make_room(sizeof(value));
    mnl_attr_put_u16(header(), type, value);
    fit();
    return *this;
}

request& request::put(std::uint16_t type, std::uint32_t value)
{
    make_room(sizeof(value));
    mnl_attr_put_u32(header(), type, value);
    fit();
    return *this;
}

request& request::put(std::uint16_t type, std::string_view value)
{
    make_room(value.size() + 1);
    mnl_attr_put_strz(header(), type, std::string{value}.c_str());
    fit();
    return *this;
}

request& request::put_flag(std::uint16_t type)
{
    make_room(0);
    mnl_attr_put(header(), type, 0, nullptr);
    fit();
    return *this;
}

std::size_t request::open_nest(std::uint16_t type)
{
    make_room(0);
    nlattr const* const start = mnl_attr_nest_start(header(), type);
    auto const offset = static_cast<std::size_t>(reinterpret_cast<std::byte const*>(start) - bytes_.data());
    fit();
    return offset;
}

void request::close_nest(std::size_t start)
{
    if (bytes_.size() - start > std::numeric_limits<std::uint16_t>::max())
        throw std::length_error{"netlink attribute longer than 64 KiB"};
    mnl_attr_nest_end(header(), reinterpret_cast<nlattr*>(bytes_.data() + start));
}

std::uint32_t request::sequence() const noexcept
{
    return header()->nlmsg_seq;
}

void request::set_sequence(std::uint32_t value) noexcept
{
    header()->nlmsg_seq = value;
}

bool request::is_dump() const noexcept
{
    return (header()->nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP;
}

std::vector<std::uint16_t> path_at(bytes_view request, std::uint32_t offset)
{
    std::vector<std::uint16_t> path;
    if (!append_path(request, generic_header, request.size(), offset, path))
        path.clear();
    return path;
}

std::optional<std::uint8_t> attribute::u8() const noexcept
{
    return load_exactly<std::uint8_t>(value_);
}

std::optional<std::uint16_t> attribute::u16() const noexcept
{
    return load_exactly<std::uint16_t>(value_);
}

std::optional<std::uint32_t> attribute::u32() const noexcept
{
    return load_exactly<std::uint32_t>(value_);
}

std::optional<std::uint64_t> attribute::uint() const noexcept
{
    if (auto const small = u32())
        return *small;
    return load_exactly<std::uint64_t>(value_);
}

std::string_view attribute::text() const noexcept
{
    std::string_view const all{reinterpret_cast<char const*>(value_.data()), value_.size()};
    return all.substr(0, all.find('\0'));
}

std::optional<attribute> attributes::take(bytes_view& rest) noexcept
{
    auto const head = load<nlattr>(rest);
    if (!head || !mnl_attr_ok(&*head, as_length(rest.size())))
        return std::nullopt;
    attribute const taken{mnl_attr_get_type(&*head), rest.subspan(NLA_HDRLEN, head->nla_len - NLA_HDRLEN)};
    rest = after(rest, aligned(head->nla_len));
    return taken;
}

std::optional<attribute> attributes::find(std::uint16_t type) const noexcept
{
    for (bytes_view rest = bytes_; auto const one = take(rest);) {
        if (one->type() == type)
            return one;
    }
    return std::nullopt;
}

std::optional<std::uint8_t> attributes::u8(std::uint16_t type) const noexcept
{
    auto const found = find(type);
    return found ? found->u8() : std::nullopt;
}

std::optional<std::uint32_t> attributes::u32(std::uint16_t type) const noexcept
{
    auto const found = find(type);
    return found ? found->u32() : std::nullopt;
}

std::optional<std::uint64_t> attributes::uint(std::uint16_t type) const noexcept
{
    auto const found = find(type);
    return found ? found->uint() : std::nullopt;
}

attributes attributes::nested(std::uint16_t type) const noexcept
{
    auto const found = find(type);
    return found ? attributes{found->value()} : attributes{};
}

std::optional<message> take_message(bytes_view& datagram) noexcept
{
    // Not mnl_nlmsg_ok(): it takes a length above INT_MAX for a negative one, which always fits.
    auto const head = load<nlmsghdr>(datagram);
    if (!head || head->nlmsg_len < NLMSG_HDRLEN || head->nlmsg_len > datagram.size())
        return std::nullopt;
    message const taken{head->nlmsg_type, head->nlmsg_flags, head->nlmsg_seq, head->nlmsg_pid,
                        datagram.subspan(NLMSG_HDRLEN, head->nlmsg_len - NLMSG_HDRLEN)};
    datagram = after(datagram, aligned(head->nlmsg_len));
    return taken;
}

std::optional<generic_message> read_generic(message const& from) noexcept
{
    auto const head = load<genlmsghdr>(from.payload);
    if (!head)
        return std::nullopt;
    return generic_message{head->cmd, attributes{after(from.payload, GENL_HDRLEN)}};
}

std::optional<verdict> read_verdict(message const& from)
{
    auto const error = load<std::int32_t>(from.payload);
    if (!error || (from.type != NLMSG_ERROR && from.type != NLMSG_DONE))
        return std::nullopt;
    verdict result;
    // The kernel sends -errno; a dump may end with any count. INT_MIN has no positive counterpart and no meaning.
    if (*error == std::numeric_limits<std::int32_t>::min())
        result.error = EPROTO;
    else if (*error < 0)
        result.error = -*error;
    if ((from.flags & NLM_F_ACK_TLVS) == 0)
        return result;

    // After an error stands the request's header, and, unless capped, the rest of the request.
    std::size_t skip = sizeof(std::int32_t);
    if (from.type == NLMSG_ERROR) {
        skip = sizeof(nlmsgerr);
        auto const failed = load<nlmsghdr>(after(from.payload, sizeof(std::int32_t)));
        if ((from.flags & NLM_F_CAPPED) == 0 && failed && failed->nlmsg_len > NLMSG_HDRLEN)
            skip += aligned(failed->nlmsg_len - NLMSG_HDRLEN);
    }
    attributes const extra{after(from.payload, skip)};
    if (auto const text = extra.find(uapi::error_attr::msg))
        result.text = text->text();
    result.offset = extra.u32(uapi::error_attr::offs);
    result.missing_type = extra.u32(uapi::error_attr::miss_type);
    result.missing_in = extra.u32(uapi::error_attr::miss_nest);
    return result;
}

}  // namespace gpurx::detail::netlink
