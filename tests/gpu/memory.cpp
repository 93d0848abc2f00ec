// SPDX-License-Identifier: Apache-2.0
//
// Memory of a GPU, pinned memory and adopted memory: allocated, exported, freed in every order.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <optional>

#include "base/syscalls.hpp"
#include "bed.hpp"

namespace gpurx::test {

namespace {

using Catch::Matchers::ContainsSubstring;
using detail::cuda::context_scope;

constexpr std::size_t mebibyte = 1 << 20;

off_t size_of(int fd)
{
    return ::lseek(fd, 0, SEEK_END);
}

device_memory adopt_or_why(std::uintptr_t address, std::size_t bytes, error_code& code, diagnostics& why,
                           std::shared_ptr<void const> owner = {})
{
    return device_memory::adopt(address, bytes, std::move(owner), code, why);
}

// Page-aligned memory of the program's own.
struct tensor {
    explicit tensor(detail::cuda::gpu& on) : bytes{on, 4 * mebibyte} {}
    gpu_bytes bytes;
};

}  // namespace

TEST_CASE("memory of a GPU is rounded up, exported, and the caller's context stays what it was")
{
    auto& on = gpu_or_skip();
    CUcontext before = nullptr;
    REQUIRE(on.calls().cuCtxGetCurrent(&before) == CUDA_SUCCESS);
    auto const memory = device_memory::on_gpu(0, 3 * mebibyte);
    CHECK(memory.kind() == memory_kind::device);
    CHECK(memory.size() == 4 * mebibyte);
    CHECK(memory.span().address() % (2 * mebibyte) == 0);
    CHECK_THAT(memory.explain(), ContainsSubstring("memory of GPU 0 (" + on.name() + "), 4 MiB"));
    CUcontext after = nullptr;
    REQUIRE(on.calls().cuCtxGetCurrent(&after) == CUDA_SUCCESS);
    CHECK(after == before);
    if (!on.facts().dmabuf) {
        CHECK(memory.dmabuf_fd() == -1);
        CHECK_THAT(memory.explain(), ContainsSubstring("for transport copy only"));
        SKIP("this GPU exports no memory: " << memory.explain());
    }
    REQUIRE(memory.dmabuf_fd() >= 0);
    CHECK(size_of(memory.dmabuf_fd()) == static_cast<off_t>(memory.size()));
    error_code code;
    diagnostics why;
    auto const state = detail::make_gpu_memory(0, 8 * mebibyte);
    auto const part = state->export_part(state->dmabuf_fd(), 4 * mebibyte, 2 * mebibyte, code, why);
    INFO(describe(code, why));
    REQUIRE(part);
    CHECK((::fcntl(memory.dmabuf_fd(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK_THAT(memory.explain(), ContainsSubstring("exported by"));
    WARN(memory.explain());
}

TEST_CASE("an error of GPU memory has the object and the reason")
{
    auto& on = gpu_or_skip();
    error_code code;
    diagnostics why;
    CHECK_FALSE(device_memory::on_gpu(0, 0, code, why).valid());
    CHECK(code == error_code{EINVAL, boost::system::system_category()});
    CHECK_FALSE(device_memory::on_gpu(1000, mebibyte, code, why).valid());
    CHECK(code.category() == cuda_category());
    CHECK_THAT(describe(code, why), ContainsSubstring("open GPU 1000") && ContainsSubstring("numbered from 0"));
    CHECK_FALSE(device_memory::on_gpu(-1, mebibyte, code, why).valid());
    CHECK_FALSE(device_memory::on_gpu(0, std::size_t{1} << 50, code, why).valid());
    CHECK(code == detail::cuda::error_of(CUDA_ERROR_OUT_OF_MEMORY));
    CHECK_THAT(describe(code, why), ContainsSubstring("1048576 GiB of GPU 0") || ContainsSubstring("of GPU 0"));
    CHECK_FALSE(device_memory::on_gpu(0, SIZE_MAX, code, why).valid());
    CHECK(on.facts().processors > 0);
}

TEST_CASE("memory and copies of its dmabuf are freed in every order")
{
    auto& on = gpu_or_skip();
    auto const order = GENERATE(0, 1);
    std::optional memory{device_memory::on_gpu(0, 2 * mebibyte)};
    std::optional same{*memory};
    if (memory->dmabuf_fd() < 0)
        SKIP("this GPU exports no memory: " << memory->explain());
    detail::unique_fd copy{::fcntl(memory->dmabuf_fd(), F_DUPFD_CLOEXEC, 0)};
    REQUIRE(copy);
    memory.reset();
    CHECK(size_of(same->dmabuf_fd()) == static_cast<off_t>(same->size()));
    if (order == 0) {
        copy.reset();
        same.reset();
    } else {
        same.reset();
        CHECK(size_of(copy.get()) == 2 * mebibyte);
    }
    CHECK(device_memory::on_gpu(0, 2 * mebibyte).valid());
    CHECK(on.ordinal() == 0);
}

TEST_CASE("pinned host memory is for the CPU and for kernels")
{
    auto& on = gpu_or_skip();
    auto const memory = device_memory::on_pinned_host(5000);
    CHECK(memory.kind() == memory_kind::host);
    CHECK(memory.size() >= 8192);
    auto* const bytes = reinterpret_cast<std::byte*>(memory.span().address());
    bytes[0] = bytes[8191] = std::byte{7};
    CHECK_THAT(memory.explain(), ContainsSubstring("host memory pinned for GPU 0"));
    if (on.facts().host_dmabuf) {
        CHECK(memory.dmabuf_fd() >= 0);
    } else {
        CHECK((memory.dmabuf_fd() >= 0) == (device_memory::on_host(5000).dmabuf_fd() >= 0));
        CHECK_THAT(memory.explain(), ContainsSubstring("udmabuf"));
    }
}

TEST_CASE("adopt() uses the whole pages of a range, and nothing beside it")
{
    auto& on = gpu_or_skip();
    if (!on.facts().dmabuf)
        SKIP("this GPU exports no memory");
    tensor const owned{on};
    auto const base = owned.bytes.address();
    auto owner = std::make_shared<int>(1);
    error_code code;
    diagnostics why;
    auto memory = adopt_or_why(base + 100, mebibyte, code, why, owner);
    INFO(describe(code, why));
    REQUIRE(memory.valid());
    CHECK(memory.span().address() == base + 4096);
    CHECK(memory.size() == mebibyte - 4096);
    CHECK_THAT(memory.explain(),
               ContainsSubstring("adopted memory") && ContainsSubstring("no whole pages: 3.9 KiB before"));
    CHECK(size_of(memory.dmabuf_fd()) >= static_cast<off_t>(memory.size()));
    auto const again = adopt_or_why(base, 4 * mebibyte, code, why);
    CHECK(again.valid());
    CHECK(again.span() == owned.bytes.span());
    CHECK(owner.use_count() == 2);
    memory = {};
    CHECK(owner.use_count() == 1);
}

TEST_CASE("memory that cannot be adopted is refused with the reason")
{
    auto& on = gpu_or_skip();
    error_code code;
    diagnostics why;
    auto const refused = [&](std::uintptr_t address, std::size_t bytes) {
        auto const memory = adopt_or_why(address, bytes, code, why);
        CHECK_FALSE(memory.valid());
        CHECK(code == error_code{EINVAL, boost::system::system_category()});
        return describe(code, why);
    };
    tensor const owned{on};
    auto const base = owned.bytes.address();
    CHECK_THAT(refused(base, 0), ContainsSubstring("at least one page"));
    CHECK_THAT(refused(base + 1, 4096), ContainsSubstring("whole page"));
    // What lies behind it, if anything, is somebody else's.
    CHECK_THAT(refused(base + 4096, 4 * mebibyte), ContainsSubstring("3.9 MiB after the address"));
    CHECK_THAT(refused(0x1000, 4096), ContainsSubstring("not in GPU memory"));
    auto const pinned = device_memory::on_pinned_host(8192);
    CHECK_THAT(refused(pinned.span().address(), 8192), ContainsSubstring("on_pinned_host"));
    context_scope const scope{on};
    CUdeviceptr managed = 0;
    auto* const allocate_managed = GPURX_DRIVER(cuMemAllocManaged);
    if (allocate_managed != nullptr && allocate_managed(&managed, mebibyte, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS) {
        CHECK_THAT(refused(managed, mebibyte), ContainsSubstring("managed memory"));
        CHECK(on.calls().cuMemFree(managed) == CUDA_SUCCESS);
    }
    CUdeviceptr pooled = 0;
    auto* const allocate_pooled = GPURX_DRIVER(cuMemAllocAsync);
    if (allocate_pooled != nullptr && allocate_pooled(&pooled, 4 * mebibyte, nullptr) == CUDA_SUCCESS) {
        CHECK_THAT(refused(pooled, 4 * mebibyte), ContainsSubstring("stream-ordered pool"));
        CHECK(on.calls().cuMemFree(pooled) == CUDA_SUCCESS);
    }
}

}  // namespace gpurx::test
