// SPDX-License-Identifier: Apache-2.0
//
// Bytes written out in tests.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace gpurx::detail::test {

class bytes : public std::vector<std::byte> {
  public:
    bytes(std::initializer_list<int> values)
    {
        for (int const value : values)
            push_back(static_cast<std::byte>(value));
    }
    // Text and `zeros` bytes after it.
    bytes(std::string_view text, std::size_t zeros)
    {
        for (char const letter : text)
            push_back(static_cast<std::byte>(letter));
        resize(size() + zeros);
    }

    friend bytes operator+(bytes left, bytes const& right)
    {
        left.insert(left.end(), right.begin(), right.end());
        return left;
    }
};

}  // namespace gpurx::detail::test
