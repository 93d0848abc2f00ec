// SPDX-License-Identifier: Apache-2.0
//
// gather and gather_crc32c into host memory and into a GPU's: each alignment, random batches, and what is out of reach.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/crc.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <gpurx/gather.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "asleep.hpp"
#include "bed.hpp"
#include "eventually.hpp"

namespace gpurx::test {

namespace {

using bytes = std::vector<std::byte>;

std::uint32_t reference_crc(std::span<std::byte const> of)
{
    boost::crc_optimal<32, 0x1edc6f41, 0xffffffff, 0xffffffff, true, true> crc;
    crc.process_bytes(of.data(), of.size());
    return crc.checksum();
}

bytes random_bytes(std::size_t size, std::mt19937& random)
{
    bytes result(size);
    std::ranges::generate(result, [&] { return static_cast<std::byte>(random()); });
    return result;
}

// Memory of one kind, to gather from and to.
class place {
  public:
    place(memory_kind kind, std::size_t size) : size_{size}
    {
        if (kind == memory_kind::host)
            host_.resize(size);
        else
            gpu_.emplace(gpu_or_skip(), size);
    }

    [[nodiscard]] memory_span span()
    {
        return gpu_ ? gpu_->span()
                    : memory_span{memory_kind::host, reinterpret_cast<std::uintptr_t>(host_.data()), size_};
    }
    void write(std::span<std::byte const> what)
    {
        if (gpu_)
            gpu_->write(what);
        else
            std::ranges::copy(what, host_.begin());
    }
    void fill(std::byte with) { write(bytes(size_, with)); }
    [[nodiscard]] bytes read() const { return gpu_ ? gpu_->read() : host_; }

  private:
    std::size_t size_;
    bytes host_;
    std::optional<gpu_bytes> gpu_;
};

// A stream where there is a GPU in it.
struct optional_stream {
    explicit optional_stream(memory_kind kind)
    {
        if (kind == memory_kind::device)
            stream.emplace(gpu_or_skip());
    }
    [[nodiscard]] cuda_stream_ref ref() const { return stream ? stream->ref() : cuda_stream_ref{}; }
    void finish()
    {
        if (stream)
            stream->finish();
    }
    std::optional<gpu_test_stream> stream;
};

fragment piece_of(memory_span from, std::size_t offset, std::size_t size)
{
    return {from.address() + offset, size, from.kind()};
}

// Where the bytes of one flow of a devmem run in the lab lay (tests/lab/trace.cpp); addresses are
// from the memory's start.
std::vector<fragment> recorded_run()
{
    auto const* const named = std::getenv("GPURX_TRACE");
    std::ifstream file{named != nullptr ? named : GPURX_TRACE};
    std::vector<fragment> all;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words{line};
        if (fragment next; words >> next.address >> next.size)  // else it is a comment
            all.push_back(next);
    }
    REQUIRE(all.size() > 100);
    return all;
}

std::uint32_t crc_in(place const& from)
{
    std::uint32_t value = 0;
    auto const read = from.read();
    std::memcpy(&value, read.data(), sizeof value);
    return value;
}

}  // namespace

TEST_CASE("a fragment arrives byte for byte at each pair of alignments, and nothing beside it")
{
    auto const kind = GENERATE(memory_kind::host, memory_kind::device);
    std::mt19937 random{3};
    constexpr std::size_t room = 16 + 5000 + 64;
    constexpr auto guard = std::byte{0xee};
    place source{kind, room};
    place destination{kind, room * 16};
    optional_stream stream{kind};
    auto const content = random_bytes(room, random);
    source.write(content);
    for (std::size_t const size : {1U, 2U, 3U, 15U, 16U, 17U, 33U, 511U, 513U, 1448U, 4096U, 5000U}) {
        for (std::size_t from = 0; from < 16; ++from) {
            destination.fill(guard);
            for (std::size_t to = 0; to < 16; ++to) {
                std::array const fragments{piece_of(source.span(), from, size)};
                auto const span = destination.span().subspan(to * room + to, size);
                error_code code;
                REQUIRE(gather(fragments, span, stream.ref(), code) == size);
                REQUIRE_FALSE(code);
            }
            stream.finish();
            auto const got = destination.read();
            for (std::size_t to = 0; to < 16; ++to) {
                auto const slot = std::span{got}.subspan(to * room, room);
                auto const is_guard = [=](std::byte byte) { return byte == guard; };
                INFO("size " << size << " from " << from << " to " << to);
                REQUIRE(std::ranges::equal(slot.subspan(to, size), std::span{content}.subspan(from, size)));
                REQUIRE(std::ranges::all_of(slot.first(to), is_guard));
                REQUIRE(std::ranges::all_of(slot.subspan(to + size), is_guard));
            }
        }
    }
}

TEST_CASE("random batches from all kinds of memory arrive in order, with their CRC")
{
    auto const kind = GENERATE(memory_kind::host, memory_kind::device);
    std::mt19937 random{4};
    constexpr std::size_t size = 1 << 20;
    place source{kind, size};
    place destination{kind, size};
    place crc{kind, 4};
    optional_stream stream{kind};
    auto const content = random_bytes(size, random);
    source.write(content);
    // What a GPU reads across PCIe.
    std::optional<device_memory> pinned;
    if (kind == memory_kind::device)
        pinned = device_memory::on_pinned_host(size);
    if (pinned)
        std::memcpy(reinterpret_cast<void*>(pinned->span().address()), content.data(), size);
    for (int round = 0; round < 60; ++round) {
        std::vector<fragment> fragments;
        bytes expected;
        auto const longest = round % 3 == 0 ? 40 : round % 3 == 1 ? 4096 : 70000;
        for (auto n = random() % 60; n > 0; --n) {
            auto const length = 1 + random() % static_cast<unsigned>(longest);
            if (expected.size() + length > size - 16)
                break;
            auto const at = random() % (size - length);
            auto const from = pinned && random() % 4 == 0 ? pinned->span() : source.span();
            fragments.push_back(piece_of(from, at, length));
            auto const piece = std::span{content}.subspan(at, length);
            expected.insert(expected.end(), piece.begin(), piece.end());
        }
        auto const shift = random() % 16;
        auto const span = destination.span().subspan(shift, size - shift);
        INFO("round " << round << ", " << fragments.size() << " fragments, " << expected.size() << " bytes");
        REQUIRE(gather_crc32c(fragments, span, crc.span(), stream.ref()) == expected.size());
        stream.finish();
        REQUIRE(std::ranges::equal(std::span<std::byte const>{destination.read()}.subspan(shift, expected.size()),
                                   expected));
        REQUIRE(crc_in(crc) == reference_crc(expected));
    }
}

TEST_CASE("the CRC32C of bytes that lie contiguous is computed where they lie")
{
    auto const kind = GENERATE(memory_kind::host, memory_kind::device);
    std::mt19937 random{6};
    constexpr std::size_t size = 300000;
    place bytes_there{kind, size};
    place crc{kind, 4};
    optional_stream stream{kind};
    auto const content = random_bytes(size, random);
    bytes_there.write(content);
    for (int round = 0; round < 40; ++round) {
        auto const from = random() % 100;
        auto const count = round == 0 ? std::size_t{0} : random() % (round % 2 == 0 ? 600 : size - 100);
        INFO("bytes " << from << " to " << from + count);
        crc32c(bytes_there.span().subspan(from, count), crc.span(), stream.ref());
        stream.finish();
        REQUIRE(crc_in(crc) == reference_crc(std::span{content}.subspan(from, count)));
    }
    CHECK(bytes_there.read() == content);
    error_code code;
    crc32c(bytes_there.span(), crc.span().first(3), stream.ref(), code);
    CHECK(code == errc::bad_destination);
}

TEST_CASE("the CRC of two ranges in a row follows from those of each")
{
    std::mt19937 random{5};
    for (std::size_t const cut : {0U, 1U, 7U, 1000U, 4999U, 5000U}) {
        auto const all = random_bytes(5000, random);
        auto const first = std::span{all}.first(cut);
        auto const second = std::span{all}.subspan(cut);
        CHECK(crc32c_combine(reference_crc(first), reference_crc(second), second.size()) == reference_crc(all));
    }
}

TEST_CASE("the fragments of a recorded run are gathered")
{
    auto& on = gpu_or_skip();
    auto const fragments = recorded_run();
    std::size_t end = 0;
    std::size_t sum = 0;
    for (auto const& piece : fragments) {
        end = std::max(end, piece.address + piece.size);
        sum += piece.size;
    }
    std::mt19937 random{8};
    auto const content = random_bytes(end, random);
    gpu_bytes memory{on, end};
    memory.write(content);
    gpu_test_stream stream{on};
    place crc{memory_kind::device, 4};
    for (std::size_t const shift : {0U, 3U}) {
        gpu_bytes destination{on, sum + shift};
        std::vector<fragment> moved;
        bytes expected;
        for (auto const& piece : fragments) {
            moved.push_back({memory.address() + piece.address, piece.size, memory_kind::device});
            auto const from = std::span{content}.subspan(piece.address, piece.size);
            expected.insert(expected.end(), from.begin(), from.end());
        }
        REQUIRE(gather_crc32c(moved, destination.span().subspan(shift, sum), crc.span(), stream.ref()) == sum);
        stream.finish();
        auto const got = destination.read();
        CHECK(std::ranges::equal(std::span{got}.subspan(shift), expected));
        CHECK(crc_in(crc) == reference_crc(expected));
    }
}

TEST_CASE("a gather is enqueued: it returns while its stream stands still, as often as the queue takes", "[hold]")
{
    auto& on = gpu_or_skip();
    std::mt19937 random{6};
    gpu_bytes source{on, 1 << 16};
    gpu_bytes destination{on, 1 << 16};
    gpu_test_stream stream{on};
    auto const content = random_bytes(1 << 16, random);
    source.write(content);
    stream.hold();
    // A driver's queue has room for some thousand commands, and a gather is two or three.
    constexpr std::size_t step = 512;
    for (std::size_t at = 0; at < content.size(); at += step) {
        std::array const fragments{piece_of(source.span(), at, step)};
        REQUIRE(gather(fragments, destination.span().subspan(at, step), stream.ref()) == step);
    }
    CHECK(destination.read() == bytes(1 << 16, std::byte{0xee}));
    stream.let_go();
    stream.finish();
    CHECK(destination.read() == content);
}

TEST_CASE("memory of a GPU comes with the kernels loaded: no gather waits for another stream then", "[hold]")
{
    auto& on = gpu_or_skip();
    std::mt19937 random{9};
    auto const memory = device_memory::on_gpu(0, 1 << 20);
    gpu_bytes source{on, 100};
    gpu_bytes destination{on, 100};
    gpu_bytes crc{on, 4};
    auto const content = random_bytes(100, random);
    source.write(content);
    gpu_test_stream stalled{on};
    gpu_test_stream stream{on};
    // Not gpu_test_stream::hold(), which launches the kernels first.
    detail::cuda::context_scope const scope{on};
    void* gate = nullptr;
    REQUIRE(on.calls().cuMemHostAlloc(&gate, 4, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS);
    auto& word = *static_cast<std::uint32_t*>(gate);
    word = 0;
    REQUIRE(GPURX_DRIVER(cuStreamWaitValue32)(stalled.get(), reinterpret_cast<CUdeviceptr>(gate), 1,
                                              CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
    std::array const piece{piece_of(source.span(), 0, 100)};
    CHECK(gather(piece, destination.span(), stream.ref()) == 100);
    CHECK(gather_crc32c(piece, destination.span(), crc.span(), stream.ref()) == 100);
    stream.finish();
    CHECK(destination.read() == content);
    std::atomic_ref{word}.store(1);
    stalled.finish();
    CHECK(on.calls().cuMemFreeHost(gate) == CUDA_SUCCESS);
}

TEST_CASE("ordinary host memory is brought to the GPU, and the GPU's to the host")
{
    auto& on = gpu_or_skip();
    std::mt19937 random{7};
    auto const content = random_bytes(3 << 20, random);
    gpu_bytes source{on, content.size()};
    gpu_bytes destination{on, content.size()};
    gpu_test_stream stream{on};
    source.write(content);
    place ordinary{memory_kind::host, content.size()};
    ordinary.write(content);
    std::array const mixed{piece_of(ordinary.span(), 0, 1001), piece_of(source.span(), 1001, (3 << 20) - 2002),
                           piece_of(ordinary.span(), (3 << 20) - 1001, 1001)};
    REQUIRE(gather(mixed, destination.span(), stream.ref()) == content.size());
    stream.finish();
    CHECK(destination.read() == content);

    place back{memory_kind::host, content.size()};
    REQUIRE(gather(mixed, back.span()) == content.size());
    CHECK(back.read() == content);

    error_code code;
    place crc{memory_kind::device, 4};
    CHECK(gather_crc32c(mixed, destination.span(), crc.span(), stream.ref(), code) == 0);
    CHECK(code == errc::bad_destination);
}

TEST_CASE("bytes brought to the host include the stream's earlier writes", "[hold]")
{
    auto& on = gpu_or_skip();
    std::mt19937 random{9};
    auto const content = random_bytes(10000, random);
    gpu_bytes source{on, content.size()};
    gpu_bytes tensor{on, content.size()};
    gpu_test_stream stream{on};
    source.write(content);
    place here{memory_kind::host, content.size()};
    stream.hold();
    std::array const first{piece_of(source.span(), 0, content.size())};
    REQUIRE(gather(first, tensor.span(), stream.ref()) == content.size());
    std::size_t placed = 0;
    {
        std::array const second{piece_of(tensor.span(), 0, content.size())};
        std::atomic<pid_t> id{0};
        std::jthread const waits{[&] {
            id = ::gettid();
            placed = gather(second, here.span(), stream.ref());
        }};
        CHECK(eventually([&] { return is_asleep(id); }));
        stream.let_go();
    }
    CHECK(placed == content.size());
    CHECK(here.read() == content);
}

TEST_CASE("a gather that cannot be is refused, and writes nothing")
{
    auto& on = gpu_or_skip();
    gpu_bytes source{on, 4096, std::byte{1}};
    gpu_bytes destination{on, 4096};
    std::array const fragments{piece_of(source.span(), 0, 2000), piece_of(source.span(), 0, 2000)};
    error_code code;
    CHECK(gather(fragments, destination.span().first(3999), {}, code) == 0);
    CHECK(code == errc::bad_destination);
    bytes here(4096);
    memory_span const lie{memory_kind::device, reinterpret_cast<std::uintptr_t>(here.data()), here.size()};
    CHECK(gather(fragments, lie, {}, code) == 0);
    CHECK(code == errc::bad_destination);
    CHECK(gather_crc32c(fragments, destination.span(), destination.span(), {}, code) == 0);
    CHECK(code == errc::bad_destination);
    CHECK(gather_crc32c(fragments, destination.span(), destination.span().subspan(4093, 3), {}, code) == 0);
    CHECK(code == errc::bad_destination);
    CHECK(destination.read() == bytes(4096, std::byte{0xee}));
    CHECK(gather({}, destination.span(), {}, code) == 0);
    CHECK_FALSE(code);
}

TEST_CASE("a stream of another GPU is refused")
{
    auto& first = gpu_or_skip(0);
    auto& second = gpu_or_skip(1);
    gpu_bytes source{first, 4096, std::byte{1}};
    gpu_bytes destination{first, 4096};
    gpu_test_stream stream{second};
    std::array const fragments{piece_of(source.span(), 0, 2000)};
    error_code code;
    CHECK(gather(fragments, destination.span(), stream.ref(), code) == 0);
    CHECK(code == errc::wrong_gpu);
}

}  // namespace gpurx::test
