// SPDX-License-Identifier: Apache-2.0
//
// What one warp does in a gather: copy one piece of a fragment to its place in the destination, and fold it into a
// CRC32C if asked to; and what a launch tells the kernels. Pure, and the same source for the GPU (gather.cu) and for
// the CPU, where the 32 lanes take turns: so that every alignment is tested without a GPU.
//
// The destination is seen as aligned vectors of 16 bytes. Each is written by one lane, from the two aligned vectors of
// the source that its bytes lie in: all accesses are of 16 bytes, whatever the alignment. Only the vectors at the ends
// of a piece, which it may share with its neighbours, are moved byte by byte. A read may go up to 15 bytes beyond the
// fragment, never beyond the aligned 16 bytes that its first and last byte lie in.
//
// CRC32C is linear: a piece counts as its vectors of the destination with zeros for what is not its own, and the CRC of
// all pieces is the sum (XOR) of theirs, each times a power of x for the bytes that follow it (crc32c.hpp). What is the
// same for all pieces is left to the end: a lane adds up its words of all of them, and weighs the sum once.
#pragma once

#include <cstdint>

#include "crc32c.hpp"

namespace gpurx::detail {

// One warp's work. The GPU reads these across PCIe: small, and loaded by one access.
struct alignas(16) gather_piece {
    std::uint64_t source;  // an address that the GPU can read
    std::uint32_t size;    // > 0
    std::uint32_t offset;  // from the start of the destination
};
static_assert(sizeof(gather_piece) == 16);

inline constexpr unsigned warp_lanes = 32;
inline constexpr unsigned vector_bytes = 16;
// What a warp moves in one round.
inline constexpr unsigned round_bytes = warp_lanes * vector_bytes;
// Rounds whose loads a lane has in flight together; where source and destination are aligned differently
// each is two loads.
inline constexpr unsigned rounds_at_once = 4;
inline constexpr unsigned rounds_at_once_shifted = 2;

// Aligned bytes of memory; the first byte is the lowest of the first word.
struct [[gnu::may_alias]] alignas(16) vector16 {
    std::uint32_t word[4];
};

// Bytes `shift` (0 to 15) to `shift` + 15 of two vectors in a row. Selects instead of an index: an array that is
// indexed by a variable would leave the GPU's registers.
GPURX_BOTH_SIDES constexpr vector16 bytes_from(vector16 const& low, vector16 const& high, unsigned shift) noexcept
{
    auto const by_two = (shift & 8) != 0;
    std::uint32_t const a0 = by_two ? low.word[2] : low.word[0];
    std::uint32_t const a1 = by_two ? low.word[3] : low.word[1];
    std::uint32_t const a2 = by_two ? high.word[0] : low.word[2];
    std::uint32_t const a3 = by_two ? high.word[1] : low.word[3];
    std::uint32_t const a4 = by_two ? high.word[2] : high.word[0];
    std::uint32_t const a5 = by_two ? high.word[3] : high.word[1];
    auto const by_one = (shift & 4) != 0;
    std::uint32_t const b0 = by_one ? a1 : a0;
    std::uint32_t const b1 = by_one ? a2 : a1;
    std::uint32_t const b2 = by_one ? a3 : a2;
    std::uint32_t const b3 = by_one ? a4 : a3;
    std::uint32_t const b4 = by_one ? a5 : a4;
    auto const bits = (shift & 3) * 8;
    auto const funnel = [bits](std::uint32_t lower, std::uint32_t upper) {
        return static_cast<std::uint32_t>((std::uint64_t{upper} << 32 | lower) >> bits);
    };
    return {{funnel(b0, b1), funnel(b1, b2), funnel(b2, b3), funnel(b3, b4)}};
}

// A piece as vectors of the destination, numbered from the one that its first byte lies in.
struct piece_layout {
    std::uint64_t begin;   // the address of vector 0
    std::uint32_t head;    // bytes of vector 0 that are not of this piece
    std::uint64_t source;  // the address that would be copied to `begin`
    std::uint32_t end;     // where the piece ends, counted from `begin`
    std::uint32_t rounds;  // that all vectors take

    GPURX_BOTH_SIDES constexpr piece_layout(gather_piece const& piece, std::uint64_t destination) noexcept
        : begin{(destination + piece.offset) & ~std::uint64_t{vector_bytes - 1}},
          head{static_cast<std::uint32_t>((destination + piece.offset) & (vector_bytes - 1))},
          source{piece.source - head},
          end{head + piece.size},
          rounds{(end + round_bytes - 1) / round_bytes}
    {}

    // Whether all 16 bytes of the vector at `at` bytes from `begin` are of this piece, or none of them is.
    [[nodiscard]] GPURX_BOTH_SIDES constexpr bool whole(std::uint32_t at) const noexcept
    {
        return at >= head && at + vector_bytes <= end;
    }
    [[nodiscard]] GPURX_BOTH_SIDES constexpr bool outside(std::uint32_t at) const noexcept { return at >= end; }
    // A piece that lies in its place already is read, for its CRC32C, and not written.
    [[nodiscard]] GPURX_BOTH_SIDES constexpr bool in_place() const noexcept { return source == begin; }
    [[nodiscard]] GPURX_BOTH_SIDES constexpr bool has(std::uint32_t at) const noexcept
    {
        return at >= head && at < end;
    }
};

template <class T>
GPURX_BOTH_SIDES T& at_address(std::uint64_t address) noexcept
{
    return *reinterpret_cast<T*>(address);
}

// Moves those of the 16 bytes at `at` that are of this piece, and returns them with zeros for the others. All are
// loaded before the first is stored, or each would wait for the one before.
GPURX_BOTH_SIDES inline vector16 move_partial(piece_layout const& piece, std::uint32_t at) noexcept
{
    std::uint8_t bytes[vector_bytes];
    for (std::uint32_t i = 0; i < vector_bytes; ++i)
        bytes[i] = piece.has(at + i) ? at_address<std::uint8_t const>(piece.source + at + i) : std::uint8_t{0};
    vector16 moved{};
    for (std::uint32_t i = 0; i < vector_bytes; ++i) {
        if (piece.has(at + i) && !piece.in_place())
            at_address<std::uint8_t>(piece.begin + at + i) = bytes[i];
        moved.word[i / 4] |= std::uint32_t{bytes[i]} << i % 4 * 8;
    }
    return moved;
}

// Products that every vector needs: in the GPU's shared memory.
struct alignas(16) crc_products {
    crc32c_tables round_later;  // with what one round of bytes counts for
    crc32c_tables word_later;   // with what four bytes count for
};

// Powers of x that a piece needs, or a gather.
struct crc_powers {
    std::uint32_t of_vectors[3][1 << 10];  // by ten bits of a number of vectors
    std::uint32_t of_lane[warp_lanes];     // of the vectors of a round that follow the lane's
};

struct crc_tables {
    crc_products products;
    crc_powers powers;
};

// For one gather: from where pieces count, and what turns the sum of all into the CRC32C.
struct crc_frame {
    std::uint64_t end;  // beyond the last round of the last piece
    std::uint32_t factor;
    std::uint32_t addend;
};

// What the bytes of `sum` count for with `vectors` vectors behind them.
GPURX_BOTH_SIDES constexpr std::uint32_t weigh(std::uint32_t sum, std::uint64_t vectors,
                                               crc_powers const& powers) noexcept
{
    constexpr unsigned mask = 1023;
    sum = crc32c_multiply(sum, powers.of_vectors[0][vectors & mask]);
    if (vectors >> 10 != 0)
        sum = crc32c_multiply(sum, powers.of_vectors[1][vectors >> 10 & mask]);
    if (vectors >> 20 != 0)
        sum = crc32c_multiply(sum, powers.of_vectors[2][vectors >> 20 & mask]);
    return sum;
}

// The sums of the words at one place of a lane's vectors, each times a power of x for the rounds that follow.
class lane_crc {
  public:
    GPURX_BOTH_SIDES void add(vector16 const& vector, crc_products const& products) noexcept
    {
        for (unsigned i = 0; i < 4; ++i)
            sum_[i] = crc32c_look_up(products.round_later, sum_[i]) ^ vector.word[i];
    }

    GPURX_BOTH_SIDES void add_to_last_round(vector16 const& vector) noexcept
    {
        for (unsigned i = 0; i < 4; ++i)
            sum_[i] ^= vector.word[i];
    }

    // What the lane's vectors of this piece count for in the frame, but for the lane's place in a round.
    [[nodiscard]] GPURX_BOTH_SIDES std::uint32_t of_piece(piece_layout const& piece, crc_frame const& frame,
                                                          crc_products const& products,
                                                          crc_powers const& powers) const noexcept
    {
        auto sum = sum_[0];
        for (unsigned i = 1; i < 4; ++i)
            sum = crc32c_look_up(products.word_later, sum) ^ sum_[i];
        auto const counted_to = piece.begin + std::uint64_t{piece.rounds} * round_bytes;
        return weigh(sum, (frame.end - counted_to) / vector_bytes, powers);
    }

  private:
    std::uint32_t sum_[4] = {};
};

struct no_crc {
    GPURX_BOTH_SIDES void add(vector16 const& /*vector*/, no_crc /*products*/) noexcept {}
    GPURX_BOTH_SIDES void add_to_last_round(vector16 const& /*vector*/) noexcept {}
};

// What a lane loads for the rounds that it has under way together: the loads of all before the first is used. Vectors
// that are not whole stay zero.
template <unsigned Rounds>
struct lane_vectors {
    vector16 of[Rounds];

    // The source is aligned as the destination is.
    GPURX_BOTH_SIDES void load_aligned(piece_layout const& piece, std::uint32_t first) noexcept
    {
        for (unsigned i = 0; i < Rounds; ++i) {
            auto const at = first + i * round_bytes;
            of[i] = piece.whole(at) ? at_address<vector16 const>(piece.source + at) : vector16{};
        }
    }

    // It is `shift` bytes beyond that.
    GPURX_BOTH_SIDES void load_shifted(piece_layout const& piece, std::uint32_t first, unsigned shift) noexcept
    {
        vector16 low[Rounds];
        vector16 high[Rounds];
        for (unsigned i = 0; i < Rounds; ++i) {
            auto const at = first + i * round_bytes;
            auto const from = piece.source - shift + at;
            low[i] = piece.whole(at) ? at_address<vector16 const>(from) : vector16{};
            high[i] = piece.whole(at) ? at_address<vector16 const>(from + vector_bytes) : vector16{};
        }
        for (unsigned i = 0; i < Rounds; ++i)
            of[i] = bytes_from(low[i], high[i], shift);
    }

    template <class Crc, class Products>
    GPURX_BOTH_SIDES void store(piece_layout const& piece, std::uint32_t first, Crc& crc,
                                Products const& products) const noexcept
    {
        for (unsigned i = 0; i < Rounds; ++i) {
            auto const at = first + i * round_bytes;
            if (at / round_bytes >= piece.rounds)
                break;
            if (piece.whole(at) && !piece.in_place())
                at_address<vector16>(piece.begin + at) = of[i];
            crc.add(of[i], products);
        }
    }
};

// One lane's share of a piece: every 32nd vector. Those at the piece's ends that are not whole are done before and
// after the loops, which would need more registers than there are with them inside.
template <class Crc, class Products>
GPURX_BOTH_SIDES Crc gather_lane(piece_layout const& piece, unsigned lane, Products const& products) noexcept
{
    Crc crc;
    auto const begin = lane * vector_bytes;
    auto const head = begin == 0 && !piece.whole(0) ? move_partial(piece, 0) : vector16{};
    auto const shift = static_cast<unsigned>(piece.source & (vector_bytes - 1));
    if (shift == 0) {
        for (std::uint32_t at = begin; at / round_bytes < piece.rounds; at += rounds_at_once * round_bytes) {
            lane_vectors<rounds_at_once> vectors;
            vectors.load_aligned(piece, at);
            if (at == 0 && !piece.whole(0))
                vectors.of[0] = head;
            vectors.store(piece, at, crc, products);
        }
    } else {
        for (std::uint32_t at = begin; at / round_bytes < piece.rounds; at += rounds_at_once_shifted * round_bytes) {
            lane_vectors<rounds_at_once_shifted> vectors;
            vectors.load_shifted(piece, at, shift);
            if (at == 0 && !piece.whole(0))
                vectors.of[0] = head;
            vectors.store(piece, at, crc, products);
        }
    }
    auto const last = (piece.end - 1) / vector_bytes * vector_bytes;
    if (last != 0 && !piece.whole(last) && last % round_bytes == begin)
        crc.add_to_last_round(move_partial(piece, last));
    return crc;
}

// The CRC32C, from the sum over all lanes and pieces.
GPURX_BOTH_SIDES constexpr std::uint32_t crc32c_of(std::uint32_t sum, crc_frame const& frame) noexcept
{
    return ~(crc32c_multiply(sum, frame.factor) ^ frame.addend);
}

// ---- what a launch hands to the kernels of gather.cu ----

inline constexpr unsigned gather_block_threads = 256;
// That a processor has room for: leaves a thread 64 registers, so that no compiler has to spill any.
inline constexpr unsigned gather_blocks_at_least = 4;

struct gather_arguments {
    gather_piece const* pieces;  // in pinned host memory
    std::uint32_t count;
    std::uint64_t destination;
};

// All zero between launches. One launch at a time may use it.
struct gather_crc_state {
    std::uint32_t sum;
    std::uint32_t blocks;  // that are done
};

struct gather_crc_arguments {
    crc_tables const* tables;
    gather_crc_state* state;
    std::uint32_t* result;
    crc_frame frame;
};

}  // namespace gpurx::detail
