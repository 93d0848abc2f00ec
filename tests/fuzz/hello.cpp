// SPDX-License-Identifier: Apache-2.0
//
// How a connection of a tensor stream begins, whatever its bytes: what is taken is encoded to the same bytes again.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "stream/hello.hpp"

namespace {

using namespace gpurx::ingest;
using namespace gpurx::ingest::detail;

void check(bool holds)
{
    if (!holds)
        std::abort();
}

// The first bytes, with zeros behind them.
template <std::size_t Size>
std::array<std::byte, Size> begin_of(std::uint8_t const* data, std::size_t size)
{
    std::array<std::byte, Size> bytes{};
    std::memcpy(bytes.data(), data, std::min(size, Size));
    return bytes;
}

template <class Parse, class Bytes>
void check_parse(Parse parse, Bytes const& bytes)
{
    try {
        check(encode(parse(bytes)) == bytes);
    } catch (gpurx::system_error const& error) {
        check(error.code() == errc::bad_frame);
        check(!error.why().advice.empty());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size)
{
    auto const start = begin_of<hello_size>(data, size);
    static_cast<void>(is_hello(start));
    check_parse([](auto const& bytes) { return parse_hello(bytes); }, start);
    check_parse([](auto const& bytes) { return parse_challenge(bytes); }, begin_of<challenge_size>(data, size));
    check_parse([](auto const& bytes) { return parse_welcome(bytes); }, begin_of<welcome_size>(data, size));
    return 0;
}
