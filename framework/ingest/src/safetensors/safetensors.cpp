// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file, and the places of its tensors in memory. Each statement of the header is checked.
// Pure.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/value.hpp>
#include <gpurx/ingest/safetensors.hpp>
#include <string>
#include <string_view>

#include "../net/url.hpp"
#include "json.hpp"

namespace gpurx::ingest {

namespace {

namespace json = boost::json;

constexpr std::string_view metadata_name = "__metadata__";
// A name in a message: as long as it can be read.
constexpr std::size_t name_shown = 100;
constexpr std::size_t words_shown = 1000;

[[noreturn]] void refuse(std::string object, std::string_view what)
{
    throw system_error{errc::bad_safetensors,
                       {.operation = "read the header of",
                        .object = std::move(object),
                        .kernel_message = {},
                        .advice = detail::printable(what, words_shown)}};
}

[[noreturn]] void refuse_file(std::string_view what)
{
    refuse("a safetensors file", what);
}

[[noreturn]] void refuse_tensor(std::string_view name, std::string_view what)
{
    refuse(fmt::format("tensor \"{}\"", detail::printable(name, name_shown)), what);
}

std::uint64_t number_in(json::value const& value, std::string_view tensor, char const* what)
{
    if (value.is_uint64())
        return value.get_uint64();
    if (value.is_int64() && value.get_int64() >= 0)
        return static_cast<std::uint64_t>(value.get_int64());
    refuse_tensor(tensor, fmt::format("{} must consist of whole numbers from 0 to 2^64 - 1", what));
}

json::value const& field_of(json::object const& fields, std::string_view tensor, char const* name)
{
    auto const* const found = fields.if_contains(name);
    if (found == nullptr)
        refuse_tensor(tensor, fmt::format("\"{}\" is missing", name));
    return *found;
}

json::array const& array_of(json::object const& fields, std::string_view tensor, char const* name)
{
    auto const& value = field_of(fields, tensor, name);
    if (!value.is_array())
        refuse_tensor(tensor, fmt::format("\"{}\" must be an array", name));
    return value.get_array();
}

dtype dtype_of(json::object const& fields, std::string_view tensor)
{
    auto const& value = field_of(fields, tensor, "dtype");
    if (!value.is_string())
        refuse_tensor(tensor, "\"dtype\" must be a string");
    std::string_view const name{value.get_string().data(), value.get_string().size()};
    auto const type = dtype_named(name);
    if (!type)
        refuse_tensor(tensor, fmt::format("the dtype \"{}\" is unknown", name.substr(0, name_shown)));
    return *type;
}

std::uint64_t bytes_of(dtype type, std::span<std::uint64_t const> shape, std::string_view tensor)
{
    std::int64_t bits = bits_of(type);
    auto const empty = std::ranges::find(shape, std::uint64_t{0}) != shape.end();
    // Strides are signed, and multiply the dimensions of a tensor without elements, too.
    for (auto const extent : shape) {
        if (extent != 0 && __builtin_mul_overflow(bits, extent, &bits))
            refuse_tensor(tensor, fmt::format("shape [{}] of {} has more bits than a signed 64-bit number counts{}",
                                              fmt::join(shape, ", "), name_of(type),
                                              empty ? ", its dimensions of 0 left out" : ""));
    }
    if (!empty && bits % 8 != 0)
        refuse_tensor(tensor, fmt::format("shape [{}] of {} is not a whole number of bytes", fmt::join(shape, ", "),
                                          name_of(type)));
    return empty ? 0 : static_cast<std::uint64_t>(bits) / 8;
}

safetensor tensor_of(std::string_view name, json::value const& value, std::uint64_t data_begin, std::uint64_t data_size)
{
    if (!value.is_object())
        refuse_tensor(name, "it must be an object with dtype, shape and data_offsets");
    auto const& fields = value.get_object();
    safetensor tensor{.name = std::string{name}, .type = dtype_of(fields, name), .shape = {}};
    for (auto const& extent : array_of(fields, name, "shape"))
        tensor.shape.push_back(number_in(extent, name, "\"shape\""));
    auto const& offsets = array_of(fields, name, "data_offsets");
    if (offsets.size() != 2)
        refuse_tensor(name, "\"data_offsets\" must be [begin, end]");
    auto const begin = number_in(offsets[0], name, "\"data_offsets\"");
    auto const end = number_in(offsets[1], name, "\"data_offsets\"");
    if (begin > end || end > data_size)
        refuse_tensor(name, fmt::format("\"data_offsets\" [{}, {}] lie outside the file's {} bytes of data", begin, end,
                                        data_size));
    tensor.offset = data_begin + begin;
    tensor.size = end - begin;
    if (auto const needed = bytes_of(tensor.type, tensor.shape, name); needed != tensor.size)
        refuse_tensor(
            name, fmt::format("shape [{}] of {} has {} bytes, \"data_offsets\" [{}, {}] have {}",
                              fmt::join(tensor.shape, ", "), name_of(tensor.type), needed, begin, end, tensor.size));
    return tensor;
}

std::map<std::string, std::string> metadata_of(json::value const& value)
{
    std::map<std::string, std::string> metadata;
    // As the safetensors package reads it.
    if (value.is_null())
        return metadata;
    if (!value.is_object())
        refuse_file("\"__metadata__\" must be an object of strings");
    for (auto const& [key, text] : value.get_object()) {
        if (!text.is_string())
            refuse_file("\"__metadata__\" must be an object of strings");
        metadata.emplace(std::string{key}, std::string{text.get_string()});
    }
    return metadata;
}

// The format allows no gap and no byte that belongs to two.
void check_order(std::span<safetensor const> tensors, std::uint64_t data_begin, std::uint64_t file_size)
{
    auto end = data_begin;
    for (auto const& tensor : tensors) {
        if (tensor.offset < end)
            refuse_tensor(tensor.name, "its bytes overlap those of another tensor");
        if (tensor.offset > end)
            refuse_tensor(tensor.name, fmt::format("{} bytes before it belong to no tensor", tensor.offset - end));
        end += tensor.size;
    }
    if (end != file_size)
        refuse_file(fmt::format("{} bytes at its end belong to no tensor", file_size - end));
}

// What 128-bit loads, cuBLAS and TMA ask for; element sizes divide it.
constexpr std::uint64_t least_alignment = 16;
// What cudaMalloc gives.
constexpr std::uint64_t fresh_alignment = 256;

}  // namespace

namespace {

// What a file is by its first bytes, and what to do; empty: not known.
std::string_view describe_other(std::string_view begin)
{
    struct kind {
        std::string_view begin;
        std::string_view text;
    };
    static constexpr std::array kinds{
        kind{"version ", "it is a pointer of Git LFS, not the file: fetch that with `git lfs pull`, or from the hub"},
        kind{"<!DOCTYP", "it is an HTML page: the server wants a login, or the URL is that of a page"},
        kind{"<!doctyp", "it is an HTML page: the server wants a login, or the URL is that of a page"},
        kind{"<html", "it is an HTML page: the server wants a login, or the URL is that of a page"},
        kind{"<?xml", "it is an XML document, as stores send for errors"},
        kind{"GGUF", "it is a GGUF file: gpurx reads safetensors"},
        kind{"PK\x03\x04", "it is a zip file, as torch.save writes: gpurx reads safetensors"},
        kind{"\x80\x02", "it is a pickle, as torch.save writes: gpurx reads safetensors"},
        kind{"\x89HDF", "it is an HDF5 file: gpurx reads safetensors"},
    };
    auto const* const found =
        std::ranges::find_if(kinds, [&](auto const& each) { return begin.starts_with(each.begin); });
    return found == kinds.end() ? std::string_view{} : found->text;
}

}  // namespace

std::uint64_t safetensors_header_size(std::span<std::byte const, safetensors_prefix> prefix, std::uint64_t file_size)
{
    std::uint64_t size = 0;
    for (std::size_t i = prefix.size(); i > 0; --i)
        size = size << 8 | std::to_integer<std::uint64_t>(prefix[i - 1]);
    std::string_view const begin{reinterpret_cast<char const*>(prefix.data()), prefix.size()};
    if (auto const other = describe_other(begin); !other.empty())
        refuse_file(std::string{other});
    if (size > safetensors_header_limit)
        refuse_file(
            fmt::format("its first 8 bytes announce a header of {} bytes; the format allows {} (is it a "
                        "safetensors file?)",
                        size, safetensors_header_limit));
    if (file_size < safetensors_prefix || size > file_size - safetensors_prefix)
        refuse_file(fmt::format("its first 8 bytes announce a header of {} bytes, the file has {}", size, file_size));
    return size;
}

safetensors_header parse_safetensors(std::string_view text, std::uint64_t file_size)
{
    auto const data_begin = safetensors_prefix + text.size();
    if (file_size < data_begin)
        refuse_file(fmt::format("its header ends beyond its {} bytes", file_size));
    if (!text.starts_with('{'))
        refuse_file("its header does not begin with {");
    error_code code;
    std::string twice;
    auto const parsed = detail::parse_json_once(text, code, twice);
    if (code)
        refuse_file("its header is not JSON: " + code.message());
    if (!twice.empty())
        refuse_tensor(twice, "the name occurs twice");
    safetensors_header header;
    for (auto const& [key, value] : parsed.get_object()) {
        if (key == metadata_name)
            header.metadata = metadata_of(value);
        else
            header.tensors.push_back(tensor_of({key.data(), key.size()}, value, data_begin, file_size - data_begin));
    }
    // Those without bytes first: they lie between their neighbours, not in them.
    std::ranges::stable_sort(header.tensors, {}, [](safetensor const& each) {
        return std::pair{each.offset, each.size};
    });
    check_order(header.tensors, data_begin, file_size);
    return header;
}

tensor_layout lay_out(std::span<safetensor const> tensors)
{
    tensor_layout layout;
    for (auto const& tensor : tensors) {
        auto at = layout.size;
        if (at % least_alignment != 0)
            at += fresh_alignment - at % fresh_alignment;
        layout.offsets.push_back(at);
        layout.size = at + tensor.size;
    }
    return layout;
}

std::vector<placement> placements_of(std::span<safetensor const> tensors, tensor_layout const& layout,
                                     memory_span block)
{
    std::vector<placement> placements;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        auto const place = block.subspan(layout.offsets.at(i), tensors[i].size);
        if (place.empty())
            continue;
        if (!placements.empty()) {
            auto& last = placements.back();
            auto const size = last.destination.size();
            if (last.offset + size == tensors[i].offset && last.destination.address() + size == place.address()) {
                last.destination = {place.kind(), last.destination.address(), size + place.size()};
                continue;
            }
        }
        placements.push_back({tensors[i].offset, place});
    }
    return placements;
}

}  // namespace gpurx::ingest
