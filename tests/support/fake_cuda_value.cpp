// SPDX-License-Identifier: Apache-2.0
//
// The fake CUDA driver: streams that wait for a word in memory.
#include <atomic>
#include <cstdint>

#include "fake_cuda_state.hpp"

namespace fake_cuda::inside {

namespace {

// The CPU writes it while the stream looks; null if it is not there any more.
std::uint32_t* word_at(state& s, CUdeviceptr address)
{
    return reinterpret_cast<std::uint32_t*>(translate(s, {address, sizeof(std::uint32_t)}, {reader::kind::test}));
}

bool satisfies(std::uint32_t is, std::uint32_t wanted, unsigned flags)
{
    switch (flags) {
        case CU_STREAM_WAIT_VALUE_GEQ:
            return static_cast<std::int32_t>(is - wanted) >= 0;
        case CU_STREAM_WAIT_VALUE_EQ:
            return is == wanted;
        case CU_STREAM_WAIT_VALUE_AND:
            return (is & wanted) != 0;
        default:
            return (is | wanted) != ~std::uint32_t{0};
    }
}

}  // namespace

}  // namespace fake_cuda::inside

using namespace fake_cuda::inside;

extern "C" {

CUresult CUDAAPI cuStreamWaitValue32(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    auto const body = [&](state& s, guard& lock, std::string const&, std::shared_ptr<context> const&,
                          std::shared_ptr<stream> const& found) {
        if (address % sizeof value != 0 || flags > CU_STREAM_WAIT_VALUE_NOR || word_at(s, address) == nullptr)
            return CUDA_ERROR_INVALID_VALUE;
        operation op;
        op.uses = [=] { return std::vector<range>{{address, sizeof value}}; };
        op.ready = [=, &s] {
            auto* const word = word_at(s, address);
            return word == nullptr || satisfies(std::atomic_ref{*word}.load(), value, flags);
        };
        op.run = [=, &s](stream&) {
            guard const held{s.mutex};
            return word_at(s, address) == nullptr ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
        };
        enqueue(s, lock, *found, std::move(op));
        return CUDA_SUCCESS;
    };
    return call_on_stream(__func__, handle, body);
}

}  // extern "C"
