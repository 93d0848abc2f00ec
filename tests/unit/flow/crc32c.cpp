// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <catch2/benchmark/catch_benchmark.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <gpurx/gather.hpp>
#include <span>
#include <string_view>
#include <vector>

namespace gpurx {

namespace {

using bytes_view = std::span<std::byte const>;

// A byte at a time, by other people's code.
std::uint32_t reference(bytes_view bytes)
{
    boost::crc_optimal<32, 0x1edc6f41, 0xffffffff, 0xffffffff, true, true> crc;
    crc.process_bytes(bytes.data(), bytes.size());
    return crc.checksum();
}

// Bytes that tell a mistaken order, or one left out.
void fill(std::span<std::byte> bytes)
{
    std::uint32_t state = 1;
    std::ranges::generate(bytes, [&state] {
        state = state * 1664525 + 1013904223;
        return static_cast<std::byte>(state >> 24);
    });
}

std::vector<std::byte> some_bytes(std::size_t size)
{
    std::vector<std::byte> result(size);
    fill(result);
    return result;
}

// Pages of which those beside `bytes()` cannot be read.
class guarded_pages {
  public:
    guarded_pages()
        : start_{static_cast<std::byte*>(::mmap(nullptr, 3 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))}
    {
        REQUIRE(start_ != MAP_FAILED);
        REQUIRE(::mprotect(start_ + page_, page_, PROT_READ | PROT_WRITE) == 0);
    }
    guarded_pages(guarded_pages const&) = delete;
    guarded_pages& operator=(guarded_pages const&) = delete;
    ~guarded_pages() { ::munmap(start_, 3 * page_); }
    [[nodiscard]] std::span<std::byte> bytes() const { return {start_ + page_, page_}; }

  private:
    std::size_t page_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::byte* start_;
};

// Zeros that take no memory: all pages are the kernel's one.
class many_zeros {
  public:
    explicit many_zeros(std::size_t size)
        : size_{size}, start_{::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)}
    {
        REQUIRE(start_ != MAP_FAILED);
    }
    many_zeros(many_zeros const&) = delete;
    many_zeros& operator=(many_zeros const&) = delete;
    ~many_zeros() { ::munmap(start_, size_); }
    [[nodiscard]] bytes_view bytes() const { return {static_cast<std::byte const*>(start_), size_}; }

  private:
    std::size_t size_;
    void* start_;
};

}  // namespace

TEST_CASE("CRC32C has the values of RFC 3720, appendix B.4")
{
    std::vector<std::byte> bytes(32);
    CHECK(crc32c(bytes) == 0x8a9136aa);
    std::ranges::fill(bytes, std::byte{0xff});
    CHECK(crc32c(bytes) == 0x62a8ab43);
    for (std::size_t i = 0; i < 32; ++i)
        bytes[i] = static_cast<std::byte>(i);
    CHECK(crc32c(bytes) == 0x46dd794e);
    std::ranges::reverse(bytes);
    CHECK(crc32c(bytes) == 0x113fdb5c);

    // An iSCSI command: Read (10).
    unsigned char const command[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0,  //
                                       0x14, 0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
                                       0x28, 0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,    0, 0, 0, 0};
    CHECK(crc32c(std::as_bytes(std::span{command})) == 0xd9963a56);
}

TEST_CASE("CRC32C of the usual check, of nothing, and of nothing more")
{
    std::string_view const text = "123456789";
    CHECK(crc32c(std::as_bytes(std::span{text})) == 0xe3069283);
    CHECK(crc32c({}) == 0);
    CHECK(crc32c({}, 0xe3069283) == 0xe3069283);
}

TEST_CASE("CRC32C of bytes at any address, in any number")
{
    auto const bytes = some_bytes(5000);
    for (std::size_t from = 0; from < 17; ++from) {
        for (std::size_t size = 0; size < 300; ++size)
            REQUIRE(crc32c(bytes_view{bytes}.subspan(from, size)) == reference(bytes_view{bytes}.subspan(from, size)));
        for (std::size_t size = 1000; size < bytes.size() - from; size += 61)
            REQUIRE(crc32c(bytes_view{bytes}.subspan(from, size)) == reference(bytes_view{bytes}.subspan(from, size)));
    }
}

TEST_CASE("CRC32C goes on where it left off, wherever that was")
{
    auto const bytes = some_bytes(1031);
    bytes_view const all{bytes};
    auto const whole = reference(all);
    for (std::size_t cut = 0; cut <= all.size(); ++cut)
        REQUIRE(crc32c(all.subspan(cut), crc32c(all.first(cut))) == whole);
    std::uint32_t crc = 0;
    for (auto const& byte : bytes)
        crc = crc32c({&byte, 1}, crc);
    CHECK(crc == whole);
}

TEST_CASE("CRC32C reads no byte beside those it was given")
{
    guarded_pages const pages;
    auto const bytes = pages.bytes();
    fill(bytes);
    for (std::size_t size = 0; size <= bytes.size(); size += size < 600 ? 1 : 97) {
        REQUIRE(crc32c(bytes.first(size)) == reference(bytes.first(size)));
        REQUIRE(crc32c(bytes.last(size)) == reference(bytes.last(size)));
    }
}

TEST_CASE("CRC32C of more bytes than 32 bits can count")
{
    // 4 GiB of zeros, and some more, from what two ranges in a row add up to.
    constexpr std::size_t few = 4097;
    std::size_t size = 4096;
    auto expected = crc32c(many_zeros{size}.bytes());
    for (; size < std::size_t{4} << 30; size *= 2)
        expected = crc32c_combine(expected, expected, size);
    expected = crc32c_combine(expected, crc32c(many_zeros{few}.bytes()), few);
    many_zeros const zeros{size + few};
    CHECK(crc32c(zeros.bytes()) == expected);
}

TEST_CASE("CRC32C of host memory, written where it is asked for")
{
    auto const bytes = some_bytes(4099);
    std::uint32_t crc = 0;
    memory_span const to{memory_kind::host, reinterpret_cast<std::uintptr_t>(&crc), sizeof crc};
    auto const at = reinterpret_cast<std::uintptr_t>(bytes.data());

    crc32c(memory_span{memory_kind::host, at + 1, 4096}, to);
    CHECK(crc == reference(bytes_view{bytes}.subspan(1, 4096)));
    crc32c(memory_span{memory_kind::host, at, 0}, to);
    CHECK(crc == 0);

    std::vector<fragment> const fragments{{at, 5, memory_kind::host}, {at + 5, 4094, memory_kind::host}};
    std::vector<std::byte> together(5000);
    memory_span const destination{memory_kind::host, reinterpret_cast<std::uintptr_t>(together.data()),
                                  together.size()};
    CHECK(gather_crc32c(fragments, destination, to) == bytes.size());
    CHECK(crc == reference(bytes));
}

TEST_CASE("CRC32C of 256 MiB on the host", "[!benchmark]")
{
    auto const bytes = some_bytes(std::size_t{256} << 20);
    std::uint32_t crc = 0;
    memory_span const from{memory_kind::host, reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size()};
    memory_span const to{memory_kind::host, reinterpret_cast<std::uintptr_t>(&crc), sizeof crc};
    BENCHMARK("a quarter of a GiB")
    {
        crc32c(from, to);
        return crc;
    };
}

}  // namespace gpurx
