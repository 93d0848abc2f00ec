// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <gpurx/gather.hpp>

#include "gpu_work.hpp"

namespace gpurx {

namespace {

bool fit(std::span<fragment const> fragments, std::size_t room) noexcept
{
    return std::ranges::all_of(fragments, [&room](fragment const& piece) {
        if (piece.size > room)
            return false;
        room -= piece.size;
        return true;
    });
}

bool is_on_host(fragment const& piece) noexcept
{
    return piece.kind == memory_kind::host;
}

std::size_t copy_on_host(std::span<fragment const> fragments, std::byte* to) noexcept
{
    std::size_t placed = 0;
    for (auto const& piece : fragments) {
        auto const* const from = reinterpret_cast<std::byte const*>(piece.address);
        if (from != to + placed)
            std::memcpy(to + placed, from, piece.size);
        placed += piece.size;
    }
    return placed;
}

std::size_t gather_to_host(std::span<fragment const> fragments, memory_span destination, cuda_stream_ref stream,
                           error_code& code) noexcept
{
    auto* const to = reinterpret_cast<std::byte*>(destination.address());
    code.clear();
    auto const on_gpu = std::ranges::find_if_not(fragments, is_on_host);
    if (on_gpu == fragments.end())
        return copy_on_host(fragments, to);
    auto const ordinal = detail::place_of(on_gpu->address).ordinal;
    if (ordinal != detail::no_gpu)
        return detail::copy_from_gpu(fragments, {to, destination.size()}, ordinal, &stream, code);
    code = errc::bad_destination;
    return 0;
}

// The GPU of a destination that fits, or the error.
detail::gpu_place gpu_for(std::span<fragment const> fragments, memory_span destination, error_code& code) noexcept
{
    auto const place =
        fit(fragments, destination.size()) ? detail::place_of(destination.address()) : detail::gpu_place{};
    if (place.ordinal == detail::no_gpu)
        code = errc::bad_destination;
    return place;
}

void write_crc(std::byte const* bytes, std::size_t size, memory_span to) noexcept
{
    auto const value = crc32c({bytes, size});
    std::memcpy(reinterpret_cast<void*>(to.address()), &value, sizeof value);
}

[[noreturn]] void refuse(error_code code, char const* operation = "gather")
{
    throw system_error{code, {.operation = operation, .object = {}, .kernel_message = {}, .advice = {}}};
}

}  // namespace

std::size_t gather(std::span<fragment const> fragments, memory_span destination, cuda_stream_ref stream,
                   error_code& code) noexcept
{
    if (destination.kind() == memory_kind::host && fit(fragments, destination.size()))
        return gather_to_host(fragments, destination, stream, code);
    auto const place = gpu_for(fragments, destination, code);
    if (place.ordinal == detail::no_gpu)
        return 0;
    return detail::gather_on_gpu(fragments, destination, {.ordinal = place.ordinal, .stream = stream},
                                 {.destination_of = place.context}, code);
}

std::size_t gather(std::span<fragment const> fragments, memory_span destination, cuda_stream_ref stream)
{
    error_code code;
    auto const placed = gather(fragments, destination, stream, code);
    if (code)
        refuse(code);
    return placed;
}

std::size_t gather_crc32c(std::span<fragment const> fragments, memory_span destination, memory_span crc,
                          cuda_stream_ref stream, error_code& code) noexcept
{
    if (crc.size() != sizeof(std::uint32_t) || crc.address() % alignof(std::uint32_t) != 0) {
        code = errc::bad_destination;
        return 0;
    }
    if (destination.kind() == memory_kind::host) {
        if (crc.kind() != memory_kind::host) {
            code = errc::bad_destination;
            return 0;
        }
        auto const placed = gather(fragments, destination, stream, code);
        if (!code)
            write_crc(reinterpret_cast<std::byte const*>(destination.address()), placed, crc);
        return placed;
    }
    auto const place = gpu_for(fragments, destination, code);
    if (place.ordinal == detail::no_gpu)
        return 0;
    return detail::gather_crc32c_on_gpu(fragments, destination, crc.address(),
                                        {.ordinal = place.ordinal, .stream = stream}, code);
}

std::size_t gather_crc32c(std::span<fragment const> fragments, memory_span destination, memory_span crc,
                          cuda_stream_ref stream)
{
    error_code code;
    auto const placed = gather_crc32c(fragments, destination, crc, stream, code);
    if (code)
        refuse(code);
    return placed;
}

void crc32c(memory_span bytes, memory_span crc, cuda_stream_ref stream, error_code& code) noexcept
{
    fragment const all{bytes.address(), bytes.size(), bytes.kind()};
    static_cast<void>(gather_crc32c({&all, bytes.empty() ? 0U : 1U}, bytes, crc, stream, code));
}

void crc32c(memory_span bytes, memory_span crc, cuda_stream_ref stream)
{
    error_code code;
    crc32c(bytes, crc, stream, code);
    if (code)
        refuse(code, "compute CRC32C");
}

}  // namespace gpurx
