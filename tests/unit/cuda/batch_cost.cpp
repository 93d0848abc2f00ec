// SPDX-License-Identifier: Apache-2.0
//
// What a batch of a read into a GPU's memory asks of the driver, on the thread that receives it. And that the table of
// framework/docs/gpu.md names these calls.
#include <catch2/catch_test_macros.hpp>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

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
    // But for those that come when more is under way than ever before, or to find what is done of it.
    [[nodiscard]] std::map<std::string, std::size_t> each() const
    {
        std::map<std::string, std::size_t> found;
        for (auto const& [function, count] : fake_cuda::calls_of_this_thread())
            if (of(function) > 0 && function != "cuEventCreate" && function != "cuMemHostAlloc" &&
                function != "cuEventQuery")
                found[function] = of(function);
        return found;
    }
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

struct measured : nic_into_gpu {
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

TEST_CASE("a NIC into a GPU: a read of one batch records one event and makes few calls of the driver")
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

TEST_CASE("a NIC into a GPU: a batch of a long read records one event and makes few calls of the driver")
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

TEST_CASE("a NIC into a GPU: the end of a batch, read later on the same stream, keeps its pages as long as its start")
{
    measured in;
    in.to.send(measured::batch_size);
    auto const half = in.tensor.span().first(measured::batch_size / 2);
    REQUIRE(read(in, in.rx, half, in.stream.ref())->bytes == half.size());
    in.stream.hold();
    REQUIRE(read(in, in.rx, half, in.stream.ref())->bytes == half.size());
    look_at_all_streams();
    CHECK(in.kernel.tokens_out() > 0);
    in.stream.let_go();
    in.finish();
}

// ---- the table of the documentation ----

namespace {

using calls_by_name = std::map<std::string, std::size_t>;

// "`cuLaunchKernel` 1, ..." as a row of the table has it, or "none".
std::string in_words(calls_by_name const& calls)
{
    std::string text;
    for (auto const& [function, count] : calls)
        if (count > 0)
            text += (text.empty() ? "`" : ", `") + function + "` " + std::to_string(count);
    return text.empty() ? "none" : text;
}

std::string documented(std::string const& row)
{
    std::ifstream page{GPURX_GPU_PAGE};
    auto const start = "| " + row + " | ";
    for (std::string line; std::getline(page, line);)
        if (line.starts_with(start))
            return line.substr(start.size(), line.size() - start.size() - 2);
    return "no row: " + row;
}

// Of `more` of what costs each `one`, with something `beside` them: what one costs.
calls_by_name difference(calls_by_name const& more, calls_by_name const& less, std::size_t of)
{
    calls_by_name found;
    for (auto const& [function, count] : more) {
        auto const before = less.contains(function) ? less.at(function) : 0;
        INFO(function << ": " << count << " and " << before);
        CHECK((count - before) % of == 0);
        found[function] = (count - before) / of;
    }
    return found;
}

struct copied : clean_driver, world {
    copied() : world{transport::copy, {}, memory_on_gpu()} {}
    sender to{wires};
    receiver rx{flow(to)};
    gpu_test_stream stream{gpu_or_skip()};
    gpu_bytes tensor{gpu_or_skip(), measured::size};

    void read_once(std::size_t size)
    {
        std::thread feeder{[&] { to.send(size); }};
        auto const got = read(*this, rx, tensor.span().first(size), stream.ref());
        feeder.join();
        REQUIRE(got->bytes == size);
    }
};

}  // namespace

TEST_CASE("documentation names the calls of the driver for a read and each of its batches, transport devmem")
{
    measured in;
    in.read_batches(50);
    for (int i = 0; i < 12; ++i)
        in.read_long();
    in.finish();
    call_count const of_short;
    in.read_batches(1);
    auto const one = of_short.each();
    in.finish();
    call_count const of_long;
    in.read_long();
    auto const many = of_long.each();
    auto const batch = difference(many, one, many.at("cuLaunchKernel") - 1);
    CHECK(documented("a batch, transport devmem") == in_words(batch));
    CHECK(documented("a read") == in_words(difference(one, batch, 1)));
    in.finish();
}

TEST_CASE("documentation names the calls of the driver for a read by transport copy")
{
    copied in;
    for (int i = 0; i < 12; ++i) {
        in.read_once(measured::size);
        in.stream.finish();
    }
    call_count const of_read;
    in.read_once(measured::batch_size);
    auto calls = of_read.each();
    // Each question whether a chunk is back has the context made current for it.
    auto const asked = of_read.of("cuEventQuery");
    calls["cuCtxPushCurrent"] -= asked;
    calls["cuCtxPopCurrent"] -= asked;
    calls["cuThreadExchangeStreamCaptureMode"] -= 2 * asked;
    INFO("asked " << asked);
    CHECK(documented("a read of one chunk, transport copy") == in_words(calls));
    in.stream.finish();
}

TEST_CASE("documentation names the calls of the driver for a loan that is used in place")
{
    auto const check = [](auto& in, char const* acquire, char const* release) {
        auto const one_loan = [&] {
            in.to.send(1000);
            return std::move(receive(in, in.rx)->loan);
        };
        for (int i = 0; i < 20; ++i)
            one_loan().release_after(in.stream.ref());
        auto loan = one_loan();
        call_count const of_acquire;
        loan.acquire(in.stream.ref());
        auto calls = of_acquire.each();
        // Where the GPU has copies across PCIe at all, of whatever flow.
        if (std::string_view{acquire} == "`acquire`, transport devmem")
            calls["cuEventRecord"] = calls["cuStreamIsCapturing"] = calls["cuStreamWaitEvent"] = 0;
        CHECK(documented(acquire) == in_words(calls));
        call_count const of_release;
        loan.release_after(in.stream.ref());
        CHECK(documented(release) == in_words(of_release.each()));
        in.stream.finish();
    };
    measured on_nic;
    check(on_nic, "`acquire`, transport devmem", "`release_after`");
    on_nic.finish();
    copied staged;
    staged.read_once(measured::batch_size);
    check(staged, "`acquire`, transport copy", "`release_after`");
}

TEST_CASE("documentation names the calls of the driver that the thread makes which looks at streams")
{
    measured in;
    constexpr std::size_t streams = 8;
    std::vector<std::unique_ptr<gpu_test_stream>> held;
    for (std::size_t i = 0; i < streams; ++i) {
        held.push_back(std::make_unique<gpu_test_stream>(gpu_or_skip()));
        held.back()->hold();
        in.to.send(1000);
        receive(in, in.rx)->loan.release_after(held.back()->ref());
    }
    look_at_all_streams();
    calls_by_name counts;
    auto const functions = {"cuCtxGetCurrent", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuEventQuery",
                            "cuThreadExchangeStreamCaptureMode"};
    for (auto const* const function : functions)
        counts[function] = fake_cuda::calls(function);
    REQUIRE(soon([&] { return fake_cuda::calls("cuCtxPopCurrent") - counts.at("cuCtxPopCurrent") >= 20; }));
    for (auto const* const function : functions)
        counts[function] = fake_cuda::calls(function) - counts[function];
    // Of as many looks as there were, but for one that is being made.
    auto const looks = counts.at("cuCtxPopCurrent");
    counts.erase("cuEventQuery");
    for (auto& [function, count] : counts)
        count = (count + looks / 2) / looks;
    CHECK(documented("a look at all streams of a context") == in_words(counts) + ", `cuEventQuery` 1 for each");
    for (auto const& one : held)
        one->let_go();
    in.finish();
}

}  // namespace gpurx::test
