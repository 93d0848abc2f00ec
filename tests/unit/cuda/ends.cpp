// SPDX-License-Identifier: Apache-2.0
//
// Flows and memory that end while a stream stands still. To free memory waits for all streams of its GPU, and the
// thread that sees streams pass gives back everybody's pages.
#include <atomic>
#include <catch2/generators/catch_generators.hpp>

#include "fake_clock.hpp"
#include "fake_world.hpp"

namespace gpurx::test {

namespace {

using way = fake_kernel::way;

detail::stream_point* point_behind(gpu_test_stream const& stream)
{
    detail::stream_point* point = nullptr;
    detail::spare_point spare;
    spare.provide();
    mark(point, {.ordinal = 0, .stream = stream.ref()}, spare);
    REQUIRE(point != nullptr);
    return point;
}

std::shared_ptr<detail::memory_state> make_memory(int kind, gpu_bytes const& adopted)
{
    switch (kind) {
        case 0:
            return detail::make_gpu_memory(0, 2 << 20);
        case 1:
            return detail::make_pinned_memory(0, 2 << 20);
        default:
            // Whose owner frees it.
            return detail::adopt_gpu_memory(adopted.address(), adopted.span().size(),
                                            std::make_shared<gpu_bytes>(gpu_or_skip(), 16));
    }
}

}  // namespace

TEST_CASE("a flow that ends with its last loan keeps no other flow's pages back, whatever stream stands still")
{
    nic_into_gpu in;
    sender to{in.wires};
    sender to_other{in.wires};
    auto rx = in.flow(to);
    auto other_rx = in.flow(to_other);
    gpu_test_stream const first{gpu_or_skip()};
    gpu_test_stream const third{gpu_or_skip()};
    for (int i = 0; i < 3; ++i) {
        in.kernel.deliver({{way::linear, 100, 0}});
        to.send(100);
        REQUIRE(receive(in, rx)->bytes == 100);
    }
    to.send(5000);
    auto loan = std::move(receive(in, rx)->loan);
    auto const of_first = in.kernel.tokens_out();
    to_other.send(5000);
    auto other_loan = std::move(receive(in, other_rx)->loan);
    auto const of_other = in.kernel.tokens_out() - of_first;
    stalled_stream second;
    fake_cuda::hold(first.get());
    fake_cuda::hold(third.get());
    loan.release_after(first.ref());
    other_loan.release_after(third.ref());
    {
        auto const closed = std::move(rx);
    }
    fake_cuda::let_go(first.get());
    CHECK(soon([&] { return in.kernel.tokens_out() == of_other; }));
    REQUIRE(soon([] { return others_sleep(); }));
    fake_cuda::let_go(third.get());
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
    second.let_go();
}

TEST_CASE("memory that ends with the last loan of it keeps no pages of others back, whatever stream stands still")
{
    clean_driver const clean;
    gpu_bytes const adopted{gpu_or_skip(), 2 << 20};
    auto const kind = GENERATE(0, 1, 2);
    gpu_test_stream const first{gpu_or_skip()};
    gpu_test_stream const third{gpu_or_skip()};
    static_cast<void>(make_memory(kind, adopted));
    auto const before = fake_cuda::live();
    {
        auto memory = std::make_unique<std::shared_ptr<detail::memory_state>>(make_memory(kind, adopted));
        static std::atomic<bool> dropped;
        dropped = false;
        stalled_stream second;
        when_passed(
            point_behind(first),
            [](void* last, error_code) noexcept {
                delete static_cast<std::shared_ptr<detail::memory_state>*>(last);
                dropped = true;
            },
            memory.release(), detail::waiting_for::pages);
        CHECK(soon([] { return dropped.load(); }));
        std::atomic<bool> passed{false};
        when_passed(
            point_behind(third),
            [](void* seen, error_code) noexcept { static_cast<std::atomic<bool>*>(seen)->store(true); }, &passed,
            detail::waiting_for::pages);
        CHECK(soon([&] { return passed.load(); }));
        second.let_go();
        CHECK(soon([&] { return passed.load(); }));
    }
    CHECK(soon([&] {
        auto const now = fake_cuda::live();
        return now.vmm_mappings == before.vmm_mappings && now.host_registrations == before.host_registrations &&
               now.device_allocations == before.device_allocations;
    }));
}

TEST_CASE("a session that ends with its last loan keeps no pages of others back, whatever its NIC is being asked")
{
    clean_driver const clean;
    gpu_test_stream const first{gpu_or_skip()};
    gpu_test_stream const second{gpu_or_skip()};
    std::atomic<bool> is_asked{false};
    std::atomic<bool> may_answer{false};
    world in{nic_transport(), {.lock_up_limit = 40ms}, memory_on_gpu()};
    auto& nic = in.session.nic();
    nic.at_look = [&] {
        is_asked = true;
        for (int i = 0; i < 10 && !may_answer; ++i)
            static_cast<void>(soon([&] { return may_answer.load(); }));
    };
    sender to{in.wires};
    {
        auto rx = in.flow(to);
        to.send(5000);
        auto loan = std::move(receive(in, rx)->loan);
        auto const waits = make_completion();
        rx.async_receive(noting{waits});
        in.settle();
        CHECK(soon([&] { return is_asked.load(); }));
        fake_cuda::hold(first.get());
        loan.release_after(first.ref());
        rx.close();
        in.run_until([&] { return waits->done(); });
        in.session.drop();
    }
    fake_cuda::let_go(first.get());
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
    std::atomic<bool> passed{false};
    REQUIRE(soon([] { return others_sleep(); }));
    when_passed(
        point_behind(second),
        [](void* seen, error_code) noexcept { static_cast<std::atomic<bool>*>(seen)->store(true); }, &passed,
        detail::waiting_for::pages);
    CHECK(soon([&] { return passed.load(); }));
    CHECK(nic.alive);
    may_answer = true;
    CHECK(soon([&] { return !nic.alive; }));
    CHECK(soon([&] { return passed.load(); }));
}

}  // namespace gpurx::test
