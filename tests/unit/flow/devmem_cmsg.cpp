// SPDX-License-Identifier: Apache-2.0
#include "flow/devmem_cmsg.hpp"

#include <netinet/in.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "control_buffer.hpp"

namespace gpurx::detail {

static std::ostream& operator<<(std::ostream& out, devmem_piece const& piece)
{
    if (piece.kind == devmem_piece::where::linear)
        return out << "linear " << piece.size;
    return out << "device " << piece.offset << '+' << piece.size << " token " << piece.token << " of "
               << piece.dmabuf_id;
}

namespace {

using test::control_buffer;

constexpr int scm_timestamp = SO_TIMESTAMP;
constexpr int tcp_inq = 36;

devmem_piece device(std::uint64_t offset, std::uint32_t size, std::uint32_t token, std::uint32_t id)
{
    return {devmem_piece::where::device, size, offset, token, id};
}

devmem_piece linear(std::uint32_t size)
{
    return {devmem_piece::where::linear, size, 0, 0, 0};
}

struct reading {
    std::vector<devmem_piece> pieces;
    bool malformed = false;
};

reading read(std::span<std::byte const> control)
{
    reading result;
    devmem_cmsg_reader reader{control};
    devmem_piece piece;
    while (reader.next(piece))
        result.pieces.push_back(piece);
    CHECK_FALSE(reader.next(piece));  // the end stays the end
    result.malformed = reader.malformed();
    return result;
}

struct scenario {
    std::string name;
    control_buffer control;
    std::vector<devmem_piece> pieces;
    bool malformed = false;
};

void check(std::vector<scenario> const& scenarios)
{
    for (auto const& [name, control, pieces, malformed] : scenarios) {
        INFO(name);
        auto const result = read(control.bytes());
        CHECK(result.pieces == pieces);
        CHECK(result.malformed == malformed);
    }
}

}  // namespace

TEST_CASE("pieces come in the order of their control messages")
{
    check({
        {"nothing", {}, {}},
        {"one in device memory", control_buffer{}.device(8192, 4096, 1, 7), {device(8192, 4096, 1, 7)}},
        {"one on the host", control_buffer{}.linear(100), {linear(100)}},
        {"descending addresses",
         control_buffer{}.device(8192, 4096, 1, 7).device(4096, 4096, 2, 7).device(0, 17, 3, 7),
         {device(8192, 4096, 1, 7), device(4096, 4096, 2, 7), device(0, 17, 3, 7)}},
        {"both kinds, and two bindings",
         control_buffer{}.linear(3).device(0, 5, 9, 7).linear(1).device(64, 6, 10, 8),
         {linear(3), device(0, 5, 9, 7), linear(1), device(64, 6, 10, 8)}},
        {"the largest numbers",
         control_buffer{}.device(~std::uint64_t{0}, ~0U, ~0U, ~0U),
         {device(~std::uint64_t{0}, ~0U, ~0U, ~0U)}},
        {"an empty piece keeps its token", control_buffer{}.device(4096, 0, 4, 7), {device(4096, 0, 4, 7)}},
    });
}

TEST_CASE("messages of other kinds are passed over")
{
    timeval const when{.tv_sec = 1, .tv_usec = 2};
    int const waiting = 12345;
    check({
        {"a timestamp before", control_buffer{}.add(SOL_SOCKET, scm_timestamp, when).linear(9), {linear(9)}},
        {"a timestamp between",
         control_buffer{}.linear(9).add(SOL_SOCKET, scm_timestamp, when).device(0, 1, 2, 3),
         {linear(9), device(0, 1, 2, 3)}},
        {"only a timestamp", control_buffer{}.add(SOL_SOCKET, scm_timestamp, when), {}},
        {"an int of TCP's", control_buffer{}.add(IPPROTO_TCP, tcp_inq, waiting).linear(9), {linear(9)}},
        {"an int at the end, without padding",
         control_buffer{}.linear(9).add(IPPROTO_TCP, tcp_inq, waiting).cut(4),
         {linear(9)}},
        {"descriptors", control_buffer{}.add(SOL_SOCKET, SCM_RIGHTS, waiting).linear(9), {linear(9)}},
        {"our number on another level",
         control_buffer{}.add(SOL_IP, uapi::scm_devmem_dmabuf, uapi::dmabuf_cmsg{1, 2, 3, 4, 5}).linear(9),
         {linear(9)}},
        {"no payload at all",
         control_buffer{}.add(SOL_SOCKET, scm_timestamp, std::span<std::byte const>{}).linear(9),
         {linear(9)}},
    });
}

TEST_CASE("a devmem message that is too short is passed over and told")
{
    std::array<std::byte, 23> const short_payload{};
    check({
        {"one byte short",
         control_buffer{}.add(SOL_SOCKET, uapi::scm_devmem_dmabuf, std::span<std::byte const>{short_payload}).linear(1),
         {linear(1)},
         true},
        {"a header alone",
         control_buffer{}.linear(1).add(SOL_SOCKET, uapi::scm_devmem_linear, std::span<std::byte const>{}),
         {linear(1)},
         true},
    });
}

TEST_CASE("a longer devmem message is read as far as it is known")
{
    struct {
        uapi::dmabuf_cmsg known{4096, 5, 6, 7, 0};
        std::uint64_t of_a_later_kernel = 99;
    } const payload;
    check({{"",
            control_buffer{}.add(SOL_SOCKET, uapi::scm_devmem_dmabuf, payload).linear(1),
            {device(4096, 5, 6, 7), linear(1)}}});
}

TEST_CASE("an impossible length ends the reading and is told")
{
    uapi::dmabuf_cmsg const piece{0, 1, 2, 3, 0};
    auto const lying = [&](std::size_t length) {
        return control_buffer{}.linear(7).add(SOL_SOCKET, uapi::scm_devmem_dmabuf, piece, length).linear(8);
    };
    check({
        {"length 1", lying(1), {linear(7)}, true},
        {"one less than a header", lying(sizeof(cmsghdr) - 1), {linear(7)}, true},
        {"beyond the end", lying(81), {linear(7)}, true},
        {"the largest length", lying(std::numeric_limits<std::size_t>::max()), {linear(7)}, true},
        {"a length that wraps when padded", lying(std::numeric_limits<std::size_t>::max() - 3), {linear(7)}, true},
        {"cut inside the payload", control_buffer{}.linear(7).device(0, 1, 2, 3).cut(1), {linear(7)}, true},
        {"cut inside the header", control_buffer{}.linear(7).device(0, 1, 2, 3).cut(25), {linear(7)}, true},
        {"only part of a header", control_buffer{}.linear(7).cut(30), {}, true},
    });
    SECTION("length 0")
    {
        control_buffer control;
        control.linear(7).device(0, 1, 2, 3);
        std::vector<std::byte> bytes{control.bytes().begin(), control.bytes().end()};
        std::memset(bytes.data() + CMSG_SPACE(sizeof piece), 0, sizeof(std::size_t));
        auto const result = read(bytes);
        CHECK(result.pieces == std::vector{linear(7)});
        CHECK(result.malformed);
    }
    SECTION("reaching exactly to the end is possible")
    {
        check({{"", lying(80), {linear(7), device(0, 1, 2, 3)}}});
    }
}

TEST_CASE("bytes at odd addresses are read")
{
    control_buffer control;
    control.device(8192, 4096, 1, 7).linear(5);
    for (std::size_t shift = 0; shift < 8; ++shift) {
        std::vector<std::byte> bytes(shift + control.bytes().size());
        std::ranges::copy(control.bytes(), bytes.begin() + static_cast<std::ptrdiff_t>(shift));
        auto const result = read(std::span{bytes}.subspan(shift));
        CHECK(result.pieces == std::vector{device(8192, 4096, 1, 7), linear(5)});
        CHECK_FALSE(result.malformed);
    }
}

TEST_CASE("every prefix of good control bytes is safe to read")
{
    control_buffer control;
    control.device(8192, 4096, 1, 7).add(IPPROTO_TCP, tcp_inq, 5).linear(5).device(0, 1, 2, 3);
    for (std::size_t size = 0; size <= control.bytes().size(); ++size) {
        // A copy of exactly this size, so that the address sanitizer sees a byte too many.
        std::vector<std::byte> const bytes(control.bytes().begin(),
                                           control.bytes().begin() + static_cast<std::ptrdiff_t>(size));
        auto const result = read(bytes);
        CHECK(result.pieces.size() <= 3);
    }
}

TEST_CASE("the size of a control buffer is what the messages of its pieces take")
{
    control_buffer control;
    for (std::uint32_t i = 0; i < 5; ++i)
        control.device(0, 1, i, 3);
    CHECK(devmem_control_size(5) == control.bytes().size());
    CHECK(devmem_control_size(1) == CMSG_SPACE(sizeof(uapi::dmabuf_cmsg)));
    CHECK(devmem_control_size(0) == 0);
}

}  // namespace gpurx::detail
