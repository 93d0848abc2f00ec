// SPDX-License-Identifier: Apache-2.0
//
// What a batch of a read into a GPU's memory asks of the driver, on the thread that receives it.
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <string>
#include <thread>

#include "fake_world.hpp"

namespace gpurx::test {

namespace {

// To make the context current and what was current before, twice, because another thread may be capturing a graph;
// whether the stream is being captured; the launch and the event behind it.
constexpr std::size_t calls_per_batch = 7;
// Whose the memory is, whose the stream is, and whether it can be used; in its context again.
constexpr std::size_t calls_per_read = 7;

// The calls of this thread since it was made.
class call_count {
  public:
    [[nodiscard]] std::size_t of(std::string const& function) const
    {
        auto const now = fake_cuda::calls_of_this_thread();
        auto const count = [&](auto const& all) { return all.contains(function) ? all.at(function) : 0; };
        return count(now) - count(before_);
    }
    [[nodiscard]] std::size_t of_all() const
    {
        std::size_t sum = 0;
        for (auto const& [function, count] : fake_cuda::calls_of_this_thread())
            sum += of(function);
        return sum;
    }
    // But for events, and memory for descriptors, which are made when more batches are under way than ever before: that
    // is the stream's affair, and the watcher's.
    [[nodiscard]] std::size_t of_batches() const { return of_all() - of("cuEventCreate") - of("cuMemHostAlloc"); }
    [[nodiscard]] std::string text() const
    {
        std::string text;
        for (auto const& [function, count] : fake_cuda::calls_of_this_thread())
            if (of(function) > 0)
                text += function + ' ' + std::to_string(of(function)) + '\n';
        return text;
    }

  private:
    std::map<std::string, std::size_t> before_ = fake_cuda::calls_of_this_thread();
};

struct measured : devmem_on_gpu {
    static constexpr std::size_t size = 1 << 20;
    static constexpr std::size_t batch_size = 20000;

    sender to{wires};
    receiver rx{flow(to)};
    gpu_test_stream stream{gpu_or_skip()};
    gpu_bytes tensor{gpu_or_skip(), size};

    void read_batches(std::size_t count)
    {
        for (std::size_t i = 0; i < count; ++i) {
            to.send(batch_size);
            REQUIRE(read(*this, rx, tensor.span().first(batch_size), stream.ref())->bytes == batch_size);
        }
    }
    void read_long()
    {
        std::thread feeder{[&] { to.send(size); }};
        auto const got = read(*this, rx, tensor.span(), stream.ref());
        feeder.join();
        REQUIRE(got->bytes == size);
    }
    // Until the stream has done all of it and the library knows: nothing that it keeps is in use.
    void finish()
    {
        stream.finish();
        REQUIRE(soon([&] { return kernel.tokens_out() == 0; }));
    }
};

}  // namespace

TEST_CASE("devmem into a GPU: a read of one batch records one event and makes few calls of the driver")
{
    measured in;
    in.read_batches(100);
    in.finish();
    constexpr std::size_t batches = 10;
    call_count const calls;
    in.read_batches(batches);
    INFO(calls.text());
    CHECK(calls.of("cuLaunchKernel") == batches);
    CHECK(calls.of("cuEventRecord") == batches);
    CHECK(calls.of_batches() <= batches * (calls_per_read + calls_per_batch));
    in.finish();
}

TEST_CASE("devmem into a GPU: a batch of a long read records one event and makes few calls of the driver")
{
    measured in;
    for (int i = 0; i < 12; ++i)
        in.read_long();
    in.finish();
    call_count const calls;
    in.read_long();
    INFO(calls.text());
    auto const batches = calls.of("cuLaunchKernel");
    CHECK(batches > 1);
    CHECK(calls.of("cuEventRecord") == batches);
    CHECK(calls.of_batches() <= calls_per_read + batches * calls_per_batch);
    in.finish();
}

TEST_CASE("devmem into a GPU: the end of a batch, read later on the same stream, keeps its pages as long as its start")
{
    measured in;
    in.to.send(measured::batch_size);
    auto const half = in.tensor.span().first(measured::batch_size / 2);
    REQUIRE(read(in, in.rx, half, in.stream.ref())->bytes == half.size());
    in.stream.hold();
    REQUIRE(read(in, in.rx, half, in.stream.ref())->bytes == half.size());
    std::this_thread::sleep_for(5ms);
    CHECK(in.kernel.tokens_out() > 0);
    in.stream.let_go();
    in.finish();
}

}  // namespace gpurx::test
