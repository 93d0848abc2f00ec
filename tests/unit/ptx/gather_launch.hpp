// SPDX-License-Identifier: Apache-2.0
//
// The library's kernels as PTX, on memory of the test's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/gather_piece.hpp"
#include "ptx_machine.hpp"

namespace ptx::test {

// The GPUs whose machine code is of different texts, for what the source asks about them (gather_piece.hpp, gather.cu):
// sm_80 by itself; those before sm_100, which multiply matrices of bits; and those from there on.
inline constexpr unsigned sm_80 = 80;
inline constexpr unsigned sm_90 = 90;
inline constexpr unsigned sm_100 = 100;

// The kernels' text that the machine code for a GPU is made of, read once.
[[nodiscard]] kernels const& library_kernels(unsigned gpu);

[[nodiscard]] std::string_view library_text(unsigned gpu);
// The one that the library carries itself, for GPUs that it has no machine code for.
[[nodiscard]] std::string_view shipped_text(unsigned gpu);

// Of the kernel of this name: what all launches of this program have executed.
[[nodiscard]] std::vector<std::uint64_t>& executed_by(std::string const& kernel, unsigned gpu);

// One gather: fragments at addresses of their own, each in memory that ends at the next multiple of 16.
class gather_launch {
  public:
    // `to`: where the destination begins within 16 bytes.
    gather_launch(std::size_t size, unsigned to, unsigned gpu = sm_90);
    // From `bytes`, which lie `from` bytes beyond a multiple of 16. In place: in the destination itself.
    void add(std::span<std::uint8_t const> bytes, unsigned from);
    void add_in_place(std::span<std::uint8_t const> bytes);

    // With another kernel `instead`, which takes the same parameters.
    [[nodiscard]] report run(bool with_crc, unsigned blocks, std::optional<std::uint64_t> seed = {},
                             kernel const* instead = nullptr);

    [[nodiscard]] std::span<std::uint8_t const> destination() const;
    [[nodiscard]] std::vector<std::uint8_t> const& expected() const { return expected_; }
    [[nodiscard]] std::uint32_t crc() const;
    // As it has to be between launches.
    [[nodiscard]] bool state_is_clear() const;
    // Pieces as the library cuts fragments for so many warps; to be called before run() if at all.
    void cut(std::uint32_t warps);

  private:
    class address_space : public memory {
      public:
        std::uint64_t add(std::size_t size);
        std::optional<view> look(std::uint64_t address) override;
        [[nodiscard]] std::byte* at(std::uint64_t address);

      private:
        std::map<std::uint64_t, std::vector<std::byte>> blocks_;
        std::uint64_t next_ = 0x7'0000'0000;
    };

    template <class T>
    std::uint64_t put(std::span<T const> values);

    unsigned gpu_;
    address_space space_;
    std::uint64_t destination_;
    std::uint64_t tables_;
    std::uint64_t state_;
    std::uint64_t result_;
    std::vector<gpurx::detail::gather_piece> pieces_;
    std::vector<std::uint8_t> expected_;
};

}  // namespace ptx::test
