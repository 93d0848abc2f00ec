// SPDX-License-Identifier: Apache-2.0
//
// Parts of tensors: the bytes of a slice of a row-major tensor, and the reads that fetch them. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gpurx::python {

// Selected indices of one dimension: `count` of them, from `begin`, in steps of `step`.
struct extent {
    std::uint64_t begin = 0;
    std::uint64_t count = 0;
    std::uint64_t step = 1;
};

// Bytes from `offset` on.
struct byte_run {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;

    friend bool operator==(byte_run, byte_run) = default;
};

// The runs of bytes of a part, in its order. Computed one by one, because there may be as many as elements.
class box {
  public:
    // Precondition: the extents lie within the shape. Throws std::invalid_argument where elements of less than a byte
    // would have to be taken apart.
    box(std::span<std::uint64_t const> shape, std::span<extent const> extents, unsigned bits);

    // Position in the part.
    [[nodiscard]] std::uint64_t bytes() const noexcept { return runs_ * run_size_; }
    [[nodiscard]] bool is_done() const noexcept { return done_ == runs_; }
    // Precondition: !is_done().
    [[nodiscard]] byte_run current() const noexcept { return {offset_, run_size_}; }
    void advance() noexcept;

  private:
    // A dimension outside the runs.
    struct dimension {
        std::uint64_t count = 0;
        std::uint64_t stride = 0;  // bytes from one index that is taken to the next
        std::uint64_t at = 0;
    };
    std::vector<dimension> outer_;
    std::uint64_t run_size_ = 0;
    std::uint64_t runs_ = 0;
    std::uint64_t done_ = 0;
    std::uint64_t offset_ = 0;
};

// One read. It fetches neighbouring runs with the bytes between them into memory of their own, from which they are
// picked. A single run goes straight to its place.
struct slice_read {
    byte_run file;
    std::uint64_t to = 0;        // the place of its first run, in the part
    std::vector<byte_run> runs;  // to be picked; empty: the read is one run
};

struct slice_limits {
    std::uint64_t gap = 64 << 10;     // a larger one is worth a read of its own
    std::uint64_t read = 8 << 20;     // bytes of a read that joins runs
    std::uint64_t memory = 32 << 20;  // bytes of all reads to pick from
    std::size_t runs = std::size_t{256} << 10;
};

// Returns the next reads, as many as fit the limits; none at the end. Advances `to`.
[[nodiscard]] std::vector<slice_read> next_reads(box& from, std::uint64_t& to, slice_limits const& limits);

}  // namespace gpurx::python
