// SPDX-License-Identifier: Apache-2.0
//
// Several contexts on one GPU: a kernel reaches what was allocated in its own.
#include <atomic>
#include <gpurx/gather.hpp>
#include <thread>

#include "fake_world.hpp"

namespace gpurx::test {

namespace {

// A context of the program's own, which is current while this lives, and a stream of it.
class own_context {
  public:
    explicit own_context(detail::cuda::gpu& on) : on_{on}
    {
        REQUIRE(GPURX_DRIVER(cuCtxCreate)(&context_, nullptr, 0, on.device()) == CUDA_SUCCESS);
        REQUIRE(on.calls().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    }
    own_context(own_context const&) = delete;
    own_context& operator=(own_context const&) = delete;
    ~own_context()
    {
        CHECK(on_.calls().cuStreamSynchronize(stream_) == CUDA_SUCCESS);
        CHECK(GPURX_DRIVER(cuStreamDestroy)(stream_) == CUDA_SUCCESS);
        CUcontext popped = nullptr;
        CHECK(on_.calls().cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
    }
    [[nodiscard]] cuda_stream_ref stream() const { return stream_; }
    [[nodiscard]] CUdeviceptr allocate(std::size_t size) const
    {
        CUdeviceptr address = 0;
        REQUIRE(on_.calls().cuMemAlloc(&address, size) == CUDA_SUCCESS);
        return address;
    }

  private:
    detail::cuda::gpu& on_;
    CUcontext context_ = nullptr;
    CUstream stream_ = nullptr;
};

void fill(CUdeviceptr address, std::size_t size)
{
    std::ranges::copy(pattern(0, size), fake_cuda::bytes_at(address, size));
}

std::vector<std::byte> bytes_of(CUdeviceptr address, std::size_t size)
{
    auto const* const start = fake_cuda::bytes_at(address, size);
    return {start, start + size};
}

constexpr std::size_t size = 10000;

}  // namespace

TEST_CASE("fragments of another context of the same GPU are gathered, and into its memory")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    gpu_bytes const theirs{on, size};
    own_context const own{on};
    auto const ours = own.allocate(size);
    fake_cuda::set_pointers_told(GENERATE(false, true));
    auto const into_theirs = GENERATE(false, true);
    auto const source = into_theirs ? ours : theirs.address();
    auto const destination = into_theirs ? theirs.address() : ours;
    fill(source, size);
    std::array const fragments{fragment{source, 4001, memory_kind::device},
                               fragment{source + 4001, size - 4001, memory_kind::device}};
    REQUIRE(gather(fragments, {memory_kind::device, destination, size}, own.stream()) == size);
    CHECK(on.calls().cuStreamSynchronize(own.stream().get()) == CUDA_SUCCESS);
    CHECK(is_pattern(bytes_of(destination, size), 0));
    CHECK(on.calls().cuMemFree(ours) == CUDA_SUCCESS);
}

TEST_CASE("an error in the GPU's own context leaves a program's own context going")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    static_cast<void>(on.gather_if_any());
    static_cast<void>(on.copies());
    own_context const own{on};
    auto const source = own.allocate(size);
    auto const destination = own.allocate(size);
    fill(source, size);
    auto const place = [](CUdeviceptr address) { return memory_span{memory_kind::device, address, size}; };
    std::array const fragments{fragment{source, size, memory_kind::device}};
    REQUIRE(gather(fragments, place(source), own.stream()) == size);
    fake_cuda::break_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(gather(fragments, place(destination), own.stream()) == size);
    CHECK(on.calls().cuStreamSynchronize(own.stream().get()) == CUDA_SUCCESS);
    CHECK(is_pattern(bytes_of(destination, size), 0));
    fake_cuda::break_context(0, CUDA_SUCCESS);
    CHECK(on.calls().cuMemFree(source) == CUDA_SUCCESS);
    CHECK(on.calls().cuMemFree(destination) == CUDA_SUCCESS);
}

TEST_CASE("memory adopted from a program's own context has the kernels loaded there")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    own_context const own{on};
    auto const address = own.allocate(2 << 20);
    {
        auto const memory = device_memory::adopt(address, 2 << 20);
        fake_cuda::set_loading_waits(true);
        CUstream held = nullptr;
        REQUIRE(on.calls().cuStreamCreate(&held, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        fake_cuda::hold(held);
        REQUIRE(on.calls().cuMemsetD8Async(address, 0, 1, held) == CUDA_SUCCESS);
        std::atomic<std::size_t> gathered{0};
        {
            std::jthread const gathers{[&] {
                std::array const fragments{fragment{address + size, size, memory_kind::device}};
                gathered = gather(fragments, {memory_kind::device, address + 2 * size, size}, own.stream());
            }};
            CHECK(soon([&] { return gathered == size; }));
            fake_cuda::let_go(held);
        }
        CHECK(on.calls().cuStreamSynchronize(held) == CUDA_SUCCESS);
        CHECK(GPURX_DRIVER(cuStreamDestroy)(held) == CUDA_SUCCESS);
        CHECK(on.calls().cuStreamSynchronize(own.stream().get()) == CUDA_SUCCESS);
    }
    CHECK(on.calls().cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE("a CRC of what a kernel cannot reach is refused, and nothing is written")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    gpu_bytes const far{on, size};
    own_context const own{on};
    auto const near = own.allocate(size);
    fake_cuda::set_pointers_told(GENERATE(false, true));
    auto const sum = own.allocate(4);
    auto const refused = [&](CUdeviceptr from, CUdeviceptr to, CUdeviceptr crc) {
        error_code code;
        std::array const fragments{fragment{from, 100, memory_kind::device}};
        CHECK(gather_crc32c(fragments, {memory_kind::device, to, 100}, {memory_kind::device, crc, 4}, own.stream(),
                            code) == 0);
        return code == errc::bad_destination;
    };
    CHECK(refused(far.address(), near, sum));
    CHECK(refused(near, far.address(), sum));
    CHECK(refused(near, near + 200, far.address()));
    CHECK(on.calls().cuStreamSynchronize(own.stream().get()) == CUDA_SUCCESS);
    CHECK(on.calls().cuMemFree(near) == CUDA_SUCCESS);
    CHECK(on.calls().cuMemFree(sum) == CUDA_SUCCESS);
}

}  // namespace gpurx::test
