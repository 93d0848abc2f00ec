// SPDX-License-Identifier: Apache-2.0
//
// What is gathered: fragments all over a memory that is larger than the GPU's cache, in batches that
// never come again soon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gpurx/rx_buffer.hpp>

#include "device.hpp"
#include "rivals.hpp"

namespace gpurx::bench {

// A fragment as a trace names it: bytes of the memory.
struct trace_entry {
    std::uint64_t offset;
    std::uint64_t size;
};
// Lines of `OFFSET LENGTH`, decimal, in the order of the stream; those that begin with # are
// remarks. Throws runtime_error.
[[nodiscard]] std::vector<trace_entry> read_trace(std::string const& path);

struct shape {
    std::string name;
    std::size_t fragment;                             // bytes of each
    std::size_t alignment;                            // of the sources: the page that each lies at the start of
    std::size_t destination = 0;                      // where batches begin, beside an aligned address
    double bar = 0;                                   // at 64 MiB, of the rate of a copy; 0: none
    std::vector<trace_entry> const* trace = nullptr;  // instead of the above
};

// The source memory, with known bytes, and room for what is gathered from it.
class gather_memory {
  public:
    gather_memory(device const& on, std::size_t source_size, std::size_t destination_size);

    [[nodiscard]] device_bytes const& source() const noexcept { return source_; }
    [[nodiscard]] device_bytes const& destination() const noexcept { return destination_; }
    [[nodiscard]] std::size_t source_size() const noexcept { return content_.size() * sizeof(std::uint64_t); }
    [[nodiscard]] std::span<std::byte const> content() const noexcept { return std::as_bytes(std::span{content_}); }

  private:
    std::vector<std::uint64_t> content_;
    device_bytes source_;
    device_bytes destination_;
};

struct batch {
    std::vector<fragment> fragments;
    std::size_t size = 0;
    CUdeviceptr destination = 0;
    CUdeviceptr contiguous = 0;  // as many bytes in one piece, for the copy that a gather is compared with
    // The same for other methods, made ready for them.
    CUdeviceptr pieces = 0;  // rival_piece[], on the GPU
    std::vector<CUdeviceptr> to;
    std::vector<CUdeviceptr> from;
    std::vector<std::size_t> sizes;
};

// All batches of one size that fit into the memory, each page of it in one of them.
class workload {
  public:
    workload(device const& on, gather_memory const& memory, shape const& what, std::size_t batch_size);

    // Shape and size, for people.
    [[nodiscard]] std::string const& name() const noexcept { return name_; }
    [[nodiscard]] std::vector<batch> const& batches() const noexcept { return batches_; }
    // The bytes that a batch must place.
    [[nodiscard]] std::vector<std::byte> expected(batch const& of) const;

  private:
    void shuffle_pages(shape const& what, std::size_t batch_size);
    void follow_trace(std::vector<trace_entry> const& trace, std::size_t batch_size);
    void place(shape const& what, std::size_t batch_size);
    void describe(device const& on);

    gather_memory const& memory_;
    std::string name_;
    std::vector<batch> batches_;
    std::optional<device_bytes> pieces_;
};

}  // namespace gpurx::bench
