// SPDX-License-Identifier: Apache-2.0
//
// A file that says it is safetensors: two bytes that say how much follows the header, and the header. What is accepted
// covers the file once, and has its place in memory.
#include <cstdint>
#include <cstdlib>
#include <gpurx/ingest/safetensors.hpp>
#include <string_view>

namespace {

using namespace gpurx::ingest;

void check(bool holds)
{
    if (!holds)
        std::abort();
}

void check_places(safetensors_header const& header, std::uint64_t begin, std::uint64_t file_size)
{
    auto end = begin;
    for (auto const& tensor : header.tensors) {
        check(tensor.offset == end);
        end += tensor.size;
    }
    check(end == file_size);

    auto const layout = lay_out(header.tensors);
    constexpr std::uint64_t base = 1 << 20;
    auto const places = placements_of(header.tensors, layout, {gpurx::memory_kind::host, base, layout.size});
    std::uint64_t placed = 0;
    for (auto const& place : places) {
        check(place.destination.address() >= base);
        check(place.destination.address() + place.destination.size() <= base + layout.size);
        placed += place.destination.size();
    }
    check(placed == file_size - begin);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size)
{
    if (size < 2)
        return 0;
    std::uint64_t const data_size = data[0] + std::uint64_t{256} * data[1];
    std::string_view const json{reinterpret_cast<char const*>(data) + 2, size - 2};
    auto const begin = safetensors_prefix + json.size();
    try {
        check_places(parse_safetensors(json, begin + data_size), begin, begin + data_size);
    } catch (gpurx::system_error const& error) {
        check(error.code() == errc::bad_safetensors);
    }
    return 0;
}
