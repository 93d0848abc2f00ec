// SPDX-License-Identifier: Apache-2.0
//
// The library's kernels (framework/src/cuda/gather.cu) for the fake CUDA driver: the same arithmetic, on the CPU, with
// the lanes of a warp one after the other. To be changed with the kernels' parameters.
#include <atomic>
#include <cstddef>
#include <cstring>

#include "cuda/gather_piece.hpp"
#include "fake_cuda_state.hpp"
#include "gather_on_cpu.hpp"

namespace fake_cuda::inside {

namespace {

using namespace gpurx::detail;

// As a structure of the parameters in a row is laid out, so are they.
struct gather_crc_parameters {
    gather_arguments all;
    gather_crc_arguments crc;
};

template <class Parameters>
Parameters read(std::byte const* from)
{
    Parameters parameters;
    std::memcpy(&parameters, from, sizeof parameters);
    return parameters;
}

// The CPU's view of an object that a parameter points to; null if there is none.
template <class T>
T* find(kernel_memory& memory, T* object, bool to_write = false)
{
    return reinterpret_cast<T*>(memory.find(address_of(object), sizeof(T), to_write));
}

// Calls `done(layout, moved)` for each piece, with the addresses of the CPU's view; `moved` is how far those of the
// destination are from the GPU's. False: memory is not there.
template <class Done>
bool for_each_piece(kernel_memory& memory, gather_arguments const& all, Done done)
{
    auto const* const pieces =
        reinterpret_cast<gather_piece const*>(memory.find(address_of(all.pieces), all.count * sizeof(gather_piece)));
    for (std::uint32_t i = 0; pieces != nullptr && i < all.count; ++i) {
        auto const& piece = pieces[i];
        auto const* const source = memory.find(piece.source, piece.size);
        auto const* const target = memory.find(all.destination + piece.offset, piece.size, true);
        if (source == nullptr || target == nullptr)
            return false;
        auto const destination = address_of(target) - piece.offset;
        done(piece_layout{{.source = address_of(source), .size = piece.size, .offset = piece.offset}, destination},
             destination - all.destination);
    }
    return pieces != nullptr;
}

void gather(kernel_memory& memory, std::byte const* block)
{
    for_each_piece(memory, read<gather_arguments>(block), [](piece_layout const& layout, std::uint64_t) {
        for (unsigned lane = 0; lane < warp_lanes; ++lane)
            gather_lane<no_crc>(layout, lane, no_crc{});
    });
}

void gather_crc(kernel_memory& memory, std::byte const* block)
{
    auto const parameters = read<gather_crc_parameters>(block);
    auto const& all = parameters.all;
    auto const& crc = parameters.crc;
    auto const* const tables = find(memory, crc.tables);
    auto* const state = find(memory, crc.state, true);
    auto* const result = find(memory, crc.result, true);
    if (tables == nullptr || state == nullptr || result == nullptr)
        return;
    // A second launch at the same time would find it taken.
    std::atomic_ref<std::uint32_t> const taken{state->blocks};
    if (taken.exchange(1) != 0 || state->sum != 0)
        memory.violate("gpurx_gather_crc with a state that is in use");
    std::uint32_t sum = 0;
    auto const done = for_each_piece(memory, all, [&](piece_layout const& layout, std::uint64_t moved) {
        auto frame = crc.frame;
        frame.end += moved;
        sum ^= gpurx::test::gather_with_crc(layout, frame, *tables);
    });
    if (done)
        *result = crc32c_of(sum, crc.frame);
    taken.store(0);
}

// Pieces in device memory may be written only just before the kernel runs; those in host memory are there already.
std::vector<range> gather_uses(host_bytes const& of_host, std::byte const* block)
{
    auto const all = read<gather_arguments>(block);
    range const list{address_of(all.pieces), all.count * sizeof(gather_piece)};
    std::vector<range> used{list};
    auto const* const pieces = reinterpret_cast<gather_piece const*>(of_host(list));
    for (std::uint32_t i = 0; pieces != nullptr && i < all.count; ++i) {
        used.push_back({pieces[i].source, pieces[i].size});
        used.push_back({all.destination + pieces[i].offset, pieces[i].size});
    }
    return used;
}

std::vector<range> gather_crc_uses(host_bytes const& of_host, std::byte const* block)
{
    auto const crc = read<gather_crc_parameters>(block).crc;
    auto used = gather_uses(of_host, block);
    used.push_back({address_of(crc.tables), sizeof *crc.tables});
    used.push_back({address_of(crc.state), sizeof *crc.state});
    used.push_back({address_of(crc.result), sizeof *crc.result});
    return used;
}

constexpr parameter arguments_at{0, sizeof(gather_arguments)};
constexpr parameter crc_arguments_at{offsetof(gather_crc_parameters, crc), sizeof(gather_crc_arguments)};

}  // namespace

std::vector<kernel_code> const& all_kernels()
{
    static auto const* const kernels = new std::vector<kernel_code>{
        {"gpurx_gather", {arguments_at}, gather_block_threads, gather, gather_uses},
        {"gpurx_gather_crc", {arguments_at, crc_arguments_at}, gather_block_threads, gather_crc, gather_crc_uses},
    };
    return *kernels;
}

}  // namespace fake_cuda::inside
