// SPDX-License-Identifier: Apache-2.0
//
// The head of a tensor stream's frame, whatever its bytes: reading stays within them and within the limits, and what is
// taken is encoded to the same bytes again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "stream/frame.hpp"

namespace {

using namespace gpurx::ingest;
using namespace gpurx::ingest::detail;

void check(bool holds)
{
    if (!holds)
        std::abort();
}

constexpr frame_limits limits{.frame_size = 1 << 20, .tensors = 5};

std::optional<frame_head> parse(std::span<std::byte const> head)
{
    try {
        return parse_head(head, limits);
    } catch (gpurx::system_error const& error) {
        check(error.code() == errc::bad_frame || error.code() == errc::wrong_checksum);
        check(!error.why().advice.empty());
        return std::nullopt;
    }
}

// As the receiver does: so many bytes as the start says.
std::size_t head_size(std::span<std::byte const> bytes)
{
    try {
        auto const tensors = count_tensors(bytes.first<frame_start_size>(), limits);
        check(tensors <= limits.tensors);
        return frame_start_size + tensors * frame_tensor_size;
    } catch (gpurx::system_error const& error) {
        check(error.code() == errc::bad_frame);
        return bytes.size();
    }
}

void check_taken(frame_head const& head, std::span<std::byte const> bytes)
{
    check(head.tensors.size() <= limits.tensors);
    check(head.payload_size() <= limits.frame_size);
    check((head.rows == 0) == head.tensors.empty());
    for (auto const& tensor : head.tensors)
        check(row_size(tensor) > 0);
    check(std::ranges::equal(encode(head), bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size)
{
    std::span const input{reinterpret_cast<std::byte const*>(data), size};
    if (size < frame_start_size) {
        check(!parse(input));
        return 0;
    }
    // Memory of exactly this size, so that a byte too many is seen.
    auto const used = std::min(size, head_size(input));
    auto const memory = std::make_unique<std::byte[]>(used);
    std::memcpy(memory.get(), data, used);
    std::span const head{memory.get(), used};
    if (auto const taken = parse(head))
        check_taken(*taken, head);
    // Where a CRC32C stands in the way, what is behind it.
    constexpr std::size_t flags_at = 6;
    constexpr std::size_t crcs_at = 40;
    memory[flags_at] &= std::byte{0xfb};
    std::memset(memory.get() + crcs_at, 0, 8);
    if (auto const taken = parse(head))
        check_taken(*taken, head);
    return 0;
}
