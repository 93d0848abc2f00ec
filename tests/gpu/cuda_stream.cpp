// SPDX-License-Identifier: Apache-2.0
//
// Streams without a CUDA header: a program's own, one after another, and waiting for one.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <filesystem>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/gather.hpp>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "base/syscalls.hpp"
#include "bed.hpp"
#include "counting_allocator.hpp"
#include "loopback.hpp"
#include "stale_events.hpp"
#include "tracker_executor.hpp"

namespace gpurx::test {

namespace {

bool is_idle(detail::cuda::gpu& on, CUstream stream)
{
    detail::cuda::context_scope const scope{on};
    return GPURX_DRIVER(cuStreamQuery)(stream) == CUDA_SUCCESS;
}

struct waiting {
    asio::io_context io{1};
    int calls = 0;
    error_code code;

    auto note()
    {
        return [this](error_code how) {
            ++calls;
            code = how;
        };
    }
    void start(cuda_stream_ref stream, memory_span memory = {})
    {
        async_wait(io.get_executor(), stream, memory, note());
    }
    // Runs what can run by now, and what the library finds that may.
    void run_what_may()
    {
        gpu_test_stream const passes{gpu_or_skip()};
        look_at_all_streams(passes.get());
        io.restart();
        io.poll();
    }
    void run_until_called()
    {
        for (auto const end = std::chrono::steady_clock::now() + 60s;
             calls == 0 && std::chrono::steady_clock::now() < end;) {
            io.restart();
            io.run_one_for(5ms);
        }
        CHECK(calls == 1);
    }
};

// Of this process, with what they are.
std::map<int, std::string> descriptors()
{
    std::map<int, std::string> found;
    for (int fd = 0; fd < 1024; ++fd) {
        std::error_code gone;
        auto const what = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), gone);
        if (!gone)
            found.emplace(fd, what);
    }
    return found;
}

std::set<int> epoll_descriptors()
{
    std::set<int> found;
    for (auto const& [fd, what] : descriptors()) {
        if (what.find("[eventpoll]") != std::string::npos)
            found.insert(fd);
    }
    return found;
}

constexpr int token_executor = 1;

}  // namespace

TEST_CASE("a stream of one's own does its work, also when it is dropped before", "[hold]")
{
    auto& on = gpu_or_skip();
    gpu_test_stream held{on};
    gpu_test_stream after{on};
    gpu_bytes source{on, 5000};
    gpu_bytes destination{on, 5000};
    source.write(pattern(0, 5000));
    std::array const fragments{fragment{source.address(), 5000, memory_kind::device}};
    auto stream = cuda_stream::on(0);
    REQUIRE(stream);
    auto const dropped_early = GENERATE(true, false);
    held.hold();
    order_after(stream, held.ref());
    REQUIRE(gather(fragments, destination.span(), stream) == 5000);
    CHECK_FALSE(is_idle(on, stream.get()));
    order_after(after.ref(), stream);
    if (dropped_early)
        stream = {};
    CHECK((stream.get() == nullptr) == dropped_early);
    held.let_go();
    after.finish();
    CHECK(is_pattern(destination.read(), 0));
}

TEST_CASE("streams move, and an empty one is none")
{
    static_cast<void>(gpu_or_skip());
    cuda_stream none;
    CHECK_FALSE(none);
    CHECK(cuda_stream_ref{none} == cuda_stream_ref{});
    auto first = cuda_stream::on(0);
    auto* const handle = first.get();
    cuda_stream second{std::move(first)};
    CHECK(second.get() == handle);
    none = std::move(second);
    CHECK(none.get() == handle);
    CHECK(cuda_stream_ref{none}.get() == handle);
}

TEST_CASE("there is no stream of a GPU that is not there")
{
    static_cast<void>(gpu_or_skip());
    error_code code;
    diagnostics why;
    CHECK_FALSE(cuda_stream::on(1000, code, why));
    CHECK(code == detail::cuda::error_of(CUDA_ERROR_INVALID_DEVICE));
    CHECK(why.object == "GPU 1000");
    CHECK_THROWS_AS(cuda_stream::on(1000), system_error);
}

TEST_CASE("a stream runs after what was enqueued on another, and not after what comes there later", "[hold]")
{
    auto& on = gpu_or_skip();
    gpu_test_stream earlier{on};
    auto const later = cuda_stream::on(0);
    auto const ordered_first = GENERATE(true, false);
    if (ordered_first)
        order_after(later, earlier.ref());
    earlier.hold();
    if (!ordered_first)
        order_after(later, earlier.ref());
    if (ordered_first) {
        CHECK(soon([&] { return is_idle(on, later.get()); }));
    } else {
        look_at_all_streams();
        CHECK_FALSE(is_idle(on, later.get()));
    }
    earlier.let_go();
    CHECK(soon([&] { return is_idle(on, later.get()); }));
}

TEST_CASE("a default stream is the one of the other stream's GPU", "[hold]")
{
    auto& on = gpu_or_skip();
    auto* const handle = GENERATE(CUstream{nullptr}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD);
    gpu_test_stream held{on};
    held.hold();
    std::optional<detail::cuda::context_scope> current;
    if (GENERATE(true, false))
        current.emplace(on);
    cuda_stream_ref const by_default{handle};
    order_after(by_default, held.ref());
    CHECK_FALSE(is_idle(on, handle));
    auto const after = cuda_stream::on(0);
    order_after(after, by_default);
    CHECK_FALSE(is_idle(on, after.get()));
    held.let_go();
    CHECK(soon([&] { return is_idle(on, after.get()); }));
    current.reset();
}

TEST_CASE("a stream need not wait for itself", "[hold]")
{
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    stream.hold();
    order_after(stream.ref(), stream.ref());
    order_after({}, {});
    order_after({}, CU_STREAM_LEGACY);
    error_code code;
    order_after({}, CU_STREAM_PER_THREAD, code);  // whose?
    CHECK(code == detail::cuda::error_of(CUDA_ERROR_INVALID_CONTEXT));
    stream.let_go();
}

TEST_CASE("a wait completes when the stream has passed, and not before", "[hold]")
{
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    waiting at;
    auto const held = GENERATE(true, false);
    if (held)
        stream.hold();
    at.start(stream.ref());
    CHECK(at.calls == 0);
    if (held) {
        at.run_what_may();
        CHECK(at.calls == 0);
        stream.let_go();
    }
    at.run_until_called();
    CHECK_FALSE(at.code);
}

TEST_CASE("a wait is for what was enqueued before it began", "[hold]")
{
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    waiting at;
    auto const early = GENERATE(true, false);
    auto wait = async_wait(at.io.get_executor(), stream.ref(), asio::deferred);
    if (early)
        std::move(wait)(at.note());
    stream.hold();
    if (!early)
        std::move(wait)(at.note());
    if (early) {
        at.run_until_called();
    } else {
        at.run_what_may();
        CHECK(at.calls == 0);
    }
    stream.let_go();
    at.run_until_called();
}

TEST_CASE("a wait for the default stream is for that of the memory's GPU", "[hold]")
{
    auto& on = gpu_or_skip();
    gpu_bytes const memory{on, 100};
    gpu_test_stream held{on};
    held.hold();
    order_after({}, held.ref());
    waiting at;
    SECTION("which host memory has not")
    {
        std::vector<std::byte> bytes(100);
        at.start({}, {memory_kind::host, reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size()});
        CHECK(at.calls == 0);
        at.run_until_called();
    }
    SECTION("and the GPU's has")
    {
        at.start({}, memory.span());
        at.run_what_may();
        CHECK(at.calls == 0);
    }
    held.let_go();
    at.run_until_called();
    CHECK_FALSE(at.code);
}

TEST_CASE("a wait can be cancelled, and the stream goes on", "[hold]")
{
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    auto const type =
        GENERATE(asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total);
    waiting at;
    asio::cancellation_signal signal;
    stream.hold();
    async_wait(at.io.get_executor(), stream.ref(), asio::bind_cancellation_slot(signal.slot(), at.note()));
    at.run_what_may();
    REQUIRE(at.calls == 0);
    signal.emit(type);
    CHECK(at.calls == 0);
    at.run_until_called();
    CHECK(at.code == asio::error::operation_aborted);
    signal.emit(type);
    stream.let_go();
    at.run_what_may();
    CHECK(at.calls == 1);
}

TEST_CASE("a wait goes on after a spurious event of the reactor", "[hold]")
{
    gpu_test_stream stream{gpu_or_skip()};
    waiting at;
    stream.hold();
    stale_events const events{at.io, [&] { at.start(stream.ref()); }};
    REQUIRE(events.are_ready());
    at.run_what_may();
    CHECK(at.calls == 0);
    stream.let_go();
    at.run_until_called();
    CHECK_FALSE(at.code);
}

TEST_CASE("a wait that is over is not cancelled")
{
    gpu_test_stream stream{gpu_or_skip()};
    waiting at;
    asio::cancellation_signal signal;
    async_wait(at.io.get_executor(), stream.ref(), asio::bind_cancellation_slot(signal.slot(), at.note()));
    waiting later;  // which the stream passes after the other
    later.start(stream.ref());
    later.run_until_called();
    signal.emit(asio::cancellation_type::all);
    at.run_until_called();
    CHECK_FALSE(at.code);
}

TEST_CASE("a wait's handler runs on its executor, with its memory, and keeps its context busy", "[hold]")
{
    gpu_test_stream stream{gpu_or_skip()};
    asio::io_context io{1};
    asio::io_context other{1};
    tracker_executor const of_token{other.get_executor(), token_executor};
    allocation_count memory;
    auto const kind = GENERATE(0, 1, 2);  // of no stream, of one that has passed, of one that is held
    int calls = 0;
    if (kind == 2)
        stream.hold();
    {
        initiation_scope const scope;
        async_wait(
            io.get_executor(), kind == 0 ? cuda_stream_ref{} : stream.ref(),
            asio::bind_allocator(counting_allocator<void>{memory}, asio::bind_executor(of_token, [&](error_code code) {
                                     ++calls;
                                     CHECK_FALSE(code);
                                     CHECK(runs_on(token_executor));
                                     CHECK_FALSE(is_initiating());
                                     CHECK(memory.alive == 0);
                                 })));
    }
    CHECK(calls == 0);
    CHECK(memory.alive > 0);
    {
        std::jthread const first{[&] { io.run(); }};
        std::jthread const second{[&] { other.run(); }};
        look_at_all_streams();
        stream.let_go();
    }
    CHECK(calls == 1);
}

TEST_CASE("a wait that the reactor refuses gets an error and keeps no descriptor", "[hold]")
{
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    auto const before = epoll_descriptors();
    waiting at;
    at.start(stream.ref());
    at.run_until_called();
    for (int const fd : epoll_descriptors()) {
        // Not an epoll any more: nothing can be added to it.
        if (!before.contains(fd))
            REQUIRE(::dup2(detail::unique_fd{::open("/dev/null", O_RDWR | O_CLOEXEC)}.get(), fd) == fd);
    }
    stream.hold();
    auto const count = descriptors().size();
    at.calls = 0;
    CHECK_NOTHROW(at.start(stream.ref()));
    at.io.restart();
    at.io.poll();
    CHECK(at.calls == 1);
    CHECK(at.code == boost::system::errc::invalid_argument);
    // The thread that told of the first wait may have had its descriptor still when they were counted.
    CHECK(soon([&] { return descriptors().size() <= count; }));
    stream.let_go();
}

TEST_CASE("a wait may be left behind by everything it was made with", "[hold]")
{
    auto& on = gpu_or_skip();
    gpu_test_stream held{on};
    held.hold();
    auto stream = cuda_stream::on(0);
    order_after(stream, held.ref());
    auto const alive = std::make_shared<int>();
    {
        asio::io_context io{1};
        async_wait(io.get_executor(), stream, [alive](error_code) { FAIL_CHECK("nobody runs this"); });
        asio::co_spawn(
            io,
            [](cuda_stream_ref on_stream, std::shared_ptr<int> /*kept*/) -> asio::awaitable<void> {
                co_await async_wait(co_await asio::this_coro::executor, on_stream);
            }(stream, alive),
            asio::detached);
        look_at_all_streams();
        io.poll();
        CHECK(alive.use_count() == 3);
    }
    CHECK(alive.use_count() == 1);
    stream = {};
    held.let_go();
}

namespace {

struct crowd {
    detail::cuda::gpu& on = gpu_or_skip();
    std::vector<cuda_stream> streams;
    gpu_bytes source{on, 10000};
    gpu_bytes destination{on, 40000};  // a part for each stream
    std::atomic<int> done = 0;
};

asio::awaitable<void> work(std::shared_ptr<crowd> shared, unsigned seed, int rounds)
{
    auto& in = *shared;
    auto const executor = co_await asio::this_coro::executor;
    std::minstd_rand random{seed};
    std::array const fragments{fragment{in.source.address(), 10000, memory_kind::device}};
    for (int i = 0; i < rounds; ++i) {
        auto const which = random() % in.streams.size();
        auto const& stream = in.streams[which];
        auto const& other = in.streams[random() % in.streams.size()];
        gather(fragments, in.destination.span().subspan(which * 10000, 10000), stream);
        order_after(other, stream);
        co_await async_wait(executor, random() % 2 == 0 ? other : stream);
        ++in.done;
    }
}

}  // namespace

TEST_CASE("waits for many streams in many threads")
{
    auto const shared = std::make_shared<crowd>();
    auto& in = *shared;
    for (int i = 0; i < 4; ++i)
        in.streams.push_back(cuda_stream::on(0));
    asio::io_context io;
    for (unsigned seed = 0; seed < 4; ++seed)
        asio::co_spawn(io, work(shared, seed, 50), asio::detached);
    {
        std::jthread const second{[&] { io.run(); }};
        io.run();
    }
    CHECK(in.done == 4 * 50);
}

}  // namespace gpurx::test
