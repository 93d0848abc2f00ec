// SPDX-License-Identifier: Apache-2.0
//
// That the tests of GPU memory (tests/gpu) rely on nothing that a real driver does not promise.
#include <array>
#include <atomic>
#include <gpurx/gather.hpp>
#include <thread>

#include "fake_world.hpp"

namespace gpurx::test {

TEST_CASE("bytes that a test writes to the GPU are there before any stream reads them")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    detail::cuda::context_scope const scope{on};
    gpu_bytes bytes{on, 100};
    fake_cuda::hold_all();
    auto const before = fake_cuda::calls("cuStreamSynchronize");
    std::atomic<bool> waited{false};
    std::jthread const lets_go{[&] {
        waited = soon([&] { return fake_cuda::calls("cuStreamSynchronize") > before; });
        fake_cuda::let_go_all();
    }};
    bytes.write(std::vector<std::byte>(100, std::byte{7}));
    CHECK(waited);
    CHECK(*fake_cuda::bytes_at(bytes.address(), 100) == std::byte{7});
}

TEST_CASE("a test's first gather behind a held stream needs no kernel to be loaded")
{
    clean_driver const clean;
    fake_cuda::set_loading_waits(true);
    auto& on = gpu_or_skip();
    gpu_bytes bytes{on, 64};
    gpu_test_stream stream{on};
    stream.hold();
    std::array const piece{fragment{bytes.address(), 16, memory_kind::device}};
    std::atomic<bool> enqueued{false};
    std::jthread const gathers{[&] {
        error_code code;
        enqueued = gather(piece, bytes.span().subspan(16, 16), stream.ref(), code) == 16;
    }};
    CHECK(soon([&] { return enqueued.load(); }));
    stream.let_go();
}

}  // namespace gpurx::test
