// SPDX-License-Identifier: Apache-2.0
#include "tensor_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

using gpurx::ingest::dtype;

namespace {

[[noreturn]] void fail(std::string const& why)
{
    throw std::runtime_error{why};
}

// ---- .npy: "\x93NUMPY", version, length of a Python dictionary, which says type and shape ----

constexpr std::string_view npy_magic{"\x93NUMPY"};

// The text between `key` and the next of `ends`.
std::string_view value_of(std::string_view header, std::string_view key, char ends)
{
    auto const at = header.find(key);
    if (at == std::string_view::npos)
        fail(fmt::format("the header has no {}", key));
    auto const rest = header.substr(at + key.size());
    return rest.substr(0, rest.find(ends));
}

dtype npy_type(std::string_view header)
{
    struct entry {
        std::string_view text;
        dtype type;
    };
    constexpr std::array types{
        entry{"|i1", dtype::i8},      entry{"<i2", dtype::i16},   entry{"<i4", dtype::i32}, entry{"<i8", dtype::i64},
        entry{"|u1", dtype::u8},      entry{"<u2", dtype::u16},   entry{"<u4", dtype::u32}, entry{"<u8", dtype::u64},
        entry{"<f2", dtype::f16},     entry{"<f4", dtype::f32},   entry{"<f8", dtype::f64}, entry{"<c8", dtype::c64},
        entry{"|b1", dtype::boolean}, entry{"<c16", dtype::c128},
    };
    auto const text = value_of(header, "'descr': '", '\'');
    auto const* const found = std::ranges::find(types, text, &entry::text);
    if (found == types.end())
        fail(fmt::format("its elements are '{}', which tensor streams do not support", text));
    return found->type;
}

std::vector<std::uint64_t> numbers_in(std::string_view text, char between)
{
    std::vector<std::uint64_t> numbers;
    auto const* at = text.data();
    auto const* const end = text.data() + text.size();
    while (at != end) {
        at = std::find_if(at, end, [&](char c) { return c != ' ' && c != between; });
        if (at == end)
            break;
        std::uint64_t number = 0;
        auto const [stop, error] = std::from_chars(at, end, number);
        if (error != std::errc{})
            fail(fmt::format(R"("{}" is not a shape)", text));
        numbers.push_back(number);
        at = stop;
    }
    return numbers;
}

// The tensor, and where its bytes begin.
struct description {
    dtype type = dtype::u8;
    std::vector<std::uint64_t> shape{};
    std::size_t begin = 0;
    bool big_endian = false;
};

std::string_view text_of(std::span<std::byte const> bytes)
{
    return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

description read_npy(std::span<std::byte const> file)
{
    constexpr std::size_t before_length = 8;
    auto const length_size = static_cast<std::size_t>(file.size() > 6 && file[6] == std::byte{1} ? 2 : 4);
    std::uint32_t length = 0;
    if (file.size() < before_length + length_size)
        fail("it is incomplete");
    std::memcpy(&length, file.data() + before_length, length_size);
    auto const begin = before_length + length_size + length;
    if (file.size() < begin)
        fail("its header is incomplete");
    auto const header = text_of(file.subspan(before_length + length_size, length));
    if (value_of(header, "'fortran_order': ", ',') != "False")
        fail("it is in Fortran order");
    return {npy_type(header), numbers_in(value_of(header, "'shape': (", ')'), ','), begin};
}

// ---- IDX: two zeros, type, number of dimensions, the dimensions; all big endian ----

std::optional<dtype> idx_type(std::byte code)
{
    switch (static_cast<unsigned>(code)) {
        case 0x08:
            return dtype::u8;
        case 0x09:
            return dtype::i8;
        case 0x0b:
            return dtype::i16;
        case 0x0c:
            return dtype::i32;
        case 0x0d:
            return dtype::f32;
        case 0x0e:
            return dtype::f64;
        default:
            return std::nullopt;
    }
}

bool is_idx(std::span<std::byte const> file)
{
    return file.size() > 4 && file[0] == std::byte{0} && file[1] == std::byte{0} && idx_type(file[2]) &&
           file[3] != std::byte{0} && file.size() >= 4 + 4 * static_cast<std::size_t>(file[3]);
}

description read_idx(std::span<std::byte const> file)
{
    auto const dimensions = static_cast<std::size_t>(file[3]);
    description result{*idx_type(file[2]), {}, 4 + 4 * dimensions, true};
    for (std::size_t i = 0; i < dimensions; ++i) {
        std::uint32_t size = 0;
        std::memcpy(&size, file.data() + 4 + 4 * i, sizeof size);
        result.shape.push_back(__builtin_bswap32(size));
    }
    return result;
}

// ---- bytes ----

struct mapped_file {
    std::shared_ptr<void const> owner;
    std::span<std::byte const> bytes;
};

mapped_file map_file(std::string const& path)
{
    auto const check = [&path](bool worked) {
        if (!worked)
            throw std::system_error{errno, std::generic_category(), path};
    };
    auto const file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    check(file >= 0);
    struct stat status {};
    auto const known = ::fstat(file, &status) == 0;
    auto const size = static_cast<std::size_t>(status.st_size);
    void* const at = known && size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0) : nullptr;
    ::close(file);
    check(known && at != MAP_FAILED);
    if (size == 0)
        fail(fmt::format("{} is empty", path));
    std::shared_ptr<void const> owner{at, [size](void const* begin) { ::munmap(const_cast<void*>(begin), size); }};
    return {std::move(owner), {static_cast<std::byte const*>(at), size}};
}

void use_own_bytes(tensor_rows& tensor, std::vector<std::byte> bytes)
{
    auto owner = std::make_shared<std::vector<std::byte> const>(std::move(bytes));
    tensor.bytes = *owner;
    tensor.owner = std::move(owner);
}

void to_little_endian(tensor_rows& tensor)
{
    auto const element = bits_of(tensor.spec.type) / 8;
    if (element == 1)
        return;
    std::vector<std::byte> turned{tensor.bytes.begin(), tensor.bytes.end()};
    for (auto at = turned.begin(); at != turned.end(); at += element)
        std::reverse(at, at + element);
    use_own_bytes(tensor, std::move(turned));
}

// Nothing random, and no two rows alike.
void make_up(tensor_rows& tensor, std::uint64_t rows)
{
    auto const row = row_size(tensor.spec);
    std::vector<std::byte> bytes(rows * row);
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::byte>((i * 7 + i / row * 13 + i / 4099) % 251);
    tensor.rows = rows;
    use_own_bytes(tensor, std::move(bytes));
}

void take(tensor_rows& tensor, mapped_file const& file, description const& found)
{
    if (found.shape.empty())
        fail("it has no rows, only a single element");
    tensor.rows = found.shape.front();
    tensor.spec.type = found.type;
    tensor.spec.row_shape.assign(found.shape.begin() + 1, found.shape.end());
    auto const row = row_size(tensor.spec);
    auto const there = file.bytes.size() - found.begin;
    if (tensor.rows == 0 || tensor.rows > there / row)
        fail(fmt::format("it has {} bytes for {} rows of {}", there, tensor.rows, row));
    tensor.owner = file.owner;
    tensor.bytes = file.bytes.subspan(found.begin, tensor.rows * row);
    if (found.big_endian)
        to_little_endian(tensor);
}

void take_raw(tensor_rows& tensor, mapped_file const& file)
{
    auto const row = row_size(tensor.spec);
    if (file.bytes.size() % row != 0)
        fail(fmt::format("its {} bytes are not a whole number of rows of {}", file.bytes.size(), row));
    tensor.rows = file.bytes.size() / row;
    tensor.owner = file.owner;
    tensor.bytes = file.bytes;
}

void take_file(tensor_rows& tensor, std::string const& path)
{
    auto const file = map_file(path);
    if (text_of(file.bytes).starts_with(npy_magic))
        return take(tensor, file, read_npy(file.bytes));
    if (is_idx(file.bytes))
        return take(tensor, file, read_idx(file.bytes));
    fail("it is neither .npy nor IDX: add type and shape, as FILE:F32:3x224x224");
}

// The text of FILE:DTYPE:SHAPE before the type, if there is one.
std::optional<std::string> split_type(std::string const& what, gpurx::ingest::tensor_spec& spec)
{
    auto const shape_at = what.rfind(':');
    if (shape_at == std::string::npos || shape_at == 0)
        return std::nullopt;
    auto const type_at = what.rfind(':', shape_at - 1);
    if (type_at == std::string::npos)
        return std::nullopt;
    auto const type = gpurx::ingest::dtype_named(what.substr(type_at + 1, shape_at - type_at - 1));
    if (!type)
        return std::nullopt;
    spec.type = *type;
    spec.row_shape = numbers_in(std::string_view{what}.substr(shape_at + 1), 'x');
    return what.substr(0, type_at);
}

}  // namespace

tensor_rows open_tensor(std::string const& argument, std::uint64_t synthetic_rows)
try {
    auto const equals = argument.find('=');
    if (equals == std::string::npos)
        fail("expected NAME=FILE");
    tensor_rows tensor;
    tensor.spec.name = argument.substr(0, equals);
    auto const what = argument.substr(equals + 1);
    auto const raw = split_type(what, tensor.spec);
    if (!raw)
        take_file(tensor, what);
    else if (*raw == "synthetic")
        make_up(tensor, synthetic_rows);
    else
        take_raw(tensor, map_file(*raw));
    return tensor;
} catch (gpurx::system_error const& error) {
    throw std::runtime_error{fmt::format("{}: {}", argument, error.why().advice)};
} catch (std::exception const& error) {
    throw std::runtime_error{fmt::format("{}: {}", argument, error.what())};
}

shard::shard(std::vector<tensor_rows> tensors, options const& wanted)
    : tensors_{std::move(tensors)},
      rows_{tensors_.front().rows},
      epochs_{wanted.epochs},
      source_{wanted.source},
      sources_{wanted.sources}
{
    constexpr std::uint64_t good_frame_size = 4 << 20;
    std::uint64_t row = 0;  // bytes, of all tensors
    for (auto const& tensor : tensors_) {
        row += row_size(tensor.spec);
        if (tensor.rows != rows_)
            throw std::runtime_error{fmt::format("the tensors must have the same number of rows: {} has {}, {} has {}",
                                                 tensor.spec.name, tensor.rows, tensors_.front().spec.name, rows_)};
    }
    rows_per_frame_ = wanted.rows_per_frame > 0
                          ? wanted.rows_per_frame
                          : std::max<std::uint64_t>(good_frame_size / std::max<std::uint64_t>(row, 1), 1);
    auto const all = (rows_ + rows_per_frame_ - 1) / rows_per_frame_;
    frames_per_epoch_ = all / sources_ + (all % sources_ > source_ ? 1 : 0);
}

std::uint64_t shard::frames() const noexcept
{
    return std::max<std::uint64_t>(epochs_ * frames_per_epoch_, 1);
}

std::vector<gpurx::ingest::tensor_view> shard::at(std::uint64_t frame) const
{
    std::vector<gpurx::ingest::tensor_view> result;
    if (frames_per_epoch_ == 0)
        return result;
    auto const first = (frame % frames_per_epoch_ * sources_ + source_) * rows_per_frame_;
    auto const rows = std::min(rows_per_frame_, rows_ - first);
    for (auto const& tensor : tensors_) {
        auto const row = row_size(tensor.spec);
        result.push_back({tensor.spec, tensor.bytes.subspan(first * row, rows * row)});
    }
    return result;
}
