// SPDX-License-Identifier: Apache-2.0
#include "gather_launch.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cuda/gather_plan.hpp"
#include "ptx_image.hpp"

extern "C" unsigned char const gpurx_gather_kernels[];
extern "C" unsigned char const gpurx_gather_texts[];

namespace ptx::test {

namespace {

using namespace gpurx::detail;

template <class T>
void append(std::vector<std::byte>& parameters, T const& value)
{
    auto const at = parameters.size();
    parameters.resize(at + sizeof value);
    std::memcpy(&parameters[at], &value, sizeof value);
}

constexpr std::uint8_t untouched = 0x55;

std::string_view text_of(unsigned char const* image, unsigned gpu)
{
    return text_in({reinterpret_cast<std::byte const*>(image), size_of_image(image)}, gpu);
}

}  // namespace

kernels const& library_kernels(unsigned gpu)
{
    static std::map<unsigned, kernels> all;
    auto& known = all[gpu];
    if (known.empty())
        known = parse(library_text(gpu));
    return known;
}

std::string_view library_text(unsigned gpu)
{
    return text_of(gpurx_gather_texts, gpu);
}

std::string_view shipped_text(unsigned gpu)
{
    return text_of(gpurx_gather_kernels, gpu);
}

std::vector<std::uint64_t>& executed_by(std::string const& kernel, unsigned gpu)
{
    static std::map<std::pair<std::string, unsigned>, std::vector<std::uint64_t>> all;
    return all[{kernel, gpu}];
}

std::uint64_t gather_launch::address_space::add(std::size_t size)
{
    auto const address = next_;
    blocks_[address].resize((size + vector_bytes - 1) / vector_bytes * vector_bytes);
    next_ += (size / 4096 + 2) * 4096;
    return address;
}

std::optional<view> gather_launch::address_space::look(std::uint64_t address)
{
    auto const next = blocks_.upper_bound(address);
    if (next == blocks_.begin())
        return std::nullopt;
    auto& [begin, bytes] = *std::prev(next);
    return view{begin, bytes.size(), bytes.data()};
}

std::byte* gather_launch::address_space::at(std::uint64_t address)
{
    auto const all = look(address).value();
    return all.bytes + (address - all.begin);
}

template <class T>
std::uint64_t gather_launch::put(std::span<T const> values)
{
    auto const address = space_.add(values.size_bytes());
    if (!values.empty())
        std::memcpy(space_.at(address), values.data(), values.size_bytes());
    return address;
}

gather_launch::gather_launch(std::size_t size, unsigned to, unsigned gpu)
    : gpu_{gpu},
      destination_{space_.add(size + 48) + 16 + to},
      tables_{put(std::span{&crc_tables_of_gather(), 1})},
      state_{space_.add(sizeof(gather_crc_state))},
      result_{space_.add(4)}
{
    std::memset(space_.at(destination_ - 16 - to), untouched, size + 48);
}

void gather_launch::add(std::span<std::uint8_t const> bytes, unsigned from)
{
    auto const source = space_.add(from + bytes.size()) + from;
    std::memcpy(space_.at(source), bytes.data(), bytes.size());
    pieces_.push_back({source, static_cast<std::uint32_t>(bytes.size()), static_cast<std::uint32_t>(expected_.size())});
    expected_.insert(expected_.end(), bytes.begin(), bytes.end());
}

void gather_launch::add_in_place(std::span<std::uint8_t const> bytes)
{
    auto const at = destination_ + expected_.size();
    std::memcpy(space_.at(at), bytes.data(), bytes.size());
    pieces_.push_back({at, static_cast<std::uint32_t>(bytes.size()), static_cast<std::uint32_t>(expected_.size())});
    expected_.insert(expected_.end(), bytes.begin(), bytes.end());
}

void gather_launch::cut(std::uint32_t warps)
{
    std::vector<gpurx::fragment> fragments;
    for (auto const& piece : pieces_)
        fragments.push_back({piece.source, piece.size, gpurx::memory_kind::device});
    pieces_.clear();
    plan_gather(fragments, destination_, 0, gather_piece_size(expected_.size(), warps), pieces_);
}

report gather_launch::run(bool with_crc, unsigned blocks, std::optional<std::uint64_t> seed, kernel const* instead)
{
    launch how;
    how.blocks = blocks;
    how.threads = gather_block_threads;
    how.seed = seed;
    how.writes.emplace();
    for (auto const& piece : pieces_)
        if (piece.source != destination_ + piece.offset)
            how.writes->push_back({destination_ + piece.offset, piece.size});
    append(how.parameters,
           gather_arguments{reinterpret_cast<gather_piece const*>(put(std::span{std::as_const(pieces_)})),
                            static_cast<std::uint32_t>(pieces_.size()), destination_});
    if (with_crc) {
        how.writes->push_back({result_, 4});
        how.may_write = {{state_, sizeof(gather_crc_state)}};
        append(how.parameters, gather_crc_arguments{reinterpret_cast<crc_tables const*>(tables_),
                                                    reinterpret_cast<gather_crc_state*>(state_),
                                                    reinterpret_cast<std::uint32_t*>(result_),
                                                    crc_frame_for(destination_, expected_.size())});
    }
    std::string const name = with_crc ? "gpurx_gather_crc" : "gpurx_gather";
    if (instead != nullptr)
        return ptx::run(*instead, how, space_);
    auto done = ptx::run(library_kernels(gpu_).at(name), how, space_);
    auto& all = executed_by(name, gpu_);
    all.resize(done.executed.size());
    std::ranges::transform(all, done.executed, all.begin(), std::plus{});
    return done;
}

std::span<std::uint8_t const> gather_launch::destination() const
{
    auto& space = const_cast<address_space&>(space_);
    return {reinterpret_cast<std::uint8_t const*>(space.at(destination_)), expected_.size()};
}

std::uint32_t gather_launch::crc() const
{
    std::uint32_t value = 0;
    std::memcpy(&value, const_cast<address_space&>(space_).at(result_), sizeof value);
    return value;
}

bool gather_launch::state_is_clear() const
{
    static constexpr gather_crc_state clear{};
    return std::memcmp(const_cast<address_space&>(space_).at(state_), &clear, sizeof clear) == 0;
}

}  // namespace ptx::test
