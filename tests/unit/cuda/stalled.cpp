// SPDX-License-Identifier: Apache-2.0
//
// A stream that stands still stops nobody but those who use it.
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <catch2/generators/catch_generators.hpp>
#include <gpurx/gather.hpp>
#include <thread>

#include "asleep.hpp"
#include "cuda/gather_engine.hpp"
#include "cuda/stream_point.hpp"
#include "fake_world.hpp"

namespace gpurx::test {

namespace {

// More than a stream's queue takes.
constexpr int too_many = 1200;
constexpr std::size_t full = 1000;

// Bytes of a GPU, to be gathered from one place to another.
struct bytes_to_gather {
    explicit bytes_to_gather(detail::cuda::gpu& on) : source{on, 4096}, destination{on, 4096} {}

    [[nodiscard]] bool gather_on(cuda_stream_ref stream) const
    {
        std::array const fragments{fragment{source.address(), 4096, memory_kind::device}};
        return gather(fragments, destination.span(), stream) == 4096;
    }

    gpu_bytes source;
    gpu_bytes destination;
};

// Whether `work` is done soon in a thread of its own; the stream is let go after that.
template <class Work>
bool goes_on(CUstream stalled, Work work)
{
    std::atomic<bool> done{false};
    std::jthread const works{[&] {
        work();
        done = true;
    }};
    auto const went_on = soon([&] { return done.load(); });
    fake_cuda::let_go(stalled);
    return went_on;
}

// The same beside a thread that uses the stream until it is stuck.
template <class Stuck, class Work>
bool goes_on_beside(CUstream stalled, Stuck stuck, Work work)
{
    fake_cuda::hold(stalled);
    std::jthread const enqueues{stuck};
    auto const is_full = soon([&] { return fake_cuda::queued(stalled) >= full; });
    auto const went_on = goes_on(stalled, work);
    return is_full && went_on;
}

// Two flows into one GPU; the stream of the first stands still.
struct two_flows : clean_driver, world {
    // Memory for more batches, each of which takes a page, than a stream's queue has room for.
    explicit two_flows(transport kind) : world{kind, {}, memory_on_gpu(64 << 20)} { fake_cuda::hold(stalled.get()); }
    two_flows(two_flows const&) = delete;
    two_flows& operator=(two_flows const&) = delete;
    ~two_flows()
    {
        fake_cuda::let_go(stalled.get());
        stalled.finish();
        stream.finish();
        static_cast<void>(soon([this] { return kernel.tokens_out() == 0; }));
    }

    // For what takes a NIC many commands.
    [[nodiscard]] bool makes_one_copy() const { return session.state().transport() == transport::copy; }
    // That the other flow goes on beside it.
    [[nodiscard]] bool other_flow_goes_on()
    {
        auto const size = other.span().size();
        to_other.send(size);
        auto const got = read(*this, other_rx, other.span(), stream.ref());
        stream.finish();
        return got->bytes == size && !got->code && is_pattern(other.read(), 0);
    }

    sender to{wires};
    sender to_other{wires};
    receiver rx{flow(to)};
    receiver other_rx{flow(to_other)};
    gpu_bytes tensor{gpu_or_skip(), 400'000};  // here, because to free it waits for all streams
    gpu_bytes other{gpu_or_skip(), 10'000};
    gpu_test_stream stalled{gpu_or_skip()};
    gpu_test_stream stream{gpu_or_skip()};
};

// Whether `work` is done soon in a thread of its own though all calls of this function stand still, one of which
// `calls` makes in another.
template <class Calls, class Work>
bool goes_on_beside_call(char const* function, Calls calls, Work work)
{
    auto const before = fake_cuda::calls(function);
    fake_cuda::stall(function);
    std::jthread const stuck{calls};
    auto const is_stuck = soon([&] { return fake_cuda::calls(function) > before; });
    std::atomic<bool> done{false};
    std::jthread const works{[&] {
        work();
        done = true;
    }};
    auto const went_on = soon([&] { return done.load(); });
    fake_cuda::go_on(function);
    return is_stuck && went_on;
}

}  // namespace

TEST_CASE("small pieces for a stream that stands still block no thread, and come in fewer batches")
{
    two_flows in{any_transport()};
    auto const size = in.tensor.span().size();
    auto const result = make_completion();
    async_read(in.rx, in.tensor.span(), in.stalled.ref(), noting{result});
    std::atomic<bool> sent{false};
    std::jthread receives{[&] {
        while (in.to.sent() < size) {
            in.to.send(100);
            in.settle();
        }
        sent = true;
    }};
    auto const went_on = soon([&] { return sent.load(); });
    CHECK(went_on);
    if (went_on) {
        CHECK(fake_cuda::queued(in.stalled.get()) < full / 2);
        CHECK(result->done() == in.makes_one_copy());
        CHECK(in.other_flow_goes_on());
    }
    fake_cuda::let_go(in.stalled.get());
    receives.join();
    in.run_until([&] { return result->done(); });
    in.stalled.finish();
    CHECK(result->bytes == size);
    CHECK(is_pattern(in.tensor.read(), 0));
}

TEST_CASE("flows that read onto one stream share the room of its queue, and all go on when it moves")
{
    two_flows in{any_transport()};
    auto const size = in.other.span().size();
    auto const first = make_completion();
    auto const second = make_completion();
    async_read(in.rx, in.tensor.span().first(size), in.stalled.ref(), noting{first});
    async_read(in.other_rx, in.other.span(), in.stalled.ref(), noting{second});
    std::atomic<bool> sent{false};
    std::jthread sends{[&] {
        while (in.to.sent() < size) {
            in.to.send(20);
            in.to_other.send(20);
            in.settle();
        }
        sent = true;
    }};
    CHECK(soon([&] { return sent.load(); }));
    CHECK(fake_cuda::queued(in.stalled.get()) < full / 2);
    fake_cuda::let_go(in.stalled.get());
    sends.join();
    in.run_until([&] { return first->done() && second->done(); });
    in.stalled.finish();
    CHECK(first->bytes == size);
    CHECK(second->bytes == size);
    auto const got = in.tensor.read();
    CHECK(is_pattern(std::span{got}.first(size), 0));
    CHECK(is_pattern(in.other.read(), 0));
}

TEST_CASE("small reads onto a stream that stands still wait, and block no thread")
{
    constexpr std::size_t size = 100;
    two_flows in{any_transport()};
    auto const to = in.tensor.span().first(too_many * size);
    std::size_t reads = 0;
    auto last = make_completion();
    auto const read_next = [&] {
        last = make_completion();
        async_read(in.rx, to.subspan(reads++ * size, size), in.stalled.ref(), noting{last});
    };
    std::atomic<bool> stopped{false};
    std::jthread receives{[&] {
        in.to.send(to.size());  // most of it is received with the first read
        do {
            read_next();
            in.settle();
        } while (last->done() && reads < too_many);
        stopped = true;
    }};
    auto const went_on = soon([&] { return stopped.load(); });
    CHECK(went_on);
    if (went_on) {
        CHECK_FALSE(last->done());
        CHECK(fake_cuda::queued(in.stalled.get()) < full / 2);
        CHECK(in.other_flow_goes_on());
    }
    fake_cuda::let_go(in.stalled.get());
    receives.join();
    in.run_until([&] { return last->done(); });
    while (reads < too_many) {
        read_next();
        in.run_until([&] { return last->done(); });
    }
    in.stalled.finish();
    auto const got = in.tensor.read();
    CHECK(is_pattern(std::span{got}.first(to.size()), 0));
}

TEST_CASE("a read that waits for a stream can be cancelled, and its flow may end before the stream moves")
{
    two_flows in{any_transport()};
    auto const result = make_completion();
    async_read(in.rx, in.tensor.span(), in.stalled.ref(), noting{result});
    while (in.to.sent() < 100'000) {
        in.to.send(100);
        in.settle();
    }
    in.rx.cancel();
    in.run_until([&] { return result->done(); });
    CHECK(result->code == asio::error::operation_aborted);
    CHECK((result->bytes > 0) != in.makes_one_copy());
    CHECK(result->bytes + in.rx.available() <= in.to.sent());
    CHECK(in.rx.available() > 0);
    in.rx.close();
    fake_cuda::let_go(in.stalled.get());
    in.stalled.finish();
    CHECK(in.other_flow_goes_on());
}

TEST_CASE("a flow that asks the driver whether a stream is full holds up no other flow of it")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    detail::gpu_stream const place{.ordinal = 0, .stream = stream.ref(), .context = on.context()};
    auto* const of_stream = detail::backlog_of(place);  // which lives for ever, with the points that it keeps
    REQUIRE(of_stream != nullptr);
    auto& backlog = *of_stream;
    detail::spare_point spare;
    auto const close_window = [&] {
        detail::stream_point* behind = nullptr;
        spare.provide();
        detail::mark(behind, place, spare);
        backlog.add(detail::stream_backlog::window, *behind);
        return behind;
    };
    fake_cuda::hold(stream.get());
    auto* first = close_window();
    auto* second = close_window();
    CHECK(goes_on_beside_call(
        "cuEventQuery", [&] { static_cast<void>(backlog.is_full()); }, [&] { backlog.add(1, *second); }));
    CHECK(backlog.is_full());
    fake_cuda::let_go(stream.get());
    stream.finish();
    CHECK_FALSE(backlog.is_full());
    CHECK(detail::has_passed(first));
    CHECK(detail::has_passed(second));
}

TEST_CASE("a gather that asks for a free block of descriptors holds up no other use of the kernels")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    auto& engine = on.gather();
    bytes_to_gather const ours{on};
    stalled_stream const stalled;
    gpu_test_stream const stream{on};
    // Once a gather asks, it makes 64 blocks. When they are in use, too, the next one asks again.
    auto const asked = [] { return fake_cuda::calls_of_this_thread()["cuEventQuery"]; };
    auto const before = asked();
    while (asked() == before)
        REQUIRE(ours.gather_on(stalled.stream.ref()));
    for (int i = 1; i < 64; ++i)
        REQUIRE(ours.gather_on(stalled.stream.ref()));
    engine.prepare(on.context());
    CHECK(goes_on_beside_call(
        "cuEventQuery", [&] { static_cast<void>(ours.gather_on(stream.ref())); },
        [&] { engine.prepare(on.context()); }));
}

TEST_CASE("a gather on a stream whose queue is full stops no gather on another one")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    bytes_to_gather const theirs{on};
    bytes_to_gather const ours{on};
    gpu_test_stream stalled{on};
    gpu_test_stream stream{on};
    REQUIRE(ours.gather_on(stream.ref()));
    auto const copies = on.copies();  // so that a gather has to wait for them
    REQUIRE(copies != nullptr);
    CHECK(goes_on_beside(
        stalled.get(),
        [&] {
            for (int i = 0; i < too_many; ++i)
                static_cast<void>(theirs.gather_on(stalled.ref()));
        },
        [&] {
            static_cast<void>(ours.gather_on(stream.ref()));
            stream.finish();
        }));
    stalled.finish();
}

TEST_CASE("bytes that wait for a stream on their way to the CPU stop no others")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    gpu_bytes const source{on, 4096};
    gpu_test_stream stalled{on};
    std::array const fragments{fragment{source.address(), 4096, memory_kind::device}};
    auto const fetch = [&](cuda_stream_ref const* after) {
        std::vector<std::byte> bytes(4096);
        error_code code;
        return detail::copy_from_gpu(fragments, bytes, 0, after, code) == bytes.size() && !code;
    };
    REQUIRE(fetch(nullptr));
    fake_cuda::hold(stalled.get());
    std::atomic<bool> waited{false};
    std::atomic<bool> fetched{false};
    {
        std::atomic<pid_t> id{0};
        std::jthread const waits{[&] {
            auto const after = stalled.ref();
            id = ::gettid();
            waited = fetch(&after);
        }};
        REQUIRE(soon([&] { return fake_cuda::queued(stalled.get()) > 0 && is_asleep(id); }));
        std::jthread const goes_on{[&] { fetched = fetch(nullptr); }};
        CHECK(soon([&] { return fetched.load(); }));
        CHECK_FALSE(waited);
        fake_cuda::let_go(stalled.get());
    }
    CHECK(waited);
}

TEST_CASE("the first CRC on a GPU does not wait for a stream of the program's")
{
    clean_driver const clean;
    fake_cuda::set_loading_waits(false);  // which is another thing that the first one does
    auto& on = gpu_or_skip();
    gpu_bytes const source{on, 4096};
    gpu_bytes const destination{on, 4096};
    gpu_bytes const sum{on, 4};
    gpu_test_stream stalled{on};
    gpu_test_stream stream{on};
    fake_cuda::hold(stalled.get());
    auto const fetches = on.fetches();
    CUevent event = nullptr;
    {
        detail::cuda::context_scope const scope{on};
        REQUIRE(on.calls().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
        REQUIRE(on.calls().cuEventRecord(event, stalled.get()) == CUDA_SUCCESS);
        REQUIRE(on.calls().cuStreamWaitEvent(fetches, event, 0) == CUDA_SUCCESS);
    }
    std::array const fragments{fragment{source.address(), 4096, memory_kind::device}};
    std::size_t gathered = 0;
    CHECK(goes_on(stalled.get(),
                  [&] { gathered = gather_crc32c(fragments, destination.span(), sum.span(), stream.ref()); }));
    CHECK(gathered == 4096);
    stream.finish();
    detail::cuda::context_scope const scope{on};
    CHECK(on.calls().cuEventDestroy(event) == CUDA_SUCCESS);
}

TEST_CASE("kernels are loaded before a program's stream gets any")
{
    clean_driver const clean;
    auto& on = gpu_or_skip(15);  // which no other test opens
    fake_cuda::set_loading_waits(true);
    static_cast<void>(on.gather());
    gpu_bytes const source{on, 100};
    gpu_bytes const destination{on, 100};
    gpu_bytes const sum{on, 4};
    gpu_test_stream stalled{on};
    gpu_test_stream stream{on};
    fake_cuda::hold(stalled.get());
    {
        detail::cuda::context_scope const scope{on};
        REQUIRE(on.calls().cuMemcpyAsync(destination.address(), source.address(), 100, stalled.get()) == CUDA_SUCCESS);
    }
    std::array const fragments{fragment{source.address(), 100, memory_kind::device}};
    std::size_t gathered = 0;
    std::size_t summed = 0;
    CHECK(goes_on(stalled.get(), [&] {
        gathered = gather(fragments, destination.span(), stream.ref());
        summed = gather_crc32c(fragments, destination.span(), sum.span(), stream.ref());
    }));
    CHECK(gathered == 100);
    CHECK(summed == 100);
    stalled.finish();
    stream.finish();
}

TEST_CASE("pinned host memory of a GPU is made with the kernels loaded")
{
    clean_driver const clean;
    static_cast<void>(gpu_or_skip(16));
    auto const loaded = fake_cuda::calls("cuLibraryLoadData");
    auto const memory = device_memory::on_pinned_host(4096, 16);
    CHECK(fake_cuda::calls("cuLibraryLoadData") == loaded + 1);
}

TEST_CASE("a read onto another GPU than the session's memory is of loads the kernels when it begins")
{
    clean_driver const clean;
    world in{nic_transport(), {}, memory_on_gpu()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip(17);
    gpu_bytes tensor{on, 100};
    gpu_test_stream stream{on};
    auto const loaded = fake_cuda::calls("cuLibraryLoadData");
    auto const result = make_completion();
    async_read(rx, tensor.span(), stream.ref(), noting{result});
    static bool by_earlier_run = false;
    CHECK(fake_cuda::calls("cuLibraryLoadData") == loaded + (std::exchange(by_earlier_run, true) ? 0 : 1));
    to.send(100);
    in.run_until([&] { return result->done(); });
    stream.finish();
    CHECK(is_pattern(tensor.read(), 0));
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

TEST_CASE("a flow's first bytes on the host block no thread on their way onto a stream that stands still")
{
    two_flows in{nic_transport()};
    auto& on = gpu_or_skip();
    {
        detail::cuda::context_scope const scope{on};
        REQUIRE(on.calls().cuMemsetD8Async(in.tensor.address(), 0, 1, in.stalled.get()) == CUDA_SUCCESS);
    }
    auto const kind = GENERATE(fake_kernel::way::linear, fake_kernel::way::plain);
    auto const result = make_completion();
    async_read(in.rx, in.tensor.span().first(100), in.stalled.ref(), noting{result});
    in.kernel.deliver({{kind, 100, 0}});
    CHECK(goes_on(in.stalled.get(), [&] {
        in.to.send(100);
        in.settle();
    }));
    in.run_until([&] { return result->done(); });
    in.stalled.finish();
    CHECK(result->bytes == 100);
    auto const got = in.tensor.read();
    CHECK(is_pattern(std::span{got}.first(100), 0));
}

TEST_CASE(
    "bytes on the host need no kernels to come to a GPU, and block no thread on their way onto a stream that stands "
    "still")
{
    clean_driver const clean;
    fake_cuda::set_loading_waits(true);
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip(20);
    gpu_bytes tensor{on, 10'000};
    gpu_test_stream stalled{on};
    fake_cuda::hold(stalled.get());
    {
        detail::cuda::context_scope const scope{on};
        REQUIRE(on.calls().cuMemsetD8Async(tensor.address(), 0, 1, stalled.get()) == CUDA_SUCCESS);
    }
    auto const loaded = fake_cuda::calls("cuLibraryLoadData");
    auto const result = make_completion();
    CHECK(goes_on(stalled.get(), [&] {
        async_read(rx, tensor.span(), stalled.ref(), noting{result});
        for (int i = 0; i < 10; ++i) {
            to.send(1000);
            in.settle();
        }
    }));
    CHECK(fake_cuda::calls("cuLibraryLoadData") == loaded);
    in.run_until([&] { return result->done(); });
    stalled.finish();
    CHECK(result->bytes == 10'000);
    CHECK(is_pattern(tensor.read(), 0));
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

TEST_CASE("bounce buffers bring bytes where they belong, in a copy for each row and each block")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    auto const bytes = pattern(0, 1'300'000);
    gpu_bytes to{on, bytes.size()};
    gpu_test_stream stream{on};
    auto const before = fake_cuda::calls("cuMemcpyHtoDAsync");
    {
        detail::cuda::context_scope const scope{on};
        detail::cuda::bounce_copy bounce{on, stream.get(), scope, bytes.size()};
        auto const copy = [&](std::size_t offset, std::size_t size) {
            fragment const piece{reinterpret_cast<std::uintptr_t>(&bytes[offset]), size, memory_kind::host};
            return bounce.copy(piece, to.address() + offset);
        };
        CHECK(copy(0, 1000) == CUDA_SUCCESS);
        CHECK(copy(1000, 699'000) == CUDA_SUCCESS);
        CHECK(copy(800'000, 500'000) == CUDA_SUCCESS);
        CHECK(copy(700'000, 100'000) == CUDA_SUCCESS);
        CHECK(bounce.finish() == CUDA_SUCCESS);
        CHECK(fake_cuda::calls("cuMemcpyHtoDAsync") == before + 5);
        CHECK(bounce.commands() == 6);
    }
    stream.finish();
    CHECK(is_pattern(to.read(), 0));
}

TEST_CASE("bytes on the host come to a GPU though no memory can be pinned")
{
    clean_driver const clean;
    world in{nic_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip(21);  // which has no blocks from before
    gpu_bytes tensor{on, 5000};
    gpu_test_stream stream{on};
    fake_cuda::fail("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY, 0, 1000);
    to.send(5000);
    auto const got = read(in, rx, tensor.span(), stream.ref());
    CHECK(got->bytes == 5000);
    CHECK_FALSE(got->code);
    stream.finish();
    CHECK(is_pattern(tensor.read(), 0));
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

TEST_CASE("bytes that a flow is adopted with block no thread on their way onto a stream that stands still")
{
    two_flows in{any_transport()};
    auto& on = gpu_or_skip();
    {
        detail::cuda::context_scope const scope{on};
        REQUIRE(on.calls().cuMemsetD8Async(in.tensor.address(), 0, 1, in.stalled.get()) == CUDA_SUCCESS);
    }
    sender to{in.wires};
    auto const known = pattern(0, 5000);
    receiver rx{in.io->get_executor(), *in.session, in.connection(to), asio::buffer(known)};
    auto const result = make_completion();
    CHECK(goes_on(in.stalled.get(), [&] {
        async_read(rx, in.tensor.span().first(5000), in.stalled.ref(), noting{result});
        in.settle();
    }));
    in.run_until([&] { return result->done(); });
    in.stalled.finish();
    CHECK(result->bytes == 5000);
    auto const got = in.tensor.read();
    CHECK(is_pattern(std::span{got}.first(5000), 0));
}

TEST_CASE("while memory is pinned for one flow another gives back its own")
{
    clean_driver const clean;
    static_cast<void>(gpu_or_skip(14));
    error_code code;
    auto const copies = detail::copy_stream_of(14, code);
    auto first = detail::make_staging(14, code);
    auto const second = detail::make_staging(14, code);
    REQUIRE_FALSE(first->room(copies, code).empty());
    CHECK(goes_on_beside_call(
        "cuMemHostAlloc",
        [&] {
            error_code ignored;
            static_cast<void>(second->room(copies, ignored));
        },
        [&] { first.reset(); }));
}

TEST_CASE("while a GPU is opened the pages of another one go back")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream const stream{gpu_or_skip()};
    to.send(5000);
    auto loan = std::move(receive(in, rx)->loan);
    static int fresh = 18;
    CHECK(goes_on_beside_call(
        "cuDevicePrimaryCtxRetain", [] { static_cast<void>(detail::cuda::gpu::open(fresh++)); },
        [&] {
            loan.release_after(stream.ref());
            static_cast<void>(soon([&] { return in.kernel.tokens_out() == 0; }));
        }));
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("while a stream is created for a GPU others of it are ordered behind what there is")
{
    clean_driver const clean;
    auto& on = gpu_or_skip(12);
    static_cast<void>(on.copies());
    CHECK(goes_on_beside_call(
        "cuStreamCreate", [&] { static_cast<void>(on.fetches()); }, [&] { on.finish_copies(); }));
}

TEST_CASE("a wait for a stream that is behind gives it nothing to do, and ends when the first part has passed")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    gpu_bytes const bytes{on, 1};
    gpu_test_stream const first{on};
    gpu_test_stream const second{on};
    gpu_test_stream behind{on};
    detail::cuda::context_scope const scope{on};
    auto const of = [&](gpu_test_stream const& stream) {
        return detail::gpu_stream{.ordinal = 0, .stream = stream.ref(), .context = on.context()};
    };
    auto* const backlog = detail::backlog_of(of(behind));
    for (auto const* const gate : {&first, &second}) {
        fake_cuda::hold(gate->get());
        REQUIRE_FALSE(detail::order(of(behind), of(*gate)));
        auto* const point = detail::cuda::make_point(on.context());
        REQUIRE(point != nullptr);
        detail::cuda::record(*point, behind.get());
        backlog->add(detail::stream_backlog::window, *point);
        detail::cuda::discard(point);
    }
    REQUIRE(backlog->is_full());
    while (fake_cuda::queued(behind.get()) < full)
        REQUIRE(on.calls().cuMemsetD8Async(bytes.address(), 0, 1, behind.get()) == CUDA_SUCCESS);
    auto const event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    auto const is_told = [&] {
        std::uint64_t count = 0;
        return ::read(event, &count, sizeof count) == sizeof count;
    };
    {
        std::atomic<bool> awaited{false};
        std::jthread const waits{[&] { awaited = backlog->notify(event); }};
        CHECK(soon([&] { return awaited.load(); }));
        CHECK_FALSE(is_told());
        fake_cuda::let_go(first.get());
        CHECK(soon(is_told));
        CHECK_FALSE(backlog->is_full());
        fake_cuda::let_go(second.get());
    }
    behind.finish();
    backlog->forget(event);
    ::close(event);
}

}  // namespace gpurx::test
