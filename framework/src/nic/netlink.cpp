// SPDX-License-Identifier: Apache-2.0
#include "netlink.hpp"

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

// The attribute at `at`, in or behind `within`; null: none fits there.
nlattr const* fitting(void const* at, bytes_view within) noexcept
{
    auto const left = within.data() + within.size() - static_cast<std::byte const*>(at);
    auto const* const attribute = static_cast<nlattr const*>(at);
    return left > 0 && mnl_attr_ok(attribute, as_length(static_cast<std::size_t>(left))) ? attribute : nullptr;
}

bytes_view payload_of(nlattr const* attribute) noexcept
{
    return {static_cast<std::byte const*>(mnl_attr_get_payload(attribute)), mnl_attr_get_payload_len(attribute)};
}

// Nothing: the value has another size.
template <class Number>
std::optional<Number> number(nlattr const* attribute, mnl_attr_data_type type, Number (*get)(nlattr const*)) noexcept
{
    return mnl_attr_validate(attribute, type) == 0 ? std::optional{get(attribute)} : std::nullopt;
}

// Which of the attributes `in` encloses byte `offset` of the request that begins at `base`.
bool append_path(std::byte const* base, bytes_view in, std::size_t offset, std::vector<std::uint16_t>& path)
{
    for (auto const* at = fitting(in.data(), in); at != nullptr; at = fitting(mnl_attr_next(at), in)) {
        auto const start = static_cast<std::size_t>(reinterpret_cast<std::byte const*>(at) - base);
        if (offset < start)
            return false;
        if (offset < start + mnl_attr_get_len(at)) {
            path.push_back(mnl_attr_get_type(at));
            bool const nested = (at->nla_type & NLA_F_NESTED) != 0;
            return offset == start || (nested && append_path(base, payload_of(at), offset, path));
        }
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

request& request::append(std::uint16_t type, void const* value, std::size_t size)
{
    make_room(size);
    mnl_attr_put(header(), type, size, value);
    fit();
    return *this;
}

request& request::put(std::uint16_t type, std::uint8_t value)
{
    return append(type, &value, sizeof value);
}

request& request::put(std::uint16_t type, std::uint16_t value)
{
    return append(type, &value, sizeof value);
}

request& request::put(std::uint16_t type, std::uint32_t value)
{
    return append(type, &value, sizeof value);
}

request& request::put(std::uint16_t type, std::string_view value)
{
    std::string const terminated{value};
    return append(type, terminated.c_str(), terminated.size() + 1);
}

request& request::put_flag(std::uint16_t type)
{
    return append(type, nullptr, 0);
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
    if (!append_path(request.data(), after(request, generic_header), offset, path))
        path.clear();
    return path;
}

std::uint16_t attribute::type() const noexcept
{
    return mnl_attr_get_type(at_);
}

bytes_view attribute::value() const noexcept
{
    return payload_of(at_);
}

std::optional<std::uint8_t> attribute::u8() const noexcept
{
    return number(at_, MNL_TYPE_U8, mnl_attr_get_u8);
}

std::optional<std::uint16_t> attribute::u16() const noexcept
{
    return number(at_, MNL_TYPE_U16, mnl_attr_get_u16);
}

std::optional<std::uint32_t> attribute::u32() const noexcept
{
    return number(at_, MNL_TYPE_U32, mnl_attr_get_u32);
}

std::optional<std::uint64_t> attribute::uint() const noexcept
{
    if (auto const small = u32())
        return *small;
    return number(at_, MNL_TYPE_U64, mnl_attr_get_u64);
}

std::string_view attribute::text() const noexcept
{
    auto const bytes = value();
    std::string_view const all{reinterpret_cast<char const*>(bytes.data()), bytes.size()};
    return all.substr(0, all.find('\0'));
}

nlattr const* attributes::first() const noexcept
{
    return fitting(bytes_.data(), bytes_);
}

nlattr const* attributes::after(nlattr const* at) const noexcept
{
    return fitting(mnl_attr_next(at), bytes_);
}

std::optional<attribute> attributes::find(std::uint16_t type) const noexcept
{
    for (auto const* at = first(); at != nullptr; at = after(at)) {
        if (mnl_attr_get_type(at) == type)
            return attribute{at};
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

namespace nlctrl = uapi::nlctrl;

request family_request(std::string_view name)
{
    request result{nlctrl::family_id, nlctrl::cmd_getfamily, nlctrl::version, NLM_F_ACK};
    result.put(nlctrl::attr_family_name, name);
    return result;
}

std::optional<family> read_family(attributes const& answer)
{
    auto const id = answer.find(nlctrl::attr_family_id);
    if (!id || !id->u16())
        return std::nullopt;
    family result{*id->u16(), {}};
    // An array: each entry is a nest whose type is its place.
    answer.nested(nlctrl::attr_mcast_groups).for_each([&result](attribute const& entry) {
        attributes const group{entry.value()};
        auto const name = group.find(nlctrl::group_name);
        auto const number = group.u32(nlctrl::group_id);
        if (name && number)
            result.groups.emplace(name->text(), *number);
    });
    return result;
}

request policy_request(std::uint16_t family, std::uint8_t command)
{
    request result{nlctrl::family_id, nlctrl::cmd_getpolicy, nlctrl::version, NLM_F_DUMP};
    result.put(nlctrl::attr_family_id, family);
    result.put(nlctrl::attr_op, std::uint32_t{command});
    return result;
}

namespace {

attribute_rule read_rule(attributes const& rule)
{
    return {rule.u32(nlctrl::rule_type).value_or(0), rule.uint(nlctrl::rule_max_unsigned)};
}

}  // namespace

void policy::add(attributes const& answer)
{
    // {command: {do: index, dump: index}}, in the first answer
    answer.nested(nlctrl::attr_op_policy).for_each([this](attribute const& command) {
        if (auto const index = attributes{command.value()}.u32(nlctrl::policy_do))
            index_ = *index;
    });
    // {index: {attribute: {what it must be}}}, one attribute an answer
    answer.nested(nlctrl::attr_policy).for_each([this](attribute const& index) {
        attributes{index.value()}.for_each([this, &index](attribute const& one) {
            policies_[index.type()].insert_or_assign(one.type(), read_rule(attributes{one.value()}));
        });
    });
}

attribute_rules policy::accepted() const
{
    auto const found = index_ ? policies_.find(*index_) : policies_.end();
    return found != policies_.end() ? found->second : attribute_rules{};
}

}  // namespace gpurx::detail::netlink
