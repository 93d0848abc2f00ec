// SPDX-License-Identifier: Apache-2.0
#include "loops.hpp"

#include <x86intrin.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace bench {
namespace {

void check(int result, char const* what)
{
    if (result != 0)
        throw std::system_error{errno, std::system_category(), what};
}

}  // namespace

devmem_c_loop::devmem_c_loop(int socket)
{
    check(baseline_open(&loop_, socket), "baseline_open");
}

devmem_c_loop::~devmem_c_loop()
{
    baseline_close(&loop_);
}

void devmem_c_loop::run(std::uint64_t bytes)
{
    check(baseline_run(&loop_, bytes), "baseline_run");
    if (loop_.host_bytes != 0)
        throw std::runtime_error{"the C loop received bytes in host memory"};
}

loop_counts devmem_c_loop::counts() const
{
    return {.fragments = loop_.fragments, .receive_calls = loop_.receive_calls, .release_calls = loop_.release_calls};
}

void zcrx_c_loop::run(std::uint64_t bytes)
{
    check(zcrx_run(&ring_, &socket_, 1, bytes), "zcrx_run");
    if (ring_.rearmed != 0)
        throw std::runtime_error{"the completion ring was too small"};
}

loop_counts zcrx_c_loop::counts() const
{
    return {.fragments = ring_.counts.fragments, .receive_calls = ring_.counts.system_calls};
}

void gpurx_loop::run(std::uint64_t bytes)
{
    remaining_ = bytes;
    receive();
    io_.restart();
    io_.run();
}

std::uint64_t gpurx_loop::run_and_clock_releases(std::uint64_t bytes)
{
    clocks_releases_ = true;
    release_instructions_ = 0;
    run(bytes);
    clocks_releases_ = false;
    return release_instructions_;
}

void gpurx_loop::release(gpurx::rx_buffer loan)
{
    std::uint64_t const start = __rdtsc();
    loan.release();
    release_instructions_ += __rdtsc() - start;
}

void gpurx_loop::receive()
{
    receiver_.async_receive([this](gpurx::error_code code, gpurx::rx_buffer loan) {
        if (code)
            throw boost::system::system_error{code, "async_receive"};
        remaining_ -= loan.size();
        if (clocks_releases_)
            release(std::move(loan));
        else
            loan.release();
        if (remaining_ > 0)
            receive();
    });
}

loop_counts gpurx_loop::counts() const
{
    gpurx::stats const all = receiver_.stats();
    if (all.device_bytes != all.bytes())
        throw std::runtime_error{"gpurx received bytes in host memory"};
    return {.fragments = all.fragments, .receive_calls = all.receive_calls, .release_calls = all.release_calls};
}

}  // namespace bench
