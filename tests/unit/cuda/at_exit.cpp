// SPDX-License-Identifier: Apache-2.0
//
// Loans, streams, a session and memory of a GPU that die in static destructors: by then the CUDA driver is undoing
// itself, and must not be called.
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <gpurx/gpurx.hpp>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cuda/gpu.hpp"
#include "cuda/gpu_work.hpp"
#include "fake_cuda.hpp"
#include "memory/memory_state.hpp"

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Made first, so it ends last.
struct verdict {
    verdict() = default;
    verdict(verdict const&) = delete;
    verdict& operator=(verdict const&) = delete;
    ~verdict()
    {
        auto const calls = fake_cuda::calls_when_gone();
        for (auto const& violation : fake_cuda::violations())
            std::printf("violation: %s\n", violation.c_str());
        std::printf("%zu calls of the driver after main\n", calls);
        std::fflush(stdout);
        if (calls != 0 || !fake_cuda::violations().empty())
            ::_exit(1);
    }
} at_the_end;

struct everything {
    asio::io_context io;
    std::optional<gpurx::device_memory> memory;
    std::optional<gpurx::rx_session> session;
    std::optional<gpurx::receiver> rx;
    gpurx::rx_buffer kept;
    gpurx::rx_buffer for_release;
    CUstream stream = nullptr;
    gpurx::cuda_stream own;

    everything() = default;
    everything(everything const&) = delete;
    everything& operator=(everything const&) = delete;
    ~everything()
    {
        for_release.acquire(stream);
        for_release.release_after(stream);
    }
} left;

// The driver undoes itself when main has ended, before what was made ahead of it.
struct end_of_driver {
    end_of_driver() = default;
    end_of_driver(end_of_driver const&) = delete;
    end_of_driver& operator=(end_of_driver const&) = delete;
    ~end_of_driver() { fake_cuda::set_now_gone(); }
} driver;

gpurx::rx_buffer receive(tcp::socket& to)
{
    std::vector<char> const bytes(100000, 'x');
    asio::write(to, asio::buffer(bytes));
    auto got = left.rx->async_receive(asio::use_future);
    left.io.restart();
    left.io.run();
    return got.get();
}

// Memory whose last holder is what waits for a stream: it is being freed when this returns. False: it is not.
bool let_memory_end()
{
    using namespace gpurx::detail;
    auto last = std::make_unique<std::shared_ptr<memory_state>>(make_gpu_memory(0, 2 << 20));
    auto const passes = gpurx::cuda_stream::on(0);
    stream_point* point = nullptr;
    spare_point spare;
    spare.provide();
    mark(point, {.ordinal = 0, .stream = passes}, spare);
    when_passed(
        point, [](void* of, gpurx::error_code) noexcept { delete static_cast<std::shared_ptr<memory_state>*>(of); },
        last.release(), waiting_for::pages);
    for (int i = 0; i < 60'000 && fake_cuda::calls("cuMemUnmap") == 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    return fake_cuda::calls("cuMemUnmap") > 0;
}

}  // namespace

int main()
{
    auto& on = gpurx::detail::cuda::gpu::open(0);
    left.memory = gpurx::device_memory::on_gpu(0, 8 << 20);
    gpurx::rx_session_options options;
    options.transport = gpurx::transport::copy;
    left.session.emplace(options, *left.memory);
    tcp::acceptor acceptor{left.io, {asio::ip::address_v4::loopback(), 0}};
    tcp::socket sender{left.io};
    sender.connect(acceptor.local_endpoint());
    left.rx.emplace(left.io, *left.session, acceptor.accept());
    {
        gpurx::detail::cuda::context_scope const scope{on};
        if (on.calls().cuStreamCreate(&left.stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
            return 2;
    }
    left.kept = receive(sender);
    left.for_release = receive(sender);
    // Parked when main ends: its stream never passes.
    auto parked = receive(sender);
    fake_cuda::hold(left.stream);
    parked.release_after(left.stream);
    // And a wait for a stream of one's own, which goes then.
    left.own = gpurx::cuda_stream::on(0);
    gpurx::order_after(left.own, left.stream);
    gpurx::async_wait(left.io.get_executor(), left.own, [](gpurx::error_code) {});
    if (!let_memory_end())
        return 3;
    // exit() and not return: what main holds is left as it is.
    std::exit(0);
}
