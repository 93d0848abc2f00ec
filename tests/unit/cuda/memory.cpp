// SPDX-License-Identifier: Apache-2.0
//
// Memory of GPUs that lack something, and of drivers that fail.
#include <fmt/format.h>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/gather.hpp>
#include <gpurx/local_gpu.hpp>
#include <string>

#include "fake_world.hpp"

namespace gpurx::test {

using Catch::Matchers::ContainsSubstring;

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

TEST_CASE("memory that is not exported is for transport copy, and explain() has the reason")
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

TEST_CASE("adopt() refuses memory that is managed, of a pool, or not for RDMA")
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

TEST_CASE("memory is not adopted of which the driver does not report its end")
{
    clean_driver const clean;
    gpu_bytes const owned{gpu_or_skip(), 2 << 20};
    static_cast<void>(gpu_or_skip().gather_if_any());
    fake_cuda::fail("cuMemGetAddressRange", CUDA_ERROR_NOT_SUPPORTED);
    error_code code;
    diagnostics why;
    CHECK_FALSE(device_memory::adopt(owned.address(), 2 << 20, {}, code, why).valid());
    CHECK_THAT(describe(code, why), ContainsSubstring("does not report its end"));
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

TEST_CASE("memory of several mappings is refused for one of them, or a gap, with its place")
{
    clean_driver const clean;
    constexpr auto size = mapped_pieces::count * mapped_pieces::piece;
    error_code code;
    diagnostics why;
    mapped_pieces const plain{gpu_or_skip(), 2};
    CHECK_FALSE(device_memory::adopt(plain.address(), size, {}, code, why).valid());
    CHECK_THAT(describe(code, why),
               ContainsSubstring(
                   "4 MiB after the address another allocation begins: it was allocated without GPUDirect RDMA"));
    CHECK(device_memory::adopt(plain.address(), size - mapped_pieces::piece, {}, code, why).valid());
    mapped_pieces gap{gpu_or_skip()};
    gap.unmap(1);
    CHECK_FALSE(device_memory::adopt(gap.address(), size, {}, code, why).valid());
    CHECK_THAT(describe(code, why), ContainsSubstring("ends 2 MiB after the address"));
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

TEST_CASE("a part of a GPU's memory is exported as all of it is")
{
    clean_driver const clean;
    fake_cuda::set_pcie_mapping(0, true);
    auto const memory = detail::make_gpu_memory(0, 4 << 20);
    error_code code;
    diagnostics why;
    for (auto const like : {memory->dmabuf_fd(), memory->other_dmabuf_fd()}) {
        auto const part = memory->export_part(like, 2 << 20, 1 << 20, code, why);
        REQUIRE(part);
        CHECK(fake_cuda::find_export(part.get())->flags == fake_cuda::find_export(like)->flags);
        CHECK(fake_cuda::find_export(part.get())->address == memory->span().address() + (2 << 20));
        CHECK(fake_cuda::find_export(part.get())->size == 1 << 20);
    }
    fake_cuda::fail("cuMemGetHandleForAddressRange", CUDA_ERROR_NOT_SUPPORTED, 0, 1);
    CHECK_FALSE(memory->export_part(memory->dmabuf_fd(), 0, 1 << 20, code, why));
    CHECK(code == detail::cuda::error_of(CUDA_ERROR_NOT_SUPPORTED));
    CHECK_THAT(describe(code, why), ContainsSubstring("1 MiB of GPU 0"));
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
        CHECK_THAT(memory->explain(), ContainsSubstring("no means to make a NIC's writes visible"));
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

}  // namespace gpurx::test
