// SPDX-License-Identifier: Apache-2.0
//
// GPUs that lack something, and drivers that fail.
#include <fmt/format.h>
#include <boost/asio/error.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/gather.hpp>
#include <gpurx/local_gpu.hpp>
#include <string>

#include "fake_world.hpp"
#include "memory/page_pool.hpp"

namespace gpurx::test {

namespace {

using Catch::Matchers::ContainsSubstring;

// What a GPU is like is read once: each test of it takes one that no other test opens.
constexpr int all_gpus = 24;
bool const enough_gpus = (fake_cuda::set_devices(all_gpus), true);

int fresh_gpu()
{
    static int next = 2;
    REQUIRE(enough_gpus);
    return next++;
}

struct copying : clean_driver, world {
    copying() : world{transport::copy, {}, memory_on_gpu()} {}
    [[nodiscard]] std::size_t free_pages() const { return session.state().pages().free_count(); }
};

}  // namespace

TEST_CASE("a GPU that cannot map memory for RDMA gets plain memory")
{
    clean_driver const clean;
    auto const lacks = GENERATE(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    auto const ordinal = fresh_gpu();
    fake_cuda::set_attribute(ordinal, lacks, 0);
    static_cast<void>(gpu_or_skip(ordinal).gather_if_any());
    auto const before = fake_cuda::live();
    {
        auto const memory = device_memory::on_gpu(ordinal, 3 << 20);
        CHECK(memory.size() == 4 << 20);
        CHECK_THAT(memory.explain(), ContainsSubstring("by cuMemAlloc") && ContainsSubstring("exported by"));
        CHECK(fake_cuda::live().device_allocations == before.device_allocations + 1);
    }
    CHECK(fake_cuda::live().device_allocations == before.device_allocations);
}

TEST_CASE("the GPU of a process is that of its LOCAL_RANK")
{
    // NOLINTBEGIN(concurrency-mt-unsafe): nobody else reads them now
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    ::unsetenv("LOCAL_RANK");
    CHECK(local_gpu() == 0);
    ::setenv("LOCAL_RANK", std::to_string(all_gpus - 1).c_str(), 1);
    CHECK(local_gpu() == all_gpus - 1);
    ::setenv("LOCAL_RANK", std::to_string(all_gpus).c_str(), 1);
    error_code code;
    diagnostics why;
    CHECK(local_gpu(code, why) == -1);
    CHECK(code.value() == ENODEV);
    CHECK_THAT(why.advice, ContainsSubstring(fmt::format("sees {} GPUs", all_gpus)));
    // One that a launcher has given to this process alone.
    ::setenv("CUDA_VISIBLE_DEVICES", "6", 1);
    CHECK(local_gpu() == 0);
    ::setenv("CUDA_VISIBLE_DEVICES", "6,7", 1);
    CHECK(local_gpu(code, why) == -1);
    CHECK_THAT(why.advice, ContainsSubstring("(CUDA_VISIBLE_DEVICES is 6,7)"));
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    ::unsetenv("LOCAL_RANK");
    // NOLINTEND(concurrency-mt-unsafe)
}

TEST_CASE("a GPU that nothing was done on yet is asked, too, whether it is in error for good")
{
    clean_driver const clean;
    auto const ordinal = fresh_gpu();
    auto& on = gpu_or_skip(ordinal);
    fake_cuda::break_context(ordinal, CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(on.failure(true) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(on.failure(false) == CUDA_ERROR_ILLEGAL_ADDRESS);
    fake_cuda::break_context(ordinal, CUDA_SUCCESS);
    CHECK(on.failure(true) == CUDA_SUCCESS);
}

TEST_CASE("memory that cannot be had leaves nothing behind")
{
    clean_driver const clean;
    static_cast<void>(device_memory::on_gpu(0, 1));
    auto const before = fake_cuda::live();
    auto const* const function = GENERATE("cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
                                          "cuMemGetAllocationGranularity", "cuCtxPushCurrent");
    fake_cuda::fail(function, CUDA_ERROR_OUT_OF_MEMORY);
    error_code code;
    diagnostics why;
    CHECK_FALSE(device_memory::on_gpu(0, 2 << 20, code, why).valid());
    CHECK(code == detail::cuda::error_of(CUDA_ERROR_OUT_OF_MEMORY));
    CHECK_THAT(describe(code, why), ContainsSubstring("2 MiB of GPU 0") && ContainsSubstring("out of memory"));
    CHECK(fake_cuda::live() == before);
}

TEST_CASE("memory that is not exported is for transport copy, and says why")
{
    clean_driver const clean;
    fake_cuda::fail("cuMemGetHandleForAddressRange", CUDA_ERROR_NOT_SUPPORTED, 0, 2);
    auto const memory = device_memory::on_gpu(0, 1 << 20);
    CHECK(memory.valid());
    CHECK(memory.dmabuf_fd() == -1);
    CHECK_THAT(memory.explain(), ContainsSubstring("for transport copy only: export 2 MiB of GPU 0") &&
                                     ContainsSubstring("open kernel modules"));
    fake_cuda::fail("cuMemGetHandleForAddressRange", CUDA_ERROR_NOT_SUPPORTED, 0, 2);
    gpu_bytes const owned{gpu_or_skip(), 1 << 20};
    CHECK_THROWS_AS(device_memory::adopt(owned.address(), 1 << 20), system_error);
}

TEST_CASE("memory is not adopted that the driver says is managed, of a pool, or not for RDMA")
{
    clean_driver const clean;
    gpu_bytes const owned{gpu_or_skip(), 2 << 20};
    error_code code;
    diagnostics why;
    auto const refused = [&] {
        CHECK_FALSE(device_memory::adopt(owned.address(), 2 << 20, {}, code, why).valid());
        return describe(code, why);
    };
    fake_cuda::set_managed(owned.address(), true);
    CHECK_THAT(refused(), ContainsSubstring("managed memory"));
    fake_cuda::set_managed(owned.address(), false);
    fake_cuda::set_from_pool(owned.address(), true);
    CHECK_THAT(refused(), ContainsSubstring("stream-ordered pool"));
    fake_cuda::set_from_pool(owned.address(), false);
    fake_cuda::set_rdma_capable(owned.address(), false);
    CHECK_THAT(refused(), ContainsSubstring("gpuDirectRDMACapable"));
    fake_cuda::set_rdma_capable(owned.address(), true);
    CHECK(device_memory::adopt(owned.address(), 2 << 20).valid());
}

TEST_CASE("memory is not adopted of which the driver does not say where it ends")
{
    clean_driver const clean;
    gpu_bytes const owned{gpu_or_skip(), 2 << 20};
    static_cast<void>(gpu_or_skip().gather_if_any());
    fake_cuda::fail("cuMemGetAddressRange", CUDA_ERROR_NOT_SUPPORTED);
    error_code code;
    diagnostics why;
    CHECK_FALSE(device_memory::adopt(owned.address(), 2 << 20, {}, code, why).valid());
    CHECK_THAT(describe(code, why), ContainsSubstring("does not say where it ends"));
}

namespace {

// Addresses that memory is mapped at piece by piece, as PyTorch's expandable segments are.
class mapped_pieces {
  public:
    static constexpr std::size_t piece = 2 << 20;
    static constexpr std::size_t count = 3;

    // `plain`: which of them no NIC can write to.
    explicit mapped_pieces(detail::cuda::gpu& on, std::size_t plain = count) : calls_{on.calls()}
    {
        REQUIRE(calls_.cuMemAddressReserve(&address_, count * piece, piece, 0, 0) == CUDA_SUCCESS);
        CUmemAllocationProp wish{};
        wish.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        wish.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = on.ordinal()};
        CUmemAccessDesc const access{wish.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        for (std::size_t i = 0; i < count; ++i) {
            wish.allocFlags.gpuDirectRDMACapable = i == plain ? 0 : 1;
            CUmemGenericAllocationHandle memory = 0;
            REQUIRE(calls_.cuMemCreate(&memory, piece, &wish, 0) == CUDA_SUCCESS);
            REQUIRE(calls_.cuMemMap(address_ + i * piece, piece, 0, memory, 0) == CUDA_SUCCESS);
            REQUIRE(calls_.cuMemSetAccess(address_ + i * piece, piece, &access, 1) == CUDA_SUCCESS);
            REQUIRE(calls_.cuMemRelease(memory) == CUDA_SUCCESS);
        }
    }
    mapped_pieces(mapped_pieces const&) = delete;
    mapped_pieces& operator=(mapped_pieces const&) = delete;
    ~mapped_pieces()
    {
        for (std::size_t i = 0; i < count; ++i)
            if (i != gap_)
                CHECK(calls_.cuMemUnmap(address_ + i * piece, piece) == CUDA_SUCCESS);
        CHECK(calls_.cuMemAddressFree(address_, count * piece) == CUDA_SUCCESS);
    }
    void unmap(std::size_t which)
    {
        REQUIRE(calls_.cuMemUnmap(address_ + which * piece, piece) == CUDA_SUCCESS);
        gap_ = which;
    }
    [[nodiscard]] CUdeviceptr address() const { return address_; }

  private:
    detail::cuda::driver const& calls_;
    CUdeviceptr address_ = 0;
    std::size_t gap_ = count;
};

}  // namespace

TEST_CASE("memory of several mappings is adopted as one")
{
    clean_driver const clean;
    mapped_pieces const pieces{gpu_or_skip()};
    constexpr auto size = mapped_pieces::count * mapped_pieces::piece;
    auto const memory = device_memory::adopt(pieces.address(), size);
    CHECK(memory.size() == size);
    REQUIRE(memory.dmabuf_fd() >= 0);
    CHECK(fake_cuda::find_export(memory.dmabuf_fd())->address == pieces.address());
    CHECK(fake_cuda::find_export(memory.dmabuf_fd())->size == size);
    auto const part = device_memory::adopt(pieces.address() + 4096, size - 8192);
    CHECK(part.size() == size - 8192);
}

TEST_CASE("memory of several mappings is refused for one of them, or a gap, and where is said")
{
    clean_driver const clean;
    constexpr auto size = mapped_pieces::count * mapped_pieces::piece;
    error_code code;
    diagnostics why;
    mapped_pieces const plain{gpu_or_skip(), 2};
    CHECK_FALSE(device_memory::adopt(plain.address(), size, {}, code, why).valid());
    CHECK_THAT(
        describe(code, why),
        ContainsSubstring("4 MiB from its start another allocation begins: it was allocated without GPUDirect RDMA"));
    CHECK(device_memory::adopt(plain.address(), size - mapped_pieces::piece, {}, code, why).valid());
    mapped_pieces gap{gpu_or_skip()};
    gap.unmap(1);
    CHECK_FALSE(device_memory::adopt(gap.address(), size, {}, code, why).valid());
    CHECK_THAT(describe(code, why), ContainsSubstring("only 2 MiB from its start"));
}

TEST_CASE("the mapping for PCIe is preferred where there is one")
{
    clean_driver const clean;
    auto const memory = device_memory::on_gpu(0, 1 << 20);
    CHECK(fake_cuda::find_export(memory.dmabuf_fd())->flags == 0);
    fake_cuda::set_pcie_mapping(0, true);
    auto const preferred = device_memory::on_gpu(0, 1 << 20);
    CHECK(fake_cuda::find_export(preferred.dmabuf_fd())->flags == CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE);
    CHECK(fake_cuda::find_export(preferred.dmabuf_fd())->address == preferred.span().address());
    CHECK(fake_cuda::find_export(preferred.dmabuf_fd())->size == preferred.size());
    CHECK_THAT(preferred.explain(), ContainsSubstring("for PCIe"));
}

TEST_CASE("memory that is mapped for PCIe can be exported for a NIC that is not reached so")
{
    clean_driver const clean;
    CHECK(detail::make_gpu_memory(0, 1 << 20)->other_dmabuf_fd() == -1);
    fake_cuda::set_pcie_mapping(0, true);
    auto const memory = detail::make_gpu_memory(0, 1 << 20);
    auto const other = memory->other_dmabuf_fd();
    REQUIRE(other >= 0);
    CHECK(other != memory->dmabuf_fd());
    CHECK(memory->other_dmabuf_fd() == other);
    CHECK(fake_cuda::find_export(other)->flags == 0);
    CHECK(fake_cuda::find_export(other)->address == memory->span().address());
    CHECK(fake_cuda::find_export(other)->size == memory->span().size());
}

TEST_CASE("host memory that the driver cannot export is udmabuf's, and pinned for the GPU")
{
    clean_driver const clean;
    auto const ordinal = fresh_gpu();
    fake_cuda::set_attribute(ordinal, static_cast<CUdevice_attribute>(146), 0);  // as on an H100
    auto& on = gpu_or_skip(ordinal);
    auto const before = fake_cuda::live();
    {
        auto const memory = device_memory::on_pinned_host(10000, ordinal);
        CHECK(fake_cuda::live().host_registrations == before.host_registrations + 1);
        CHECK(fake_cuda::live().host_allocations == before.host_allocations);
        CHECK((memory.dmabuf_fd() >= 0) == (device_memory::on_host(10000).dmabuf_fd() >= 0));
        CHECK_THAT(memory.explain(), ContainsSubstring("host memory pinned for GPU " + std::to_string(ordinal)) &&
                                         ContainsSubstring("udmabuf"));
        CHECK(memory.span().kind() == memory_kind::host);
        // A kernel reads it where it lies.
        auto const content = pattern(0, 10000);
        std::memcpy(reinterpret_cast<void*>(memory.span().address()), content.data(), content.size());
        gpu_bytes const destination{on, 10000};
        gpu_test_stream stream{on};
        auto const launches = fake_cuda::calls("cuLaunchKernel");
        std::array const fragments{fragment{memory.span().address(), 10000, memory_kind::host}};
        REQUIRE(gather(fragments, destination.span(), stream.ref()) == 10000);
        stream.finish();
        CHECK(fake_cuda::calls("cuLaunchKernel") > launches);
        CHECK(is_pattern(destination.read(), 0));
    }
    CHECK(fake_cuda::live().host_registrations == before.host_registrations);
}

TEST_CASE("host memory that cannot be pinned is an error, and nothing stays")
{
    clean_driver const clean;
    auto const ordinal = fresh_gpu();
    fake_cuda::set_attribute(ordinal, static_cast<CUdevice_attribute>(146), 0);
    static_cast<void>(gpu_or_skip(ordinal));
    fake_cuda::fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY);
    error_code code;
    diagnostics why;
    CHECK_FALSE(device_memory::on_pinned_host(10000, ordinal, code, why).valid());
    CHECK(code == detail::cuda::error_of(CUDA_ERROR_OUT_OF_MEMORY));
    CHECK_THAT(describe(code, why), ContainsSubstring("pin") && ContainsSubstring("of host memory"));
}

TEST_CASE("a NIC's writes are flushed once per buffer where the GPU does not order them")
{
    clean_driver const clean;
    auto const ordinal = fresh_gpu();
    fake_cuda::set_attribute(ordinal, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 0);
    auto const flushes = GENERATE(true, false);
    fake_cuda::set_attribute(ordinal, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, flushes ? 1 : 0);
    auto const memory = detail::make_gpu_memory(ordinal, 1 << 20);
    if (!flushes) {
        CHECK(memory->dmabuf_fd() == -1);
        CHECK_THAT(memory->explain(), ContainsSubstring("nothing makes a NIC's writes visible"));
        return;
    }
    CHECK_THAT(memory->explain(), ContainsSubstring("flushed once per buffer"));
    auto const before = fake_cuda::calls("cuFlushGPUDirectRDMAWrites");
    memory->acquire({});
    CHECK(fake_cuda::calls("cuFlushGPUDirectRDMAWrites") == before + 1);
}

TEST_CASE("a GPU that orders writes is not asked to flush")
{
    clean_driver const clean;
    auto const memory = detail::make_gpu_memory(0, 1 << 20);
    memory->acquire({});
    CHECK(fake_cuda::calls("cuFlushGPUDirectRDMAWrites") == 0);
    CHECK_THAT(memory->explain(), ContainsSubstring("orders a NIC's writes"));
}

TEST_CASE("pages go back when the GPU is in error: nothing reads them any more")
{
    copying in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    auto const all_free = in.free_pages();
    to.send(200000);
    auto loans = receive_all(in, rx, 200000);
    auto const lent = in.free_pages();
    fake_cuda::hold(stream.get());
    auto const broken_before = GENERATE(true, false);
    if (broken_before)
        fake_cuda::break_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    for (auto& loan : loans)
        loan.release_after(stream.ref());
    if (!broken_before) {
        look_at_all_streams();
        CHECK(in.free_pages() == lent);
        fake_cuda::break_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    // All of them: a stream that is asked for must not be destroyed. One page may be the flow's, for what comes next.
    CHECK(soon([&] { return in.free_pages() + 1 >= all_free; }));
    to.send(1000);
    CHECK(receive(in, rx)->code == detail::cuda::error_of(CUDA_ERROR_ILLEGAL_ADDRESS));
    fake_cuda::let_go(stream.get());
    fake_cuda::break_context(0, CUDA_SUCCESS);
}

TEST_CASE("a point that cannot be recorded means waiting for all of the context")
{
    copying in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    auto const all_free = in.free_pages();
    to.send(200000);
    auto loans = receive_all(in, rx, 200000);
    auto const lent = in.free_pages();
    stream.hold();
    auto const* const function = GENERATE("cuEventCreate", "cuEventRecord");
    fake_cuda::fail(function, CUDA_ERROR_OUT_OF_MEMORY, 0, 1000);
    for (auto& loan : loans)
        loan.release_after(stream.ref());
    fake_cuda::fail(function, CUDA_SUCCESS, 0, 0);
    look_at_all_streams();
    CHECK(in.free_pages() == lent);
    stream.let_go();
    // All of them: a stream that is asked for must not be destroyed. One page may be the flow's, for what comes next.
    CHECK(soon([&] { return in.free_pages() + 1 >= all_free; }));
}

TEST_CASE("a stream that is being captured is refused, and pages released after it wait for its end")
{
    devmem_on_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    gpu_bytes tensor{on, 5000};
    to.send(5000);
    fake_cuda::set_captured(stream.get(), true);
    auto const got = read(in, rx, tensor.span(), stream.ref());
    CHECK(got->code == errc::unusable_stream);
    CHECK(got->bytes == 0);
    error_code code;
    std::array const fragments{fragment{tensor.address(), 10, memory_kind::device}};
    CHECK(gather(fragments, tensor.span(), stream.ref(), code) == 0);
    CHECK(code == errc::unusable_stream);
    auto loan = std::move(receive(in, rx)->loan);
    CHECK(loan.size() == 5000);
    loan.release_after(stream.ref());
    look_at_all_streams();
    CHECK(in.kernel.tokens_out() > 0);
    fake_cuda::set_captured(stream.get(), false);
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

TEST_CASE("a graph that another thread captures does no harm, and comes to none")
{
    copying in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    gpu_bytes tensor{gpu_or_skip(), 300000};
    fake_cuda::set_capture_elsewhere(true);
    to.send(500000);
    std::size_t got = 0;
    auto const all_free = in.free_pages();
    stream.hold();
    for (; got < 200000;) {
        auto loan = std::move(receive(in, rx)->loan);
        got += loan.size();
        loan.release_after(stream.ref());
    }
    look_at_all_streams();
    CHECK(in.free_pages() < all_free);
    stream.let_go();
    CHECK(soon([&] { return in.free_pages() + 1 >= all_free; }));
    auto const size = 500000 - got;
    REQUIRE(read(in, rx, tensor.span().first(size), stream.ref())->bytes == size);
    fake_cuda::set_capture_elsewhere(false);
    stream.finish();
}

TEST_CASE("a driver that cannot say whether a stream has passed has not said that it has")
{
    copying in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    auto const all_free = in.free_pages();
    to.send(200000);
    auto loans = receive_all(in, rx, 200000);
    auto const lent = in.free_pages();
    stream.hold();
    auto const* const function = GENERATE("cuEventQuery", "cuStreamGetCtx", "cuStreamIsCapturing");
    fake_cuda::fail(function, CUDA_ERROR_SYSTEM_NOT_READY, 0, 1000000);
    for (auto& loan : loans)
        loan.release_after(stream.ref());
    // Some looks, of which none tells anything.
    auto const looks = fake_cuda::calls("cuCtxPopCurrent");
    CHECK(soon([&] { return fake_cuda::calls("cuCtxPopCurrent") >= looks + 5; }));
    CHECK(in.free_pages() == lent);
    fake_cuda::fail(function, CUDA_SUCCESS, 0, 0);
    stream.let_go();
    CHECK(soon([&] { return in.free_pages() + 1 >= all_free; }));
}

TEST_CASE("staging that cannot be had is an error, and the flow goes on when it can")
{
    copying in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    to.send(1000);
    fake_cuda::fail("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(receive(in, rx)->code == detail::cuda::error_of(CUDA_ERROR_OUT_OF_MEMORY));
    auto const got = receive(in, rx);
    REQUIRE_FALSE(got->code);
    CHECK(is_pattern(read_loan(gpu_or_skip(), stream, got->loan), 0));
    to.send(1000);
    fake_cuda::fail("cuMemcpyHtoDAsync", CUDA_ERROR_UNKNOWN);
    CHECK(receive(in, rx)->code == detail::cuda::error_of(CUDA_ERROR_UNKNOWN));
    // Bytes have left the socket and are nowhere: the stream has a hole.
    to.send(1000);
    CHECK(receive(in, rx)->code == detail::cuda::error_of(CUDA_ERROR_UNKNOWN));
    CHECK(in.free_pages() > 0);
}

TEST_CASE("memory is not freed under bytes that are on their way into it")
{
    copying in;
    sender to{in.wires};
    auto rx = in.flow(to);
    fake_cuda::set_delay_per_byte(std::chrono::duration<double, std::nano>{200});
    to.send(100000);
    CHECK_FALSE(receive(in, rx)->code);
}

TEST_CASE("a stream that is another in each thread is refused for reads")
{
    devmem_on_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_bytes tensor{gpu_or_skip(), 100};
    to.send(100);
    CHECK(read(in, rx, tensor.span(), cuda_stream_ref{CU_STREAM_PER_THREAD})->code == errc::unusable_stream);
    CHECK_FALSE(read(in, rx, tensor.span(), cuda_stream_ref{CU_STREAM_LEGACY})->code);
    detail::cuda::context_scope const scope{gpu_or_skip()};
    CHECK(GPURX_DRIVER(cuCtxSynchronize)() == CUDA_SUCCESS);
}

TEST_CASE("bytes on another GPU are gathered once they are there")
{
    clean_driver const clean;
    world in{transport::copy, {}, {detail::make_gpu_memory(1, 8 << 20), {}}};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& here = gpu_or_skip(0);
    gpu_test_stream stream{here};
    gpu_bytes tensor{here, 100000};
    to.send(100000);
    fake_cuda::set_delay_per_byte(std::chrono::duration<double, std::nano>{100});
    std::size_t at = 0;
    while (at < 100000) {
        auto loan = std::move(receive(in, rx)->loan);
        REQUIRE(gather(loan.fragments(), tensor.span().subspan(at, loan.size()), stream.ref()) == loan.size());
        at += loan.size();
        loan.release_after(stream.ref());
    }
    stream.finish();
    fake_cuda::set_delay_per_byte({});
    CHECK(is_pattern(tensor.read(), 0));
}

TEST_CASE("without the kernels a gather is made of the driver's copies")
{
    clean_driver const clean;
    auto& on = gpu_or_skip(fresh_gpu());
    fake_cuda::fail("cuLibraryLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU, 0, 1000);
    gpu_bytes source{on, 10000};
    gpu_bytes destination{on, 10000};
    gpu_test_stream stream{on};
    source.write(pattern(0, 10000));
    std::array const fragments{fragment{source.address(), 4001, memory_kind::device},
                               fragment{source.address() + 4001, 5999, memory_kind::device}};
    REQUIRE(gather(fragments, destination.span(), stream.ref()) == 10000);
    stream.finish();
    CHECK(is_pattern(destination.read(), 0));
    std::vector<std::byte> here(10000);
    memory_span const host{memory_kind::host, reinterpret_cast<std::uintptr_t>(here.data()), here.size()};
    REQUIRE(gather(fragments, host) == 10000);
    CHECK(is_pattern(here, 0));
    error_code code;
    CHECK(gather_crc32c(fragments, destination.span(), source.span().first(4), stream.ref(), code) == 0);
    CHECK(code == detail::cuda::error_of(CUDA_ERROR_NO_BINARY_FOR_GPU));
}

TEST_CASE("a driver that refuses the kernels is asked once, and says why each time")
{
    clean_driver const clean;
    auto& on = gpu_or_skip(fresh_gpu());
    std::string const refused = GENERATE("cuLibraryLoadData", "cuLibraryGetKernel", "");
    if (refused.empty())
        fake_cuda::set_driver_version(12000);  // it takes the image, and none of the kernels in it
    else
        fake_cuda::fail(refused, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 0, 1000);
    gpu_bytes source{on, 100};
    gpu_bytes destination{on, 100};
    gpu_test_stream stream{on};
    source.write(pattern(0, 100));
    auto const loaded = fake_cuda::live().libraries;
    std::array const fragments{fragment{source.address(), 100, memory_kind::device}};
    for (int i = 0; i < 3; ++i)
        REQUIRE(gather(fragments, destination.span(), stream.ref()) == 100);
    error_code code;
    for (int i = 0; i < 2; ++i) {
        CHECK(gather_crc32c(fragments, destination.span(), source.span().first(4), stream.ref(), code) == 0);
        CHECK(code == detail::cuda::error_of(CUDA_ERROR_UNSUPPORTED_PTX_VERSION));
    }
    stream.finish();
    CHECK(is_pattern(destination.read(), 0));
    CHECK(fake_cuda::calls("cuLibraryLoadData") == 1);
    CHECK(fake_cuda::calls("cuLaunchKernel") == 0);
    CHECK(fake_cuda::live().libraries == loaded);
}

TEST_CASE("kernels for which there was no memory are loaded when there is")
{
    clean_driver const clean;
    auto& on = gpu_or_skip(fresh_gpu());
    fake_cuda::fail("cuLibraryLoadData", CUDA_ERROR_OUT_OF_MEMORY);
    gpu_bytes source{on, 100};
    gpu_bytes destination{on, 100};
    gpu_test_stream stream{on};
    std::array const fragments{fragment{source.address(), 100, memory_kind::device}};
    REQUIRE(gather(fragments, destination.span(), stream.ref()) == 100);
    CHECK(fake_cuda::calls("cuLaunchKernel") == 0);
    REQUIRE(gather(fragments, destination.span(), stream.ref()) == 100);
    CHECK(fake_cuda::calls("cuLaunchKernel") >= 1);
    stream.finish();
}

TEST_CASE("what the driver reports about a gather is the read's error, and the bytes stay in the stream")
{
    devmem_on_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    gpu_bytes tensor{on, 5000};
    to.send(5000);
    fake_cuda::fail("cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    auto const got = read(in, rx, tensor.span(), stream.ref());
    CHECK(got->code == detail::cuda::error_of(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
    CHECK(got->bytes == 0);
    CHECK_FALSE(read(in, rx, tensor.span(), stream.ref())->code);
    stream.finish();
    CHECK(is_pattern(tensor.read(), 0));
}

TEST_CASE("a stream of a context of the program's own is served in it")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    CUcontext own = nullptr;
    REQUIRE(GPURX_DRIVER(cuCtxCreate)(&own, nullptr, 0, on.device()) == CUDA_SUCCESS);
    {
        CUstream stream = nullptr;
        REQUIRE(on.calls().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        CUcontext popped = nullptr;
        REQUIRE(on.calls().cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
        devmem_on_gpu in;
        sender to{in.wires};
        auto rx = in.flow(to);
        gpu_bytes tensor{on, 5000};
        to.send(9000);
        CHECK_FALSE(read(in, rx, tensor.span(), stream)->code);
        auto loan = std::move(receive(in, rx)->loan);
        loan.acquire(stream);
        loan.release_after(stream);
        CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
        CHECK(is_pattern(tensor.read(), 0));
        REQUIRE(on.calls().cuCtxPushCurrent(own) == CUDA_SUCCESS);
        REQUIRE(GPURX_DRIVER(cuStreamDestroy)(stream) == CUDA_SUCCESS);
        REQUIRE(on.calls().cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
    }
}

namespace {

error_code waited_for(cuda_stream_ref stream)
{
    asio::io_context io{1};
    error_code result = asio::error::timed_out;
    async_wait(io.get_executor(), stream, [&](error_code code) { result = code; });
    io.run_for(60s);
    return result;
}

}  // namespace

TEST_CASE("streams of one's own and waits leave nothing behind")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    auto const known = fake_cuda::streams().size();
    CHECK_FALSE(waited_for(cuda_stream::on(0)));
    {
        auto const first = cuda_stream::on(0);
        auto const second = cuda_stream::on(0);
        fake_cuda::hold(second.get());
        order_after(first, second);
        order_after({}, first);
        CHECK(soon([&] { return fake_cuda::streams().size() == known + 2; }));
        fake_cuda::let_go(second.get());
        CHECK_FALSE(waited_for(first));
    }
    CHECK(soon([&] { return fake_cuda::streams().size() == known; }));
    detail::cuda::context_scope const scope{on};
    CHECK(GPURX_DRIVER(cuCtxSynchronize)() == CUDA_SUCCESS);
}

TEST_CASE("a stream that is dropped keeps its handle until it has passed")
{
    clean_driver const clean;
    static_cast<void>(gpu_or_skip());
    auto const known = fake_cuda::streams().size();
    auto stream = cuda_stream::on(0);
    auto* const handle = stream.get();
    fake_cuda::hold(handle);
    auto const later = cuda_stream::on(0);
    order_after(later, stream);
    stream = {};
    look_at_all_streams();
    CHECK(fake_cuda::streams().size() == known + 2);
    fake_cuda::let_go(handle);
    CHECK(soon([&] { return fake_cuda::streams().size() == known + 1; }));
}

TEST_CASE("a stream that cannot be had says why")
{
    clean_driver const clean;
    fake_cuda::fail("cuStreamCreate", CUDA_ERROR_OUT_OF_MEMORY);
    error_code code;
    diagnostics why;
    CHECK_FALSE(cuda_stream::on(0, code, why));
    CHECK_THAT(describe(code, why),
               ContainsSubstring("create a stream of GPU 0") && ContainsSubstring("out of memory"));
}

TEST_CASE("an order that the driver refuses is an error, and leaves nothing behind")
{
    clean_driver const clean;
    auto const first = cuda_stream::on(0);
    auto const second = cuda_stream::on(0);
    order_after(second, first);
    auto const before = fake_cuda::live();
    auto const* const function =
        GENERATE("cuStreamWaitEvent", "cuEventRecord", "cuStreamGetCtx", "cuStreamIsCapturing", "cuCtxPushCurrent");
    fake_cuda::fail(function, CUDA_ERROR_UNKNOWN);
    error_code code;
    order_after(second, first, code);
    CHECK(code == detail::cuda::error_of(CUDA_ERROR_UNKNOWN));
    CHECK(fake_cuda::live().events <= before.events);
    CHECK_NOTHROW(order_after(second, first));
}

TEST_CASE("an order without an event for it is an error")
{
    clean_driver const clean;
    auto const stream = cuda_stream::on(1);  // of whose context no event is in store
    fake_cuda::fail("cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_THROWS_AS(order_after({}, stream), system_error);
}

TEST_CASE("a stream that is being captured, or another in each thread, is neither ordered nor waited for")
{
    clean_driver const clean;
    auto const captured = cuda_stream::on(0);
    auto const other = cuda_stream::on(0);
    fake_cuda::set_captured(captured.get(), true);
    error_code code;
    order_after(captured, other, code);
    CHECK(code == errc::unusable_stream);
    order_after(other, captured, code);
    CHECK(code == errc::unusable_stream);
    CHECK(waited_for(captured) == errc::unusable_stream);
    CHECK(waited_for(CU_STREAM_PER_THREAD) == errc::unusable_stream);
    fake_cuda::set_captured(captured.get(), false);
}

TEST_CASE("a wait ends with the GPU's error")
{
    clean_driver const clean;
    auto const stream = cuda_stream::on(0);
    fake_cuda::hold(stream.get());
    auto const broken_before = GENERATE(true, false);
    if (broken_before)
        fake_cuda::break_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    {
        auto const before = fake_cuda::calls("cuEventQuery");
        std::jthread const breaker{[&] {
            // Once somebody has asked for the stream, and so waits.
            if (!broken_before && soon([&] { return fake_cuda::calls("cuEventQuery") > before; }))
                fake_cuda::break_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
        }};
        CHECK(waited_for(stream) == detail::cuda::error_of(CUDA_ERROR_ILLEGAL_ADDRESS));
    }
    fake_cuda::let_go(stream.get());
    CHECK(soon([&] { return fake_cuda::queued(stream.get()) == 0; }));
    fake_cuda::break_context(0, CUDA_SUCCESS);
}

TEST_CASE("streams of two GPUs are ordered")
{
    clean_driver const clean;
    auto const here = cuda_stream::on(0);
    auto const there = cuda_stream::on(1);
    fake_cuda::hold(there.get());
    order_after(here, there);
    CHECK(fake_cuda::queued(here.get()) > 0);
    fake_cuda::let_go(there.get());
    CHECK(soon([&] { return fake_cuda::queued(here.get()) == 0; }));
}

TEST_CASE("an old driver is named by what it lacks, and one that does not start by its error")
{
    CHECK_THAT(detail::cuda::error_of(CUDA_ERROR_NO_DEVICE).message(), ContainsSubstring("CUDA_ERROR_NO_DEVICE"));
    CHECK_THAT(cuda_category().message(123456), ContainsSubstring("CUDA error 123456"));
    CHECK(std::string{cuda_category().name()} == "cuda");
}

}  // namespace gpurx::test
