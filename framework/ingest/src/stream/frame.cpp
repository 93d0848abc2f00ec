// SPDX-License-Identifier: Apache-2.0
#include "frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <gpurx/crc32c.hpp>
#include <string_view>
#include <utility>

namespace gpurx::ingest::detail {

namespace {

static_assert(std::endian::native == std::endian::little, "numbers go to the wire as they are");

constexpr std::string_view magic{"gpTS"};
constexpr std::uint16_t version = 1;
constexpr std::size_t name_size = 16;
constexpr std::size_t max_row_dimensions = 7;

enum flag : std::uint16_t { wants_ack = 1, is_last = 2, has_crc = 4, begins = 8, ends_epoch = 16, all_flags = 31 };

// Both as on the wire: no padding, little endian.
struct wire_start {
    std::array<char, 4> magic;
    std::uint16_t version;
    std::uint16_t flags;
    std::uint32_t source;
    std::uint32_t tensors;
    std::uint64_t sequence;
    std::uint64_t rows;
    std::uint64_t payload_size;
    std::uint32_t payload_crc;
    std::uint32_t head_crc;  // of the head without these four bytes
};
static_assert(sizeof(wire_start) == frame_start_size);

struct wire_tensor {
    std::array<char, name_size> name;
    std::uint16_t type;
    std::uint16_t dimensions;
    std::uint32_t zero;
    std::array<std::uint64_t, max_row_dimensions> row_shape;
};
static_assert(sizeof(wire_tensor) == frame_tensor_size);

[[noreturn]] void refuse(std::string why)
{
    throw system_error{errc::bad_frame,
                       {.operation = "read frame", .object = {}, .kernel_message = {}, .advice = std::move(why)}};
}

// Bytes from the network, for people: what is not printable as a dot.
std::string printable(std::string_view text)
{
    std::string result{text};
    std::ranges::replace_if(
        result, [](char c) { return c < ' ' || c > '~'; }, '.');
    return result;
}

bool is_name(std::string_view name)
{
    return !name.empty() && name.size() < name_size &&
           std::ranges::all_of(name, [](char c) { return c > ' ' && c <= '~'; });
}

// Shapes and their strides are signed in numpy, torch and DLPack.
bool multiply(std::uint64_t& product, std::uint64_t factor)
{
    std::int64_t result = 0;
    if (__builtin_mul_overflow(product, factor, &result))
        return false;
    product = static_cast<std::uint64_t>(result);
    return true;
}

wire_start start_of(std::span<std::byte const> head)
{
    wire_start start{};
    std::memcpy(&start, head.data(), sizeof start);
    return start;
}

void check(wire_start const& start, frame_limits const& limits)
{
    if (std::string_view const begin{start.magic.data(), start.magic.size()}; begin != magic)
        refuse(fmt::format(R"(it begins with "{}", not with "{}")", printable(begin), magic));
    if (start.version != version)
        refuse(fmt::format("its version is {}, not {}", start.version, version));
    if ((start.flags & ~all_flags) != 0)
        refuse(fmt::format("it has flags that version {} lacks: {:#x}", version, start.flags));
    if (start.tensors > limits.tensors)
        refuse(fmt::format("it has {} tensors, more than {}", start.tensors, limits.tensors));
    if (start.payload_size > limits.frame_size)
        refuse(fmt::format("its payload has {} bytes, more than {}", start.payload_size, limits.frame_size));
    if ((start.rows == 0) != (start.tensors == 0))
        refuse(fmt::format("it has {} rows of {} tensors", start.rows, start.tensors));
    if (start.rows == 0 && (start.flags & (is_last | ends_epoch)) == 0)
        refuse("it has no rows, and is not a last frame");
    if ((start.flags & is_last) != 0 && (start.flags & ends_epoch) != 0)
        refuse("it ends both its source and an epoch before the next one");
    if ((start.flags & begins) != 0 && start.sequence != 0)
        refuse(fmt::format("it has the flag of a first frame, and is frame {}", start.sequence));
    if ((start.flags & has_crc) == 0 && (start.payload_crc != 0 || start.head_crc != 0))
        refuse("it has a CRC32C, but not the flag for it");
}

void check_head_crc(std::span<std::byte const> head, wire_start const& start)
{
    constexpr auto before = frame_start_size - sizeof start.head_crc;
    auto const crc = crc32c(head.subspan(frame_start_size), crc32c(head.first(before)));
    if ((start.flags & has_crc) != 0 && crc != start.head_crc)
        throw system_error{
            errc::wrong_checksum,
            {.operation = "read frame",
             .object = {},
             .kernel_message = {},
             .advice = fmt::format("the CRC32C of the head of frame {} is {:#010x}, and the frame announces {:#010x}",
                                   start.sequence, crc, start.head_crc)}};
}

tensor_spec parse_tensor(std::span<std::byte const> bytes)
{
    wire_tensor wire{};
    std::memcpy(&wire, bytes.data(), sizeof wire);
    std::string_view const padded{wire.name.data(), wire.name.size()};
    auto const name = padded.substr(0, padded.find('\0'));
    if (!is_name(name) || padded.find_first_not_of('\0', name.size()) != std::string_view::npos)
        refuse(fmt::format(R"(the name of a tensor is "{}")", printable(padded)));
    if (!is_dtype(wire.type))
        refuse(fmt::format("tensor {} has an unknown dtype: {:#06x}", name, wire.type));
    if (wire.dimensions > max_row_dimensions)
        refuse(fmt::format("tensor {} has {} dimensions besides the rows, more than {}", name, wire.dimensions,
                           max_row_dimensions));
    auto const shape = std::span{wire.row_shape}.first(wire.dimensions);
    if (wire.zero != 0 || std::ranges::any_of(std::span{wire.row_shape}.subspan(wire.dimensions), std::identity{}))
        refuse(fmt::format("tensor {} has other bytes than zeros in a reserved place", name));
    return {std::string{name}, static_cast<dtype>(wire.type), {shape.begin(), shape.end()}};
}

void check_names(std::span<tensor_spec const> tensors)
{
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        auto const& name = tensors[i].name;
        if (!is_name(name))
            refuse(fmt::format(R"(the name of a tensor is "{}")", printable(name)));
        if (std::ranges::find(tensors.first(i), name, &tensor_spec::name) != tensors.first(i).end())
            refuse(fmt::format("two tensors are named {}", name));
    }
}

wire_tensor wire_of(tensor_spec const& tensor)
{
    if (!is_dtype(static_cast<std::uint16_t>(tensor.type)) || tensor.row_shape.size() > max_row_dimensions)
        refuse(fmt::format("tensor {} has an unknown dtype, or too many dimensions", tensor.name));
    wire_tensor wire{};
    std::ranges::copy(tensor.name, wire.name.begin());
    wire.type = static_cast<std::uint16_t>(tensor.type);
    wire.dimensions = static_cast<std::uint16_t>(tensor.row_shape.size());
    std::ranges::copy(tensor.row_shape, wire.row_shape.begin());
    return wire;
}

// Moves `to` behind it.
template <class Wire>
void put(std::byte*& to, Wire const& wire)
{
    std::memcpy(to, &wire, sizeof wire);
    to += sizeof wire;
}

}  // namespace

std::uint64_t frame_head::payload_size() const
{
    auto size = row_size(tensors);
    if (!multiply(size, rows))
        refuse(fmt::format("the size of its {} rows overflows 64 bits", rows));
    return size;
}

std::vector<std::byte> encode(frame_head const& head)
{
    check_names(head.tensors);
    wire_start start{};
    std::ranges::copy(magic, start.magic.begin());
    start.version = version;
    start.flags = static_cast<std::uint16_t>((head.wants_ack ? wants_ack : 0) | (head.is_last ? is_last : 0) |
                                             (head.has_crc ? has_crc : 0) | (head.begins ? begins : 0) |
                                             (head.ends_epoch ? ends_epoch : 0));
    start.source = head.source;
    start.tensors = static_cast<std::uint32_t>(head.tensors.size());
    start.sequence = head.sequence;
    start.rows = head.rows;
    start.payload_size = head.payload_size();
    start.payload_crc = head.has_crc ? head.payload_crc : 0;
    check(start, {.frame_size = ~std::uint64_t{0}, .tensors = ~std::uint32_t{0}});

    std::vector<std::byte> bytes(sizeof start + head.tensors.size() * sizeof(wire_tensor));
    auto* to = bytes.data();
    put(to, start);
    for (auto const& tensor : head.tensors)
        put(to, wire_of(tensor));
    if (head.has_crc) {
        auto const whole = std::span{bytes};
        auto const before = frame_start_size - sizeof start.head_crc;
        start.head_crc = crc32c(whole.subspan(frame_start_size), crc32c(whole.first(before)));
        std::memcpy(bytes.data() + before, &start.head_crc, sizeof start.head_crc);
    }
    return bytes;
}

std::uint32_t count_tensors(std::span<std::byte const, frame_start_size> start, frame_limits const& limits)
{
    auto const parsed = start_of(start);
    check(parsed, limits);
    return parsed.tensors;
}

frame_head parse_head(std::span<std::byte const> head, frame_limits const& limits)
{
    if (head.size() < frame_start_size)
        refuse("its head is incomplete");
    auto const start = start_of(head);
    check(start, limits);
    if (head.size() != frame_start_size + start.tensors * frame_tensor_size)
        refuse("the length of its head does not fit its number of tensors");
    check_head_crc(head, start);

    frame_head result{.source = start.source,
                      .sequence = start.sequence,
                      .rows = start.rows,
                      .wants_ack = (start.flags & wants_ack) != 0,
                      .is_last = (start.flags & is_last) != 0,
                      .ends_epoch = (start.flags & ends_epoch) != 0,
                      .begins = (start.flags & begins) != 0,
                      .has_crc = (start.flags & has_crc) != 0,
                      .payload_crc = start.payload_crc};
    for (std::size_t i = 0; i < start.tensors; ++i)
        result.tensors.push_back(parse_tensor(head.subspan(frame_start_size + i * frame_tensor_size)));
    check_names(result.tensors);
    if (auto const size = result.payload_size(); size != start.payload_size)
        refuse(fmt::format("its payload has {} bytes, and {} rows have {}", start.payload_size, start.rows, size));
    return result;
}

std::array<std::byte, frame_ack_size> encode_ack(std::uint64_t sequence) noexcept
{
    return std::bit_cast<std::array<std::byte, frame_ack_size>>(sequence);
}

std::uint64_t parse_ack(std::span<std::byte const, frame_ack_size> ack) noexcept
{
    std::uint64_t sequence = 0;
    std::memcpy(&sequence, ack.data(), sizeof sequence);
    return sequence;
}

}  // namespace gpurx::ingest::detail

namespace gpurx::ingest {

std::uint64_t row_size(tensor_spec const& tensor)
{
    std::uint64_t bits = bits_of(tensor.type);
    for (auto const dimension : tensor.row_shape) {
        if (dimension == 0)
            detail::refuse(fmt::format("tensor {} has a dimension of 0", tensor.name));
        if (!detail::multiply(bits, dimension))
            detail::refuse(fmt::format("the size of a row of tensor {} overflows 64 bits", tensor.name));
    }
    if (bits % 8 != 0)
        detail::refuse(fmt::format("a row of tensor {} is not a whole number of bytes", tensor.name));
    return bits / 8;
}

std::uint64_t row_size(std::span<tensor_spec const> tensors)
{
    std::uint64_t sum = 0;
    for (auto const& tensor : tensors) {
        if (__builtin_add_overflow(sum, row_size(tensor), &sum))
            detail::refuse("the size of a row overflows 64 bits");
    }
    return sum;
}

}  // namespace gpurx::ingest
