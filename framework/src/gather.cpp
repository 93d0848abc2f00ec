// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <gpurx/gather.hpp>

namespace gpurx {

std::size_t gather(std::span<fragment const> fragments, device_span destination, cuda_stream_ref /*stream*/,
                   error_code& code) noexcept
{
    auto const reachable = [](fragment const& piece) { return piece.kind == memory_kind::host; };
    std::size_t room = destination.size();
    auto const fits = [&room](fragment const& piece) {
        if (piece.size > room)
            return false;
        room -= piece.size;
        return true;
    };
    if (destination.kind() != memory_kind::host || !std::ranges::all_of(fragments, reachable) ||
        !std::ranges::all_of(fragments, fits)) {
        code = errc::bad_destination;
        return 0;
    }
    auto* to = reinterpret_cast<std::byte*>(destination.address());
    for (auto const& piece : fragments) {
        std::memcpy(to, reinterpret_cast<std::byte const*>(piece.address), piece.size);
        to += piece.size;
    }
    code.clear();
    return destination.size() - room;
}

std::size_t gather(std::span<fragment const> fragments, device_span destination, cuda_stream_ref stream)
{
    error_code code;
    auto const placed = gather(fragments, destination, stream, code);
    if (code)
        throw system_error{code, {.operation = "gather", .object = {}, .kernel_message = {}, .advice = {}}};
    return placed;
}

}  // namespace gpurx
