// SPDX-License-Identifier: Apache-2.0
//
// A program that has no memory left: what it gives back waits for its stream all the same, the thread that gives it
// back for nothing, and what cannot be begun is refused before the stream has got any of it.
#include <atomic>
#include <catch2/generators/catch_generators.hpp>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/gather.hpp>
#include <optional>
#include <thread>

#include "../../asio/allocation_counter.hpp"
#include "cuda/allocations.hpp"
#include "cuda/stream_point.hpp"
#include "fake_world.hpp"
#include "memory/page_pool.hpp"

namespace gpurx::test {

namespace {

// No point of the GPU's own context lies ready: the next needs memory.
class no_ready_points {
  public:
    explicit no_ready_points(detail::cuda::gpu& on = gpu_or_skip())
    {
        taken_.reserve(10'000);
        no_memory const none{fake_cuda::is_in_call};
        while (auto* const point = detail::cuda::make_point(on.context()))
            taken_.push_back(point);
    }
    no_ready_points(no_ready_points const&) = delete;
    no_ready_points& operator=(no_ready_points const&) = delete;
    ~no_ready_points()
    {
        for (auto* const point : taken_)
            detail::cuda::discard(point);
    }

  private:
    std::vector<detail::stream_point*> taken_;
};

// Whether `work`, in a thread that has run `first` and is given no memory then, is soon done while the stream stands
// still. The stream is let go where it is not.
template <class First, class Work>
bool goes_on_without_memory(gpu_test_stream const& stalled, First first, Work work)
{
    std::atomic<bool> done{false};
    std::jthread const works{[&] {
        first();
        {
            no_memory const none{fake_cuda::is_in_call};
            work();
        }
        done = true;
    }};
    if (soon([&] { return done.load(); }))
        return true;
    fake_cuda::let_go(stalled.get());
    return false;
}

template <class Work>
bool goes_on_without_memory(gpu_test_stream const& stalled, Work work)
{
    return goes_on_without_memory(
        stalled, [] {}, work);
}

// One, and where to put something behind it.
struct stalled : clean_driver, stalled_stream {
    explicit stalled(int ordinal = 0) : stalled_stream{ordinal} {}
    stalled(stalled const&) = delete;
    stalled& operator=(stalled const&) = delete;
    ~stalled() { let_go(); }  // to free memory waits for it

    [[nodiscard]] detail::gpu_stream place() const { return {.ordinal = on.ordinal(), .stream = stream.ref()}; }

    gpu_bytes destination{on, 4096};
};

// Loans of a GPU's memory, or of the host's.
struct lending : stalled, world {
    lending() : lending{any_transport(), GENERATE(true, false)} {}
    lending(lending const&) = delete;
    lending& operator=(lending const&) = delete;
    ~lending()
    {
        let_go();
        static_cast<void>(soon([this] { return is_all_back(); }));
    }

    [[nodiscard]] rx_buffer next_loan()
    {
        to.send(copies ? 200'000 : 20'000);  // more than one page
        return std::move(receive(*this, rx)->loan);
    }
    // One page may be the flow's, for what comes next.
    [[nodiscard]] bool is_all_back() { return kernel.tokens_out() == 0 && free_pages() + 1 >= all_free; }

    bool copies;
    sender to{wires};
    receiver rx{flow(to)};
    std::size_t all_free = free_pages();

  private:
    lending(transport kind, bool on_gpu)
        : world{kind, {}, on_gpu ? memory_on_gpu() : session_memory::on_host(8 << 20)}, copies{kind == transport::copy}
    {}
    [[nodiscard]] std::size_t free_pages() { return copies ? session.state().pages().free_count() : 0; }
};

}  // namespace

TEST_CASE("without memory pages are released after a stalled stream, and no caller waits")
{
    lending in;
    auto first = in.next_loan();
    auto second = in.next_loan();
    {
        no_ready_points const none;
        CHECK(goes_on_without_memory(in.stream, [&] {
            first.release_after(in.stream.ref());
            second.release_after(in.stream.ref());
        }));
        look_at_all_streams();
        CHECK_FALSE(in.is_all_back());
        in.let_go();
        CHECK(soon([&] { return in.is_all_back(); }));
    }
    // The same records again, and as often as anybody likes.
    for (int i = 0; i < 3; ++i) {
        auto loan = in.next_loan();
        no_ready_points const none;
        CHECK(goes_on_without_memory(in.stream, [&] { loan.release_after(in.stream.ref()); }));
        CHECK(soon([&] { return in.is_all_back(); }));
    }
}

TEST_CASE("without memory pages are released after a stream that is being captured, and the capture goes on")
{
    lending in;
    auto loan = in.next_loan();
    no_ready_points const none;
    fake_cuda::set_captured(in.stream.get(), true);
    CHECK(goes_on_without_memory(in.stream, [&] { loan.release_after(in.stream.ref()); }));
    look_at_all_streams();
    CHECK(capture_of(in.stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK_FALSE(in.is_all_back());
    fake_cuda::set_captured(in.stream.get(), false);
    in.let_go();
    CHECK(soon([&] { return in.is_all_back(); }));
}

TEST_CASE("without memory a stalled stream is dropped without a wait, and ends when it has passed")
{
    stalled in;
    auto const known = fake_cuda::streams().size();
    auto dropped = std::make_optional(cuda_stream::on(0));
    auto* const handle = dropped->get();
    {
        detail::cuda::context_scope const scope{in.on};
        fake_cuda::hold(handle);
        REQUIRE(in.on.calls().cuMemsetD8Async(in.bytes.address(), 0, 1, handle) == CUDA_SUCCESS);
    }
    no_ready_points const none;
    std::atomic<bool> done{false};
    std::jthread const drops{[&] {
        {
            no_memory const nothing{fake_cuda::is_in_call};
            dropped.reset();
        }
        done = true;
    }};
    CHECK(soon([&] { return done.load(); }));
    CHECK(fake_cuda::streams().size() == known + 1);
    fake_cuda::let_go(handle);
    CHECK(soon([&] { return fake_cuda::streams().size() == known; }));
}

TEST_CASE("without memory for its point a gather is refused before the stream has got any of it")
{
    stalled in{22};  // whose blocks for descriptors are no other test's
    auto const of_read = GENERATE(true, false);
    // The driver copies what no kernel can.
    auto const reached = !of_read || GENERATE(true, false);
    auto* const elsewhere = reinterpret_cast<CUctx_st*>(&in);
    std::array const fragments{fragment{in.bytes.address(), 4096, memory_kind::device}};
    detail::stream_point* read_until = nullptr;
    error_code code;
    std::size_t placed = 0;
    auto const gather_once = [&] {
        code.clear();
        placed = detail::gather_on_gpu(
            fragments, in.destination.span(), in.place(),
            {.destination_of = reached ? nullptr : elsewhere, .read_until = of_read ? &read_until : nullptr}, code);
    };
    std::size_t before = 0;
    std::size_t queued = 0;
    no_ready_points const none{in.on};
    auto const first = [&] {
        gather_once();
        before = placed;
        queued = fake_cuda::queued(in.stream.get());
    };
    CHECK(goes_on_without_memory(in.stream, first, gather_once));
    CHECK(before == 4096);
    CHECK(code == detail::cuda::error_of(CUDA_ERROR_OUT_OF_MEMORY));
    CHECK(placed == 0);
    CHECK(fake_cuda::queued(in.stream.get()) == queued);
    in.let_go();
    detail::cuda::wait_for(read_until);
}

TEST_CASE("without memory for a bounce copy the bytes stay in place, and no caller waits")
{
    stalled in;
    auto const bytes = pattern(0, 4096);
    std::array const fragments{
        fragment{reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size(), memory_kind::host}};
    detail::stream_point* read_until = nullptr;
    error_code code;
    std::size_t placed = 0;
    auto const gather_once = [&] {
        code.clear();
        placed = detail::gather_on_gpu(fragments, in.destination.span(), in.place(), {.read_until = &read_until}, code);
    };
    std::size_t before = 0;
    bool pinned = false;
    no_ready_points const none;
    auto const first = [&] {
        gather_once();
        before = placed;
        // Pinned memory lies ready, and a point for the batch, but none for its bounce buffers.
        constexpr std::size_t block_size = 8192;
        std::byte* block = nullptr;
        pinned = in.on.pinned().take(block_size, block) == CUDA_SUCCESS;
        in.on.pinned().put(block, block_size);
        detail::cuda::context_scope const scope{in.on};
        detail::cuda::discard(detail::cuda::make_point(in.on.context()));
    };
    CHECK(goes_on_without_memory(in.stream, first, gather_once));
    CHECK(before == bytes.size());
    CHECK(pinned);
    CHECK(code == boost::system::errc::not_enough_memory);
    CHECK(placed == 0);
    CHECK_FALSE(has_passed(read_until));
    in.let_go();
    CHECK(soon([&] { return has_passed(read_until); }));
    CHECK(is_pattern(in.destination.read(), 0));
}

TEST_CASE("without memory received bytes cross to a stalled stream, and no caller waits")
{
    stalled in;
    error_code code;
    auto const staging = detail::make_staging(0, code);
    REQUIRE_FALSE(code);
    auto const room = staging->room(in.place(), code);
    REQUIRE_FALSE(code);
    std::ranges::copy(pattern(0, 4096), room.begin());
    {
        no_ready_points const none;
        CHECK(goes_on_without_memory(in.stream, [&] {
            code = staging->copy(in.destination.address(), 4096);
            code = code ? code : staging->flush();
        }));
        CHECK_FALSE(code);
    }
    in.let_go();
    CHECK(is_pattern(in.destination.read(), 0));
}

TEST_CASE("without memory the next receive has no room, and with memory it has")
{
    stalled in;
    error_code code;
    auto const staging = detail::make_staging(0, code);
    auto* const backlog = detail::backlog_of(in.place());
    auto const send = [&] {
        if (!staging->room(in.place(), code).empty() && !code)
            code = staging->copy(in.destination.address(), 1, backlog);
        code = code ? code : staging->flush();
    };
    send();
    REQUIRE_FALSE(staging->room(in.place(), code).empty());
    // The backlog keeps the point of the chunk before long, so that the chunk needs another one, and another.
    bool refused = false;
    {
        no_ready_points const none;
        CHECK(goes_on_without_memory(in.stream, [&] {
            try {
                for (int i = 0; i < 200; ++i)
                    send();
            } catch (std::bad_alloc const&) {
                refused = true;
            }
        }));
    }
    CHECK(refused);
    CHECK_FALSE(code);
    send();
    CHECK_FALSE(code);
}

}  // namespace gpurx::test
