// SPDX-License-Identifier: Apache-2.0
//
// The fake kernel's tokens of both kinds.
#include <algorithm>
#include <cstring>

#include "fake_kernel.hpp"

namespace gpurx::test {

namespace {

// An array token: this bit, the slot of the memory in the socket's table, the page.
constexpr std::uint32_t array_bit = std::uint32_t{1} << 31;
constexpr std::uint32_t page_bits = 27;
constexpr std::uint32_t page_mask = (std::uint32_t{1} << page_bits) - 1;
constexpr std::size_t most_slots = 16;

}  // namespace

std::uint32_t fake_kernel::hand_out(tcp_socket& state, std::uint32_t dmabuf_id, std::size_t page)
{
    auto& where = memories_.at(dmabuf_id);
    ++where.tokens_on[page];
    if (auto const slot = slot_of(state, dmabuf_id)) {
        ++where.receipts[page];
        return array_bit | *slot << page_bits | static_cast<std::uint32_t>(page);
    }
    std::uint32_t token = 1;
    while (state.tokens.contains(token))
        ++token;
    state.tokens[token] = {dmabuf_id, page};
    return token;
}

// A new one if need be; nothing: its tokens are xarray tokens.
std::optional<std::uint32_t> fake_kernel::slot_of(tcp_socket& state, std::uint32_t dmabuf_id)
{
    auto const known = std::ranges::find(state.slots, dmabuf_id);
    if (known != state.slots.end())
        return static_cast<std::uint32_t>(known - state.slots.begin());
    auto const& where = memories_.at(dmabuf_id);
    if (!where.gives_array_tokens || where.unbound || state.slots.size() == most_slots)
        return std::nullopt;
    state.slots.push_back(dmabuf_id);
    return static_cast<std::uint32_t>(state.slots.size() - 1);
}

std::optional<fake_kernel::token_target> fake_kernel::array_target(tcp_socket const& state, std::uint32_t token) const
{
    auto const slot = (token & ~array_bit) >> page_bits;
    auto const page = token & page_mask;
    if (slot >= state.slots.size())
        return std::nullopt;
    auto const& where = memories_.at(state.slots[slot]);
    if (page >= where.receipts.size() || where.receipts[page] == 0)
        return std::nullopt;
    return token_target{state.slots[slot], page};
}

bool fake_kernel::take_back(tcp_socket& state, std::uint32_t token, bool loses_page)
{
    std::optional<token_target> target;
    if ((token & array_bit) != 0) {
        target = array_target(state, token);
        if (target)
            --memories_.at(target->dmabuf_id).receipts[target->page];
    } else if (auto const at = state.tokens.find(token); at != state.tokens.end()) {
        target = at->second;
        state.tokens.erase(at);
    }
    if (target && !loses_page)
        put_page(*target);
    return target.has_value();
}

void fake_kernel::put_page(token_target const& target)
{
    auto& where = memories_.at(target.dmabuf_id);
    if (--where.tokens_on[target.page] > 0)
        return;
    where.free.insert(target.page);
    // The NIC may write here from now on: who still reads must notice.
    std::ranges::fill(where.bytes.subspan(target.page * page_size, page_size), poison);
}

void fake_kernel::drain_unbound()
{
    for (auto& [id, where] : memories_) {
        auto const uses = [id = id](auto const& entry) {
            return std::ranges::find(entry.second.slots, id) != entry.second.slots.end();
        };
        if (!where.unbound || std::ranges::any_of(sockets_, uses))
            continue;
        for (std::size_t page = 0; page < where.receipts.size(); ++page)
            for (; where.receipts[page] > 0; --where.receipts[page])
                put_page({id, page});
    }
}

}  // namespace gpurx::test
