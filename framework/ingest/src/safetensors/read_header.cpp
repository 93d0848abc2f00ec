// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <gpurx/ingest/safetensors.hpp>

#include "../file/location.hpp"

namespace gpurx::ingest {

namespace {

// What is wrong with a header names the tensor, and here the file too.
template <class Object>
asio::awaitable<safetensors_header> read_header(Object& file)
try {
    std::array<std::byte, safetensors_prefix> prefix{};
    // A file without even that is judged by its size.
    if (file.size() >= prefix.size())
        co_await file.async_read_front(host_span{prefix});
    std::string text(safetensors_header_size(prefix, file.size()), '\0');
    co_await file.async_read_front(host_span{std::span{text}});
    co_return parse_safetensors(text, file.size());
} catch (system_error const& failure) {
    if (failure.code() != errc::bad_safetensors)
        throw;
    auto why = failure.why();
    why.object += " of " + (detail::is_local(file.url()) ? printable_text(file.url()) : redacted_url(file.url()));
    throw system_error{failure.code(), why};
}

}  // namespace

asio::awaitable<safetensors_header> async_read_safetensors_header(http_object& file)
{
    return read_header(file);
}

asio::awaitable<safetensors_header> async_read_safetensors_header(object& file)
{
    return read_header(file);
}

}  // namespace gpurx::ingest
