// SPDX-License-Identifier: Apache-2.0
//
// That the fake CUDA driver keeps CUDA's rules for streams, events and captures.
#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <latch>
#include <thread>

#include "fake_cuda_bed.hpp"

namespace gpurx::detail {

TEST_CASE("fake CUDA: an event is done when the work before it is, and a wait is for the record of its time")
{
    in_context const context;
    auto const first = make_stream();
    auto const second = make_stream();
    auto const event = make_event();
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);  // never recorded
    auto const address = allocate(64);
    fake_cuda::hold(first);
    REQUIRE(cuMemsetD8Async(address, 7, 64, first) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, first) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(second, event, 0) == CUDA_SUCCESS);
    auto* const copied = static_cast<std::uint8_t*>(allocate_host(64));
    REQUIRE(cuMemcpyDtoHAsync(copied, address, 64, second) == CUDA_SUCCESS);
    REQUIRE(all_others_wait());
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    CHECK(cuStreamQuery(first) == CUDA_ERROR_NOT_READY);
    CHECK(cuStreamQuery(second) == CUDA_ERROR_NOT_READY);
    CHECK(fake_cuda::queued(first) == 2);
    CHECK(fake_cuda::streams().size() == 2);
    REQUIRE(cuEventDestroy(event) == CUDA_SUCCESS);  // the wait goes on
    fake_cuda::let_go(first);
    REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
    CHECK(copied[63] == 7);
    REQUIRE(cuStreamDestroy(first) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(second) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeHost(copied) == CUDA_SUCCESS);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: host functions run in order, and a destroyed stream finishes its work")
{
    in_context const context;
    auto const stream = make_stream();
    std::atomic<int> runs{0};
    auto const count = [](void* of) {
        ++*static_cast<std::atomic<int>*>(of);
        int ignored = 0;
        cuDeviceGetCount(&ignored);
    };
    fake_cuda::hold(stream);
    for (int i = 0; i < 3; ++i)
        REQUIRE(cuLaunchHostFunc(stream, count, &runs) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    CHECK(runs == 0);
    CHECK(fake_cuda::live().streams == 0);
    fake_cuda::let_go(stream);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(runs == 3);
    CHECK(fake_cuda::violations().size() == 3);  // CUDA may not be called from there
    fake_cuda::clear_violations();
}

TEST_CASE("fake CUDA: a host function that waits holds up those of all streams")
{
    in_context const context;
    auto const first = make_stream();
    auto const second = make_stream();
    struct meeting {
        std::latch entered{1};
        std::latch leave{1};
        std::atomic<bool> second_ran{false};
    } gates;
    auto const wait = [](void* of) {
        auto& all = *static_cast<meeting*>(of);
        all.entered.count_down();
        all.leave.wait();
    };
    auto const note = [](void* of) { static_cast<meeting*>(of)->second_ran = true; };
    REQUIRE(cuLaunchHostFunc(first, wait, &gates) == CUDA_SUCCESS);
    gates.entered.wait();
    REQUIRE(cuLaunchHostFunc(second, note, &gates) == CUDA_SUCCESS);
    REQUIRE(all_others_wait());
    CHECK_FALSE(gates.second_ran);
    CHECK(fake_cuda::queued(second) == 1);
    gates.leave.count_down();
    REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
    CHECK(gates.second_ran);
    REQUIRE(cuStreamDestroy(first) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(second) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: a stream takes a thousand commands, and only its own callers wait for room")
{
    in_context const context;
    auto const stream = make_stream();
    auto const other = make_stream();
    auto const address = allocate(1);
    fake_cuda::hold(stream);
    std::atomic<int> taken{0};
    std::jthread const fills{[&] {
        cuCtxPushCurrent(context.handle());
        for (; taken < 1001; ++taken)
            cuMemsetD8Async(address, 1, 1, stream);
        cuCtxPopCurrent(nullptr);
    }};
    while (taken < 1000)
        std::this_thread::yield();
    CHECK(cuMemsetD8Async(address, 2, 1, other) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
    REQUIRE(all_others_wait());
    CHECK(taken == 1000);
    fake_cuda::let_go(stream);
    while (taken < 1001)
        std::this_thread::yield();
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(other) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: streams wait for a word each, and not for each other's")
{
    in_context const context;
    auto const first = make_stream();
    auto const second = make_stream();
    auto* const words = static_cast<std::uint32_t*>(allocate_host(2 * sizeof(std::uint32_t)));
    auto const wait = [&](CUstream stream, int word, std::uint32_t value, unsigned flags) {
        return cuStreamWaitValue32(stream, address_of(&words[word]), value, flags);
    };
    REQUIRE(wait(first, 0, 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
    REQUIRE(wait(second, 1, 4, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
    REQUIRE(wait(second, 1, 2, CU_STREAM_WAIT_VALUE_AND) == CUDA_SUCCESS);
    CHECK(cuStreamWaitValue32(first, address_of(words) + 1, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(wait(first, 0, 0, 4) == CUDA_ERROR_INVALID_VALUE);
    std::uint32_t pageable = 0;
    CHECK(cuStreamWaitValue32(first, address_of(&pageable), 0, 0) == CUDA_ERROR_INVALID_VALUE);
    std::atomic_ref{words[1]}.store(6);
    REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(first) == CUDA_ERROR_NOT_READY);
    std::atomic_ref{words[0]}.store(1);
    REQUIRE(cuStreamSynchronize(first) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(first) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(second) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeHost(words) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: calls that a capture does not allow fail, and make the capture invalid")
{
    in_context const context;
    auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REQUIRE(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
    auto const captured = make_stream();
    auto const other = make_stream();
    auto const inside = make_event();
    auto const outside = make_event();
    auto const address = allocate(1);
    REQUIRE(cuEventRecord(outside, other) == CUDA_SUCCESS);
    auto const status_of = [&] {
        auto status = CU_STREAM_CAPTURE_STATUS_NONE;
        CHECK(cuStreamIsCapturing(captured, &status) == CUDA_SUCCESS);
        return status;
    };
    auto const spoils = [&](auto call, CUresult error) {
        fake_cuda::set_captured(captured, true);
        REQUIRE(cuMemsetD8Async(address, 5, 1, captured) == CUDA_SUCCESS);
        REQUIRE(cuEventRecord(inside, captured) == CUDA_SUCCESS);
        REQUIRE(cuStreamWaitEvent(captured, inside, 0) == CUDA_SUCCESS);
        CHECK(status_of() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        CHECK(call() == error);
        CHECK(status_of() == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        CHECK(cuEventRecord(inside, captured) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        CHECK(fake_cuda::violations().size() == 1);
        fake_cuda::clear_violations();
        fake_cuda::set_captured(captured, false);
    };
    spoils([&] { return cuStreamQuery(captured); }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    spoils([&] { return cuStreamSynchronize(captured); }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    spoils([] { return cuCtxSynchronize(); }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    spoils([&] { return cuStreamWaitEvent(captured, outside, 0); }, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    spoils([&] { return cuEventQuery(inside); }, CUDA_ERROR_CAPTURED_EVENT);
    spoils([&] { return cuEventSynchronize(inside); }, CUDA_ERROR_CAPTURED_EVENT);
    REQUIRE(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
    spoils([&] { return cuEventQuery(outside); }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuStreamQuery(captured) == CUDA_SUCCESS);  // which was given nothing
    CHECK(fake_cuda::bytes_at(address, 1)[0] == std::byte{0});
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    for (auto* const event : {inside, outside})
        REQUIRE(cuEventDestroy(event) == CUDA_SUCCESS);
    for (auto* const stream : {captured, other})
        REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: a graph does what was captured, in its order, each time that it is launched and not before")
{
    in_context const context;
    auto const captured = make_stream();
    auto const other = make_stream();
    auto const address = allocate(4);
    REQUIRE(cuMemsetD8Async(address, 1, 4, captured) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(captured) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(cuMemsetD8Async(address, 2, 3, captured) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(address, 3, 2, captured) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyAsync(address + 3, address, 1, captured) == CUDA_SUCCESS);
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(other, &graph) == CUDA_ERROR_ILLEGAL_STATE);
    std::jthread{[&] {
        CHECK(cuCtxPushCurrent(context.handle()) == CUDA_SUCCESS);
        CHECK(cuStreamEndCapture(captured, &graph) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }}.join();
    REQUIRE(cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
    CUgraphExec launchable = nullptr;
    REQUIRE(cuGraphInstantiate(&launchable, graph, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(captured) == CUDA_SUCCESS);
    auto const is = [&](std::array<int, 4> const& wanted) {
        auto const* const bytes = fake_cuda::bytes_at(address, 4);
        return std::equal(wanted.begin(), wanted.end(), bytes,
                          [](int value, std::byte byte) { return std::byte(value) == byte; });
    };
    CHECK(is({1, 1, 1, 1}));
    for (auto* const stream : {captured, other}) {
        REQUIRE(cuMemsetD8Async(address, 9, 4, stream) == CUDA_SUCCESS);
        REQUIRE(cuGraphLaunch(launchable, stream) == CUDA_SUCCESS);
        REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        CHECK(is({3, 3, 2, 3}));
    }
    REQUIRE(cuGraphExecDestroy(launchable) == CUDA_SUCCESS);
    CHECK(last_words([&] {
              cuGraphLaunch(launchable, other);
          }).starts_with("fake CUDA: cuGraphLaunch with a handle that was given up"));
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    for (auto* const stream : {captured, other})
        REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: an invalid capture ends without a graph, and its stream can be used again")
{
    in_context const context;
    auto const captured = make_stream();
    REQUIRE(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    std::jthread{[&] {
        CHECK(cuCtxPushCurrent(context.handle()) == CUDA_SUCCESS);
        CHECK(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }}.join();
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(captured, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(graph == nullptr);
    CHECK(fake_cuda::violations() == std::vector<std::string>{"cuCtxSynchronize invalidates a capture"});
    fake_cuda::clear_violations();
    CHECK(cuStreamSynchronize(captured) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(captured) == CUDA_SUCCESS);
}

}  // namespace gpurx::detail
