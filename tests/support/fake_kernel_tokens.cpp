// SPDX-License-Identifier: Apache-2.0
//
// The fake kernel's tokens of both kinds.
#include <algorithm>
#include <cstring>
#include <utility>

#include "fake_kernel.hpp"

namespace gpurx::test {

namespace {

// An array token: the slot of the memory in the socket's table, and the page, counted from 1. The slot behind the last
// one has the xarray tokens.
constexpr std::uint32_t page_bits = 27;
constexpr std::uint32_t page_mask = (std::uint32_t{1} << page_bits) - 1;
constexpr std::uint32_t most_slots = 15;
constexpr std::uint32_t most_tokens_on_page = 1023;

}  // namespace

// A page has one owner, which gets the same array token each time. While it has, others get xarray tokens.
std::uint32_t fake_kernel::hand_out(tcp_socket& state, std::uint32_t dmabuf_id, std::size_t page)
{
    auto& where = memories_.at(dmabuf_id);
    ++where.tokens_on[page];
    auto& owner = where.owners[page];
    if (owner.tokens == 0 || (owner.socket == &state && owner.tokens < most_tokens_on_page)) {
        if (auto const slot = slot_of(state, dmabuf_id)) {
            owner = {&state, owner.tokens + 1};
            return *slot << page_bits | static_cast<std::uint32_t>(page + 1);
        }
    }
    auto token = (array_tokens_ ? most_slots << page_bits : 0) | 1;
    while (state.tokens.contains(token))
        ++token;
    state.tokens[token] = {dmabuf_id, page};
    return token;
}

// A new one if need be; nothing: all its tokens are xarray tokens.
std::optional<std::uint32_t> fake_kernel::slot_of(tcp_socket& state, std::uint32_t dmabuf_id) const
{
    auto const known = std::ranges::find(state.slots, dmabuf_id);
    if (known != state.slots.end())
        return static_cast<std::uint32_t>(known - state.slots.begin());
    if (!array_tokens_ || state.slots.size() == most_slots)
        return std::nullopt;
    state.slots.push_back(dmabuf_id);
    return static_cast<std::uint32_t>(state.slots.size() - 1);
}

std::optional<fake_kernel::token_target> fake_kernel::array_target(tcp_socket const& state, std::uint32_t token) const
{
    auto const slot = token >> page_bits;
    if (slot >= state.slots.size())
        return std::nullopt;
    auto const& owners = memories_.at(state.slots[slot]).owners;
    auto const page = (token & page_mask) - 1;
    if (page >= owners.size() || owners[page].tokens == 0 || owners[page].socket != &state)
        return std::nullopt;
    return token_target{state.slots[slot], page};
}

bool fake_kernel::take_back(tcp_socket& state, std::uint32_t token)
{
    if (auto const at = state.tokens.find(token); at != state.tokens.end()) {
        put_page(at->second);
        state.tokens.erase(at);
        return true;
    }
    auto const target = array_target(state, token);
    if (!target)
        return false;
    --memories_.at(target->dmabuf_id).owners[target->page].tokens;
    put_page(*target);
    return true;
}

void fake_kernel::take_all_back(tcp_socket& state)
{
    for (auto const& [token, target] : std::exchange(state.tokens, {}))
        put_page(target);
    for (auto const id : state.slots) {
        auto& owners = memories_.at(id).owners;
        for (std::size_t page = 0; page < owners.size(); ++page)
            for (; owners[page].socket == &state && owners[page].tokens > 0; --owners[page].tokens)
                put_page({id, page});
    }
}

void fake_kernel::put_page(token_target const& target, bool overwrite)
{
    auto& where = memories_.at(target.dmabuf_id);
    if (--where.tokens_on[target.page] > 0)
        return;
    where.free.insert(target.page);
    // The NIC may write here from now on: who still reads must notice.
    if (overwrite)
        std::memset(where.bytes.data() + target.page * page_size, std::to_integer<int>(poison), page_size);
}

}  // namespace gpurx::test
