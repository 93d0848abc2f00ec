// SPDX-License-Identifier: Apache-2.0
//
// A message to gpurxd or from it, whatever its bytes: either it is damaged, and that has a name, or it writes back as
// the very same bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <variant>

#include "lease/daemon_protocol.hpp"

namespace {

using namespace gpurx::detail;

void check(bool holds)
{
    if (!holds)
        std::abort();
}

template <class Message>
void check_parsed(std::variant<Message, message_damage> const& parsed, std::span<std::byte const> bytes)
{
    if (auto const* const damage = std::get_if<message_damage>(&parsed)) {
        check(!damage->what.empty());
        return;
    }
    auto const again = encode(std::get<Message>(parsed));
    check(std::ranges::equal(again, bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size)
{
    auto const bytes = std::as_bytes(std::span{data, size});
    check_parsed(parse_daemon_request(bytes), bytes);
    check_parsed(parse_daemon_reply(bytes), bytes);
    return 0;
}
