// SPDX-License-Identifier: Apache-2.0
//
// The work of one warp in a gather, and the arguments of the kernels. A warp copies one piece of a fragment to its
// place in the destination and, if requested, adds it to a CRC32C. Pure. The GPU (gather.cu) and the CPU use the same
// source; on the CPU the 32 lanes take turns. So tests cover every alignment without a GPU.
//
// The destination consists of aligned vectors of 16 bytes. One lane writes each vector, from the two aligned vectors of
// the source that contain its bytes. So all loads have 16 bytes, whatever the alignment. Only the vectors at the ends
// of a piece, which it may share with its neighbours, are stored byte by byte. A read may go up to 15 bytes beyond the
// fragment, but never beyond the aligned 16 bytes that contain its first and last byte.
//
// CRC32C is linear. A piece counts as its vectors of the destination, with zeros for bytes of other pieces. The CRC of
// all pieces is the sum (XOR) of their CRCs, each times a power of x for the bytes that follow it (crc32c.hpp). A warp
// weighs the sum of its pieces so far before the next piece, and by all bytes that follow at its end.
#pragma once

#include <cstdint>

#include "base/crc32c.hpp"

namespace gpurx::detail {

// One warp's work. It is small, and loaded by one access, because the GPU reads it across PCIe.
struct alignas(16) gather_piece {
    std::uint64_t source;  // an address that the GPU can read
    std::uint32_t size;    // > 0, at most largest_piece
    std::uint32_t offset;  // from the start of the destination
};
static_assert(sizeof(gather_piece) == 16);

inline constexpr unsigned warp_lanes = 32;
inline constexpr unsigned vector_bytes = 16;
// Bytes that a warp moves in one round.
inline constexpr unsigned round_bytes = warp_lanes * vector_bytes;
// Longer pieces are cut (gather_plan.hpp).
inline constexpr std::uint32_t largest_piece = 16 * round_bytes;
// One more if the piece begins within a round.
inline constexpr unsigned most_rounds = largest_piece / round_bytes + 1;

// Aligned bytes of memory; the first byte is the lowest of the first word.
struct [[gnu::may_alias]] alignas(16) vector16 {
    std::uint32_t word[4];
};

// The 32 bits of two words in a row from bit `bits` (0 to 24) on.
GPURX_BOTH_SIDES inline std::uint32_t funnel(std::uint32_t lower, std::uint32_t upper, unsigned bits) noexcept
{
#if defined(__CUDA_ARCH__)
    return __funnelshift_r(lower, upper, bits);
#else
    return static_cast<std::uint32_t>((std::uint64_t{upper} << 32 | lower) >> bits);
#endif
}

// Returns bytes `shift` (0 to 15) to `shift` + 15 of two vectors in a row. `shift` is `Words` words and `bits` bits.
// The compiler knows `Words`, so that part needs no instruction.
template <unsigned Words>
GPURX_BOTH_SIDES vector16 bytes_from(vector16 const& low, vector16 const& high, unsigned bits) noexcept
{
    std::uint32_t const all[8] = {low.word[0],  low.word[1],  low.word[2],  low.word[3],
                                  high.word[0], high.word[1], high.word[2], high.word[3]};
    vector16 bytes;
    for (unsigned i = 0; i < 4; ++i)
        bytes.word[i] = funnel(all[i + Words], all[i + Words + 1], bits);
    return bytes;
}

// The same for any shift. Selects instead of an index: an array that is indexed by a variable would leave the GPU's
// registers.
GPURX_BOTH_SIDES inline vector16 bytes_from(vector16 const& low, vector16 const& high, unsigned shift) noexcept
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
    return {{funnel(b0, b1, bits), funnel(b1, b2, bits), funnel(b2, b3, bits), funnel(b3, b4, bits)}};
}

// A piece as vectors of the destination. Vector 0 contains its first byte.
struct piece_layout {
    std::uint64_t begin;   // the address of vector 0
    std::uint32_t head;    // bytes of vector 0 that are not of this piece
    std::uint64_t source;  // the address that would be copied to `begin`
    std::uint32_t end;     // end of the piece, relative to `begin`
    std::uint32_t rounds;  // rounds for all vectors

    GPURX_BOTH_SIDES constexpr piece_layout(gather_piece const& piece, std::uint64_t destination) noexcept
        : begin{(destination + piece.offset) & ~std::uint64_t{vector_bytes - 1}},
          head{static_cast<std::uint32_t>((destination + piece.offset) & (vector_bytes - 1))},
          source{piece.source - head},
          end{head + piece.size},
          rounds{(end + round_bytes - 1) / round_bytes}
    {}

    // Return whether all 16 bytes of the vector at `at` bytes from `begin` are of this piece, or none of them.
    [[nodiscard]] GPURX_BOTH_SIDES constexpr bool whole(std::uint32_t at) const noexcept
    {
        return at >= head && at + vector_bytes <= end;
    }
    [[nodiscard]] GPURX_BOTH_SIDES constexpr bool outside(std::uint32_t at) const noexcept { return at >= end; }
    // Returns the end of its last round; its sum counts up to there.
    [[nodiscard]] GPURX_BOTH_SIDES constexpr std::uint64_t counted_to() const noexcept
    {
        return begin + std::uint64_t{rounds} * round_bytes;
    }
    // Returns whether the piece is in its place already. It is then read for its CRC32C, and not written.
    [[nodiscard]] GPURX_BOTH_SIDES constexpr bool in_place() const noexcept { return source == begin; }
    [[nodiscard]] GPURX_BOTH_SIDES constexpr bool has(std::uint32_t at) const noexcept
    {
        return at >= head && at < end;
    }
};

template <class T>
GPURX_BOTH_SIDES T& at_address(std::uint64_t address) noexcept
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 800
    // The address is not shared memory, so accesses need no check.
    return *static_cast<T*>(__cvta_global_to_generic(address));
#else
    auto* const there = reinterpret_cast<T*>(address);
#if defined(__CUDA_ARCH__)
    // The same, as a hint that the compiler may ignore: with the conversion above it spills registers on sm_80.
    __builtin_assume(__isGlobal(there));
#endif
    return *there;
#endif
}

// Stores the bytes of this piece among the 16 bytes at `at`, and returns them with zeros for the others. The last of
// the 16 can be one of them only in vector 0 (`may_be_first`): in other vectors the piece ends before it.
GPURX_BOTH_SIDES inline vector16 store_partial(piece_layout const& piece, std::uint32_t at, vector16 const& bytes,
                                               bool may_be_first) noexcept
{
    vector16 own{};
    for (std::uint32_t i = 0; i < vector_bytes; ++i) {
        if (i == vector_bytes - 1 && !may_be_first)
            continue;
        auto const byte = bytes.word[i / 4] >> i % 4 * 8 & 0xff;
        if (!piece.has(at + i))
            continue;
        own.word[i / 4] |= byte << i % 4 * 8;
        if (!piece.in_place())
            at_address<std::uint8_t>(piece.begin + at + i) = static_cast<std::uint8_t>(byte);
    }
    return own;
}

// Products that every vector needs, in the GPU's shared memory.
struct alignas(16) crc_products {
    crc32c_tables round_later;  // multiplies by the weight of one round of bytes
    crc32c_tables word_later;   // multiplies by the weight of four bytes
};

// The same sums as products of matrices of bits, for matrix_crc (gather.cu): in shared memory, too. A round is a matrix
// of 16 rows by 256 bits, as a warp's lanes hold it: of lane 4g + t, words 0 and 2 are words t and t + 4 of row g, and
// words 1 and 3 are those of row g + 8. Each row is multiplied with the same bits; a row's place counts at the end.
struct alignas(16) crc_matrices {
    // By rounds that follow: 256 by 32 bits. Of lane 4g + t, for bits g, g + 8, g + 16 and g + 24 of the sum, the words
    // t and t + 4 of that column: two columns in a vector.
    vector16 of_round[most_rounds][2][warp_lanes];
    // Weights of the counts that a lane gets: by those eight bits, of rows g, g, g + 8, g + 8 each bits 2t, 2t + 1.
    vector16 of_row[4][warp_lanes];
};

// Powers of x that a piece needs, or a gather.
struct crc_powers {
    // Weight of each bit of a sum, by ten bits of the number of vectors that follow.
    std::uint32_t of_vectors[3][1 << 10][32];
    std::uint32_t of_lane[warp_lanes];  // of the vectors of a round that follow the lane's
};

struct crc_tables {
    crc_products products;
    crc_matrices matrices;
    crc_powers powers;
};

// Parameters of one gather: the end from which pieces count, and the numbers that turn the sum into the CRC32C.
struct crc_frame {
    std::uint64_t end;  // beyond the last round of the last piece
    std::uint32_t factor;
    std::uint32_t addend;
};

// Returns one lane's part of a sum's product: the weight of the lane's bit. The product is the sum of 32 parts.
GPURX_BOTH_SIDES constexpr std::uint32_t part_of(std::uint32_t sum, std::uint32_t const (&bits)[32],
                                                 unsigned lane) noexcept
{
    return (0 - (sum >> lane & 1)) & bits[lane];
}

// Returns `sum`, weighed for `vectors` vectors after it. `product` multiplies; the lanes of a warp do so together.
template <class Product>
GPURX_BOTH_SIDES constexpr std::uint32_t weigh(std::uint32_t sum, std::uint32_t vectors, crc_powers const& powers,
                                               Product product) noexcept
{
    constexpr unsigned mask = 1023;
    sum = product(sum, powers.of_vectors[0][vectors & mask]);
    if (vectors >> 10 != 0)
        sum = product(sum, powers.of_vectors[1][vectors >> 10 & mask]);
    if (vectors >> 20 != 0)
        sum = product(sum, powers.of_vectors[2][vectors >> 20 & mask]);
    return sum;
}

// The sums of the words at one place of a lane's vectors, each times a power of x for the rounds that follow. For the
// CPU, and for GPUs that do not multiply matrices of bits.
class lane_crc {
  public:
    using constants = crc_products;
    GPURX_BOTH_SIDES static constants const& of(crc_tables const& all) noexcept { return all.products; }

    // Rounds whose loads a lane has in flight together, where the source is shifted, and at a piece's ends: with more
    // the compiler runs out of registers.
    static constexpr unsigned rounds_at_once = 4;
    static constexpr unsigned shifted_at_once = 2;
    static constexpr unsigned ends_at_once = 2;

    GPURX_BOTH_SIDES lane_crc(piece_layout const& /*piece*/, unsigned /*lane*/, constants const& products) noexcept
        : products_{products}
    {}

    // The next round's.
    GPURX_BOTH_SIDES void add(vector16 const& vector) noexcept
    {
        for (unsigned i = 0; i < 4; ++i)
            sum_[i] = crc32c_look_up(products_.round_later, sum_[i]) ^ vector.word[i];
    }
    // Before add(), where lanes may have gone different ways.
    GPURX_BOTH_SIDES void join() const noexcept {}

    // Returns the contribution of the lane's vectors to the sum of the piece.
    [[nodiscard]] GPURX_BOTH_SIDES std::uint32_t share(unsigned lane, crc_powers const& powers) const noexcept
    {
        auto sum = sum_[0];
        for (unsigned i = 1; i < 4; ++i)
            sum = crc32c_look_up(products_.word_later, sum) ^ sum_[i];
        return crc32c_multiply(sum, powers.of_lane[lane]);
    }

  private:
    constants const& products_;
    std::uint32_t sum_[4] = {};
};

class no_crc {
  public:
    struct constants {};

    static constexpr unsigned rounds_at_once = 4;
    static constexpr unsigned shifted_at_once = 4;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    // More of them would be kept in memory.
    static constexpr unsigned ends_at_once = 2;
#else
    static constexpr unsigned ends_at_once = 4;
#endif

    GPURX_BOTH_SIDES no_crc(piece_layout const& /*piece*/, unsigned /*lane*/, constants const& /*none*/) noexcept {}

    GPURX_BOTH_SIDES void add(vector16 const& /*vector*/) noexcept {}
    GPURX_BOTH_SIDES void join() const noexcept {}
};

// A lane's vectors of the rounds that it has under way together, from `first` on: the loads of all before the first is
// used.

// Where all vectors of the rounds are whole. The source is `Words` words and `bits` bits beyond a vector.
template <bool Shifted, unsigned Words, class Crc>
GPURX_BOTH_SIDES void move_whole(piece_layout const& piece, std::uint32_t first, unsigned bits, Crc& crc) noexcept
{
    constexpr auto at_once = Shifted ? Crc::shifted_at_once : Crc::rounds_at_once;
    auto const source = piece.source & ~std::uint64_t{vector_bytes - 1};
    for (unsigned done = 0; done < Crc::rounds_at_once; done += at_once) {
        vector16 low[at_once];
        vector16 high[at_once];
        auto const begin = first + done * round_bytes;
        for (unsigned i = 0; i < at_once; ++i) {
            auto const from = source + begin + std::uint64_t{i} * round_bytes;
            low[i] = at_address<vector16 const>(from);
            if constexpr (Shifted)
                high[i] = at_address<vector16 const>(from + vector_bytes);
        }
        for (unsigned i = 0; i < at_once; ++i) {
            if constexpr (Shifted)
                low[i] = bytes_from<Words>(low[i], high[i], bits);
            if (!piece.in_place())
                at_address<vector16>(piece.begin + begin + std::uint64_t{i} * round_bytes) = low[i];
            crc.add(low[i]);
        }
    }
}

// Where some are not. Only those of the source are loaded that have a byte of the piece.
template <unsigned Rounds, class Crc>
GPURX_BOTH_SIDES void move_ends(piece_layout const& piece, std::uint32_t first, unsigned shift, Crc& crc) noexcept
{
    vector16 low[Rounds];
    vector16 high[Rounds];
    for (unsigned i = 0; i < Rounds; ++i) {
        auto const at = first + i * round_bytes;
        auto const from = piece.source - shift + at;
        auto const low_has = at + vector_bytes > piece.head + shift && at < piece.end;
        auto const high_has = shift != 0 && at + vector_bytes < piece.end + shift;
        low[i] = low_has ? at_address<vector16 const>(from) : vector16{};
        high[i] = high_has ? at_address<vector16 const>(from + vector_bytes) : vector16{};
    }
    for (unsigned i = 0; i < Rounds; ++i) {
        auto const at = first + i * round_bytes;
        if (at / round_bytes >= piece.rounds)
            break;
        auto bytes = bytes_from(low[i], high[i], shift);
        if (!piece.whole(at))
            bytes = store_partial(piece, at, bytes, i == 0);
        else if (!piece.in_place())
            at_address<vector16>(piece.begin + at) = bytes;
        crc.join();
        crc.add(bytes);
    }
}

// One lane's share of a piece: every 32nd vector.
template <class Crc>
GPURX_BOTH_SIDES Crc gather_lane(piece_layout const& piece, unsigned lane,
                                 typename Crc::constants const& constants) noexcept
{
    Crc crc{piece, lane, constants};
    auto const shift = static_cast<unsigned>(piece.source & (vector_bytes - 1));
    auto const bits = (shift & 3) * 8;
    constexpr auto stretch_bytes = Crc::rounds_at_once * round_bytes;
    // The same for all lanes, so that they stay together.
    for (std::uint32_t at = 0; at < piece.end; at += stretch_bytes) {
        auto const first = at + lane * vector_bytes;
        if (at < piece.head || at + stretch_bytes > piece.end)
            for (unsigned done = 0; done < Crc::rounds_at_once; done += Crc::ends_at_once)
                move_ends<Crc::ends_at_once>(piece, first + done * round_bytes, shift, crc);
        else if (shift == 0)
            move_whole<false, 0>(piece, first, bits, crc);
        else if (shift < 4)
            move_whole<true, 0>(piece, first, bits, crc);
        else if (shift < 8)
            move_whole<true, 1>(piece, first, bits, crc);
        else if (shift < 12)
            move_whole<true, 2>(piece, first, bits, crc);
        else
            move_whole<true, 3>(piece, first, bits, crc);
    }
    return crc;
}

// The CRC32C, from the sum over all lanes and pieces.
GPURX_BOTH_SIDES constexpr std::uint32_t crc32c_of(std::uint32_t sum, crc_frame const& frame) noexcept
{
    return ~(crc32c_multiply(sum, frame.factor) ^ frame.addend);
}

// ---- arguments of the kernels of gather.cu ----

inline constexpr unsigned gather_block_threads = 256;
// Blocks that a processor has room for. A thread then has 64 registers, so no compiler has to spill.
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
