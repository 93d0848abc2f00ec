// SPDX-License-Identifier: Apache-2.0
//
// Batches in a GPU's memory: when their bytes are there, and when their memory is used again. On the fake driver.
#include <catch2/generators/catch_generators.hpp>

#include "../../ingest/bed.hpp"
#include "fake_world.hpp"

namespace gpurx::ingest::test {

using gpurx::test::clean_driver;
using gpurx::test::gpu_bytes;
using gpurx::test::gpu_or_skip;
using gpurx::test::gpu_test_stream;
using gpurx::test::read_bytes;

namespace {

// Runs what can run, until nothing goes on by itself any more.
void come_to_rest(bed& in)
{
    for (int looks = 0; looks < 2;) {
        in.io.restart();
        auto const rests = in.io.poll() == 0 && gpurx::test::others_sleep() && !gpurx::test::is_on_its_way();
        looks = rests ? looks + 1 : 0;
    }
}

// One source, batches of four rows.
struct gpu_bed : clean_driver {
    explicit gpu_bed(tensor_stream_options options = {}, bool session_on_gpu = false)
        : compute{gpu_or_skip()}, in{on_gpu(std::move(options)), 8, memory(session_on_gpu)}
    {}
    ~gpu_bed()
    {
        in.stream.reset();
        come_to_rest(in);
    }

    tensor_stream_options on_gpu(tensor_stream_options options) const
    {
        options.batch_size = 4;
        options.gpu = 0;
        options.stream = compute.ref();
        return listening(std::move(options));
    }
    static device_memory memory(bool on_gpu)
    {
        return on_gpu ? device_memory::on_gpu(0, 8 << 20) : device_memory::on_host(8 << 20);
    }
    // `count` frames of one batch each.
    void send(sender& to, std::uint64_t first, std::uint64_t count) const
    {
        for (auto i = first; i < first + count; ++i)
            to.send({.sequence = i, .first_row = 4 * i, .rows = 4});
    }

    gpu_test_stream compute;
    bed in;
};

constexpr std::uint64_t batch_bytes = 256 + 4 * 8;

}  // namespace

TEST_CASE("batches on a GPU hold what was sent, wherever the session's memory is")
{
    auto const session_on_gpu = GENERATE(false, true);
    gpu_bed bed{{.sources = 2}, session_on_gpu};
    auto& in = bed.in;
    sender a{in.where()};
    a.send({.rows = 6, .ack = true, .crc = true});
    auto const first = in.next();
    CHECK((*first->got.find("x")).bytes.kind() == memory_kind::device);
    CHECK((*first->got.find("y")).bytes.address() % 256 == 0);
    CHECK(rows_of(first->got, in.consumer) == rows_from(0, 0, 4));
    CHECK(in.ack_of(a) == 0);
    a.send({.sequence = 1, .first_row = 6, .rows = 100, .last = true, .crc = true});
    sender b{in.where()};
    for (std::uint64_t row = 4; row < 104; row += 4)
        CHECK(in.next_rows() == rows_from(0, row, 4));
    b.send({.source = 1, .rows = 2, .last = true});
    auto last = rows_from(0, 104, 2);
    last.push_back({1, 0});
    last.push_back({1, 1});
    CHECK(in.next_rows() == last);
    CHECK(in.next()->code == asio::error::eof);
}

TEST_CASE("only the consumer's stream waits for the bytes of a batch")
{
    auto const before = fake_cuda::streams();
    gpu_bed bed;
    auto& in = bed.in;
    auto made = fake_cuda::streams();
    std::erase_if(made, [&](CUstream each) {
        return each == bed.compute.get() || std::ranges::find(before, each) != before.end();
    });
    REQUIRE(made.size() == 1);
    fake_cuda::hold(made[0]);
    sender from{in.where()};
    from.send({.rows = 4});
    auto const result = in.next();
    REQUIRE_FALSE(result->code);
    auto const x = result->got["x"].bytes;
    gpu_bytes seen{gpu_or_skip(), x.size()};
    fragment const all{x.address(), x.size(), x.kind()};
    gather({&all, 1}, seen.span(), in.consumer);
    come_to_rest(in);
    CHECK(seen.read() == std::vector<std::byte>(x.size(), std::byte{0xee}));
    fake_cuda::let_go(made[0]);
    bed.compute.finish();
    CHECK(seen.read() == read_bytes(gpu_or_skip(), x.address(), x.size()));
    CHECK(rows_of(result->got, in.consumer) == rows_from(0, 0, 4));
}

TEST_CASE("a batch's memory is used again when its stream has passed, and memory is bounded until then")
{
    gpu_bed bed{{.queue_depth = 1}};
    auto& in = bed.in;
    gpu_test_stream other{gpu_or_skip()};
    auto const on_other = GENERATE(false, true);
    auto& held = on_other ? other : bed.compute;
    sender from{in.where()};
    bed.send(from, 0, 10);
    auto first = in.next();
    bed.compute.finish();
    auto const x = first->got["x"].bytes;
    auto const before = read_bytes(gpu_or_skip(), x.address(), x.size());
    fake_cuda::hold(held.get());
    if (on_other)
        first->got.release_after(other.ref());
    else
        first->got = {};
    std::vector<std::shared_ptr<next_result>> kept;
    for (int i = 0; i < 3; ++i) {
        auto const next = in.start_next();
        come_to_rest(in);
        if (!next->done)
            break;
        kept.push_back(next);
    }
    CHECK(kept.size() < 3);
    CHECK(read_bytes(gpu_or_skip(), x.address(), x.size()) == before);
    CHECK(in.stream->stats().memory <= 4 * 20 + 3 * batch_bytes);
    fake_cuda::let_go(held.get());
    for (std::uint64_t rows = in.stream->stats().batches; rows < 10; rows = in.stream->stats().batches)
        static_cast<void>(in.next());
    CHECK(in.stream->stats().memory_high_water <= 4 * 20 + 6 * batch_bytes);
}

TEST_CASE("a CRC32C that is wrong is found on the GPU")
{
    gpu_bed bed{{.sources = 2}};
    auto& in = bed.in;
    sender bad{in.where()};
    auto wrong = frame{.rows = 4, .crc = true}.bytes();
    wrong[wrong.size() - 40] ^= std::byte{4};
    bad.send(wrong);
    in.run_until([&] { return !in.stream->errors().empty(); });
    CHECK(errors_of(in, 0).at(0).code == errc::wrong_checksum);
    CHECK(in.refuses(bad));
    sender good{in.where()};
    good.send({.source = 1, .rows = 4, .last = true, .crc = true});
    CHECK(in.next_rows() == rows_from(1, 0, 4));
    CHECK(in.next()->code == asio::error::eof);
}

TEST_CASE("an error of the driver ends the stream with it, and nothing hangs")
{
    auto const function = GENERATE("cuMemCreate", "cuLaunchKernel", "cuEventRecord");
    auto const after = GENERATE(0U, 1U, 2U);
    CAPTURE(function, after);
    gpu_bed bed;
    auto& in = bed.in;
    sender from{in.where()};
    fake_cuda::fail(function, CUDA_ERROR_OUT_OF_MEMORY, after, 1'000'000);
    from.send({.rows = 4, .ack = true, .crc = true});
    from.send({.sequence = 1, .first_row = 4, .rows = 5, .last = true});
    std::shared_ptr<next_result> result;
    do
        result = in.next();
    while (!result->code && in.stream->stats().batches < 5);
    fake_cuda::fail(function, CUDA_SUCCESS, 0, 0);
    CHECK((result->code == asio::error::eof || result->code.category() == cuda_category()));
    if (result->code != asio::error::eof) {
        CHECK(in.next()->code == result->code);
        come_to_rest(in);
        CHECK(in.refuses(from));
    }
}

TEST_CASE("a stream may be destroyed while the GPU is at work for it, and so may batches")
{
    gpu_bed bed;
    auto& in = bed.in;
    static_cast<void>(gpu_or_skip().gather());  // takes its time as well
    fake_cuda::set_delay_per_byte(std::chrono::microseconds{20});
    sender from{in.where()};
    from.send({.rows = 4});
    from.send({.sequence = 1, .first_row = 4, .rows = 400});
    auto kept = std::move(in.next()->got);
    in.stream.reset();
    in.run_for(1ms);
    kept = {};
    fake_cuda::set_delay_per_byte({});
}

}  // namespace gpurx::ingest::test
