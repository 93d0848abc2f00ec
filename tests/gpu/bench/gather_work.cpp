// SPDX-License-Identifier: Apache-2.0
#include "gather_work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>

namespace gpurx::bench {

namespace {

constexpr std::size_t page = 4096;
// Batches of one workload at most: a cache has long forgotten the first when the last is done.
constexpr std::size_t most_batches = 1024;

std::vector<std::uint64_t> random_words(std::size_t bytes)
{
    std::vector<std::uint64_t> words(bytes / sizeof(std::uint64_t));
    std::uint64_t state = 88172645463325252U;
    for (auto& word : words) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word = state;
    }
    return words;
}

}  // namespace

std::vector<trace_entry> read_trace(std::string const& path)
{
    std::ifstream file{path};
    if (!file)
        throw std::runtime_error{fmt::format("{}: cannot be read", path)};
    std::vector<trace_entry> trace;
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        if (line.empty() || line.front() == '#')
            continue;
        std::istringstream words{line};
        trace_entry entry{};
        if (!(words >> entry.offset >> entry.size) || entry.size == 0)
            throw std::runtime_error{fmt::format("{}:{}: not OFFSET LENGTH: '{}'", path, number, line)};
        trace.push_back(entry);
    }
    if (trace.empty())
        throw std::runtime_error{fmt::format("{}: no fragment in it", path)};
    return trace;
}

gather_memory::gather_memory(device const& on, std::size_t source_size, std::size_t destination_size)
    : content_{random_words(source_size)}, source_{on, source_size}, destination_{on, destination_size}
{
    source_.write(content());
}

workload::workload(device const& on, gather_memory const& memory, shape const& what, std::size_t batch_size)
    : memory_{memory}, name_{fmt::format("{}, {} KiB", what.name, batch_size / 1024)}
{
    if (what.trace != nullptr)
        follow_trace(*what.trace, batch_size);
    else
        shuffle_pages(what, batch_size);
    if (batches_.empty())
        throw std::runtime_error{name_ + ": the memory is too small for a batch"};
    place(what, batch_size);
    describe(on);
}

// Each fragment at the start of a page, pages in random order.
void workload::shuffle_pages(shape const& what, std::size_t batch_size)
{
    std::vector<std::size_t> order(memory_.source_size() / what.alignment);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937_64{1});
    auto const per_batch = (batch_size + what.fragment - 1) / what.fragment;
    auto const count = std::min(order.size() / per_batch, most_batches);
    for (std::size_t i = 0; i < count; ++i) {
        auto& one = batches_.emplace_back();
        for (std::size_t k = i * per_batch; k < (i + 1) * per_batch; ++k) {
            auto const size = std::min(what.fragment, batch_size - one.size);
            one.fragments.push_back(
                {memory_.source().address() + order[k] * what.alignment, size, memory_kind::device});
            one.size += size;
        }
    }
}

// Again and again from the start, each time further up in the memory, until there are as many bytes as it has.
void workload::follow_trace(std::vector<trace_entry> const& trace, std::size_t batch_size)
{
    std::uint64_t span = 0;
    for (auto const& entry : trace)
        span = std::max(span, entry.offset + entry.size);
    span = (span + page - 1) / page * page;
    auto const count = std::min(memory_.source_size() / batch_size, most_batches);
    std::uint64_t base = 0;
    std::size_t next = 0;
    while (batches_.size() < count) {
        auto& one = batches_.emplace_back();
        while (one.size < batch_size) {
            auto const& entry = trace[next];
            auto const size =
                std::min({entry.size, std::uint64_t{batch_size - one.size}, std::uint64_t{memory_.source_size()}});
            auto const at = (base + entry.offset) % memory_.source_size();
            auto const fits = std::min(at, memory_.source_size() - size);
            one.fragments.push_back({memory_.source().address() + fits, size, memory_kind::device});
            one.size += size;
            next = (next + 1) % trace.size();
            base += next == 0 ? span : 0;
        }
    }
}

// Where batches go, in turn.
void workload::place(shape const& what, std::size_t batch_size)
{
    auto const& to = memory_.destination();
    auto const step = (batch_size + page - 1) / page * page + page;
    auto const slots = to.span().size() / step;
    auto const starts = memory_.source_size() - batch_size + 1;
    for (std::size_t i = 0; i < batches_.size(); ++i) {
        auto& one = batches_[i];
        one.destination = to.address() + i % slots * step + what.destination;
        one.contiguous = memory_.source().address() + i * batch_size % starts / page * page;
    }
}

// For the other methods.
void workload::describe(device const& on)
{
    std::vector<rival_piece> pieces;
    for (auto& one : batches_) {
        auto at = one.destination;
        one.pieces = pieces.size() * sizeof(rival_piece);
        for (auto const& piece : one.fragments) {
            pieces.push_back({piece.address, at, piece.size});
            one.to.push_back(at);
            one.from.push_back(piece.address);
            one.sizes.push_back(piece.size);
            at += piece.size;
        }
    }
    pieces_.emplace(on, pieces.size() * sizeof(rival_piece));
    pieces_->write(std::as_bytes(std::span{pieces}));
    for (auto& one : batches_)
        one.pieces += pieces_->address();
}

std::vector<std::byte> workload::expected(batch const& of) const
{
    std::vector<std::byte> bytes;
    bytes.reserve(of.size);
    for (auto const& piece : of.fragments) {
        auto const from = memory_.content().subspan(piece.address - memory_.source().address(), piece.size);
        bytes.insert(bytes.end(), from.begin(), from.end());
    }
    return bytes;
}

}  // namespace gpurx::bench
