// SPDX-License-Identifier: Apache-2.0
//
// PTX text as words, numbers and types: for those who take it apart (ptx_module.cpp, ptx_instruction.cpp). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ptx::inside {

// Throws parse_error.
[[noreturn]] void refuse(unsigned line, std::string const& what);

[[nodiscard]] std::optional<std::uint64_t> number_in(std::string_view word);

// Words, one after the other. What is not there as expected is refused.
class reader {
  public:
    explicit reader(std::string_view text);
    [[nodiscard]] bool done() const { return at_ == tokens_.size(); }
    [[nodiscard]] unsigned line() const;
    [[nodiscard]] std::string_view next(std::size_t ahead = 0) const;
    std::string_view take();
    bool take_if(std::string_view what);
    void expect(std::string_view what);
    std::uint64_t number();

  private:
    struct token {
        std::string_view text;
        unsigned line = 0;
    };
    // Words, and each other character by itself. Without comments.
    [[nodiscard]] static std::vector<token> split(std::string_view text);

    std::vector<token> tokens_;
    std::size_t at_ = 0;
};

struct type_info {
    unsigned width;  // bytes; 0: a predicate
    bool is_signed;
};
[[nodiscard]] std::optional<type_info> type_of(std::string_view name);

// "ld.global.u32": its parts.
[[nodiscard]] std::vector<std::string_view> parts_of(std::string_view mnemonic);

}  // namespace ptx::inside
