// SPDX-License-Identifier: Apache-2.0
//
// What gpurx asks of the CUDA driver for a batch of an async_read into a GPU's memory, transport devmem, on the thread
// that receives. With the fake driver and the fake kernel, whose own work is left out.
//
// Usage: gpu_batch_bench READS. Prints `reads N`, `batches N`, `fragments N`, `allocations N` and for each function of
// the driver `call NAME N`.
#include <array>
#include <boost/asio/post.hpp>
#include <catch2/catch_session.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "../../asio/allocation_counter.hpp"
#include "../../unit/cuda/fake_world.hpp"

namespace gpurx::test {

namespace {

constexpr std::size_t read_size = 1 << 20;
constexpr int warm_up = 40;

int reads = 20;
int reads_done = 0;
std::size_t allocated = 0;
std::map<std::string, std::size_t> calls;

// What the fakes allocate in other threads is nothing that allocations() would have counted.
std::size_t allocations_of_reader()
{
    static auto const reader = std::this_thread::get_id();
    return std::this_thread::get_id() == reader ? allocations() : 0;
}

struct bench : nic_into_gpu {
    sender to{wires};
    receiver rx{flow(to)};
    gpu_test_stream stream{gpu_or_skip()};
    gpu_bytes tensor{gpu_or_skip(), read_size};

    bench() : nic_into_gpu{transport::devmem}
    {
        static_cast<void>(allocations_of_reader());
        kernel.set_allocation_counter(allocations_of_reader);
        fake_cuda::set_allocation_counter(allocations_of_reader);
    }

    [[nodiscard]] std::size_t library_allocations() const
    {
        return allocations() - kernel.allocations() - fake_cuda::allocations();
    }
    // Reads one after the other, and counts all but the first. In one run of the context: Asio keeps memory that long.
    void run()
    {
        std::map<std::string, std::size_t> calls_before;
        std::size_t allocated_before = 0;
        int done = 0;
        std::thread feeder{[&] {
            for (int i = 0; i < warm_up + reads; ++i)
                to.send(read_size);
        }};
        std::function<void()> next = [&] {
            if (done == warm_up) {
                calls_before = fake_cuda::calls_of_this_thread();
                allocated_before = library_allocations();
            }
            if (done++ < warm_up + reads)
                async_read(rx, tensor.span(), stream.ref(), [&](error_code code, std::size_t /*bytes*/) {
                    REQUIRE_FALSE(code);
                    next();
                });
        };
        asio::post(*io, next);
        io->run();
        reads_done += reads;
        allocated += library_allocations() - allocated_before;
        for (auto const& [name, count] : fake_cuda::calls_of_this_thread())
            calls[name] += count - (calls_before.contains(name) ? calls_before.at(name) : 0);
        feeder.join();
        stream.finish();
    }
};

}  // namespace

TEST_CASE("reads into a GPU")
{
    bench in;
    in.run();
}

}  // namespace gpurx::test

int main(int argc, char** argv)
{
    using namespace gpurx::test;
    if (argc > 1)
        reads = std::atoi(argv[1]);
    std::array<char const*, 3> const quiet{argv[0], "--out", "%stderr"};
    if (auto const failed = Catch::Session{}.run(static_cast<int>(quiet.size()), quiet.data()); failed != 0)
        return failed;
    auto const fragments = static_cast<std::size_t>(reads_done) * read_size / fake_kernel::page_size;
    std::printf("reads %d\nbatches %zu\nfragments %zu\nallocations %zu\n", reads_done, calls["cuLaunchKernel"],
                fragments, allocated);
    for (auto const& [name, count] : calls)
        if (count > 0)
            std::printf("call %s %zu\n", name.c_str(), count);
    return 0;
}
