// SPDX-License-Identifier: Apache-2.0
//
// That the fake CUDA driver keeps CUDA's rules for kernels, and runs the library's.
#include <array>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <thread>

#include "cuda/gather_plan.hpp"
#include "fake_cuda_bed.hpp"
#include "gather_on_cpu.hpp"

extern "C" unsigned char const gpurx_gather_kernels[];

namespace gpurx::detail {

namespace {

struct loaded_kernels {
    CUlibrary library = nullptr;
    CUfunction plain = nullptr;
    CUfunction with_crc = nullptr;

    loaded_kernels()
    {
        auto const load = [&](void const* image) {
            return cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
        };
        CHECK(load("no image of kernels") == CUDA_ERROR_INVALID_IMAGE);
        REQUIRE(load(gpurx_gather_kernels) == CUDA_SUCCESS);
        CUkernel kernel = nullptr;
        REQUIRE(cuLibraryGetKernel(&kernel, library, "gpurx_gather") == CUDA_SUCCESS);
        plain = reinterpret_cast<CUfunction>(kernel);
        REQUIRE(cuLibraryGetKernel(&kernel, library, "gpurx_gather_crc") == CUDA_SUCCESS);
        with_crc = reinterpret_cast<CUfunction>(kernel);
        CHECK(cuLibraryGetKernel(&kernel, library, "gather") == CUDA_ERROR_NOT_FOUND);
    }
};

CUresult launch(CUfunction kernel, CUstream stream, void** parameters, void** extra = nullptr, unsigned block = 256)
{
    return cuLaunchKernel(kernel, 1, 1, 1, block, 1, 1, 0, stream, parameters, extra);
}

std::vector<std::uint8_t> bytes_of(CUdeviceptr address, std::size_t size)
{
    std::vector<std::uint8_t> bytes(size);
    std::memcpy(bytes.data(), fake_cuda::bytes_at(address, size), size);
    return bytes;
}

}  // namespace

TEST_CASE("fake CUDA: the kernels gather, with and without a CRC")
{
    in_context const context;
    loaded_kernels const kernels;
    auto const stream = make_stream();
    auto const sent = pattern(9000);
    auto const source = allocate(sent.size());
    auto const target = allocate(sent.size() + 3);
    auto const tables = allocate(sizeof(crc_tables));
    auto const crc_state = allocate(sizeof(gather_crc_state));
    auto* const result = static_cast<std::uint32_t*>(allocate_host(sizeof(std::uint32_t)));
    auto* const pieces = static_cast<gather_piece*>(allocate_host(3 * sizeof(gather_piece)));
    REQUIRE(cuMemcpyHtoD(source, sent.data(), sent.size()) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoD(tables, &crc_tables_of_gather(), sizeof(crc_tables)) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);  // the stream does not wait for the default one
    pieces[0] = {source + 4001, 4999, 4001};
    pieces[1] = {source, 1000, 0};
    pieces[2] = {source + 1000, 3001, 1000};

    gather_arguments all{pieces, 3, target + 3};
    std::size_t size = sizeof all;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &all, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    CHECK(launch(kernels.plain, stream, nullptr, extra, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(launch(kernels.plain, stream, nullptr, extra, 512) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(launch(kernels.plain, stream, nullptr, extra) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(bytes_of(target + 3, sent.size()) == sent);

    REQUIRE(cuMemsetD8(target, 0, sent.size()) == CUDA_SUCCESS);
    gather_crc_arguments crc{.tables = reinterpret_cast<crc_tables const*>(tables),
                             .state = reinterpret_cast<gather_crc_state*>(crc_state),
                             .result = result,
                             .frame = crc_frame_for(target + 3, sent.size())};
    void* parameters[] = {&all, &crc};
    REQUIRE(launch(kernels.with_crc, stream, parameters) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(bytes_of(target + 3, sent.size()) == sent);
    CHECK(*result == gpurx::test::reference_crc32c(sent));

    fake_cuda::hold(stream);
    REQUIRE(launch(kernels.plain, stream, parameters) == CUDA_SUCCESS);
    REQUIRE(cuMemFree(source) == CUDA_SUCCESS);
    CHECK(fake_cuda::violations() == std::vector<std::string>{"cuMemFree of memory that queued work uses"});
    fake_cuda::clear_violations();
    fake_cuda::let_go(stream);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuLibraryUnload(kernels.library) == CUDA_SUCCESS);
    for (auto const address : {target, tables, crc_state})
        CHECK(cuMemFree(address) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemFreeHost(pieces) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemFreeHost(result) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuStreamDestroy(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("fake CUDA: the first launch of a kernel waits for all work of its context, the next one does not")
{
    in_context const context;
    loaded_kernels const kernels;
    auto const busy = make_stream();
    auto const stream = make_stream();
    auto const address = allocate(1);
    gather_arguments all{};
    void* parameters[] = {&all};
    auto const hold = [&] {
        fake_cuda::hold(busy);
        REQUIRE(cuMemsetD8Async(address, 1, 1, busy) == CUDA_SUCCESS);
    };
    hold();
    std::atomic<bool> launched{false};
    std::jthread first{[&] {
        cuCtxPushCurrent(context.handle());
        launch(kernels.plain, stream, parameters);
        launched = true;
        cuCtxPopCurrent(nullptr);
    }};
    while (fake_cuda::calls("cuLaunchKernel") == 0)
        std::this_thread::yield();
    REQUIRE(all_others_wait());
    CHECK_FALSE(launched);
    fake_cuda::let_go(busy);
    first.join();
    hold();
    CHECK(launch(kernels.plain, stream, parameters) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(busy) == CUDA_ERROR_NOT_READY);
    fake_cuda::let_go(busy);
    for (auto const each : {busy, stream}) {
        REQUIRE(cuStreamSynchronize(each) == CUDA_SUCCESS);
        REQUIRE(cuStreamDestroy(each) == CUDA_SUCCESS);
    }
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    REQUIRE(cuLibraryUnload(kernels.library) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: as many blocks run on a processor as the kernels' registers leave room for")
{
    in_context const context;
    loaded_kernels const kernels;
    for (auto* const kernel : {kernels.plain, kernels.with_crc}) {
        int blocks = 0;
        REQUIRE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 0) == CUDA_SUCCESS);
        CHECK(blocks == 4);
        REQUIRE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 32, 0) == CUDA_SUCCESS);
        CHECK(blocks == (kernel == kernels.plain ? 32 : 11));
    }
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, kernels.plain, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuLibraryUnload(kernels.library) == CUDA_SUCCESS);
}

TEST_CASE(
    "fake CUDA: a driver that is too old for the kernels takes their image, and refuses them when they are needed")
{
    in_context const context;
    fake_cuda::set_driver_version(12080);
    loaded_kernels const kernels;
    int blocks = 0;
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernels.plain, 256, 0) ==
          CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    CUfunction function = nullptr;
    CHECK(cuKernelGetFunction(&function, reinterpret_cast<CUkernel>(kernels.plain)) ==
          CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    gather_arguments all{};
    void* parameters[] = {&all};
    CHECK(launch(kernels.plain, nullptr, parameters) == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    fake_cuda::set_driver_version(13000);
    CHECK(cuKernelGetFunction(&function, reinterpret_cast<CUkernel>(kernels.plain)) == CUDA_SUCCESS);
    REQUIRE(cuLibraryUnload(kernels.library) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: an invalid kernel or library ends the program, with the reason")
{
    in_context const context;
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    REQUIRE(cuLibraryLoadData(&library, gpurx_gather_kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) ==
            CUDA_SUCCESS);
    REQUIRE(cuLibraryGetKernel(&kernel, library, "gpurx_gather") == CUDA_SUCCESS);
    REQUIRE(cuLibraryUnload(library) == CUDA_SUCCESS);
    auto* const function = reinterpret_cast<CUfunction>(kernel);
    int blocks = 0;
    CHECK(last_words([&] {
              cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
          }).starts_with("fake CUDA: cuLaunchKernel with a handle that was given up"));
    CHECK(last_words([&] {
              cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 32, 0);
          }).starts_with("fake CUDA: cuOccupancyMaxActiveBlocksPerMultiprocessor with a handle"));
    CHECK(last_words([&] {
              cuLibraryGetKernel(&kernel, library, "gpurx_gather");
          }).starts_with("fake CUDA: cuLibraryGetKernel with a handle that was given up"));
    CHECK(last_words([&] { cuLibraryUnload(library); }).starts_with("fake CUDA: cuLibraryUnload with a handle"));
}

}  // namespace gpurx::detail
