// SPDX-License-Identifier: Apache-2.0
//
// A journal, whatever its text: either it is damaged, with a line to point at, or it writes back as the very same text,
// and with lines added after the end as one that says the same.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lease/journal.hpp"

namespace {

using namespace gpurx::detail;

void check(bool holds)
{
    if (!holds)
        std::abort();
}

// What the kernel's form of a rule can hold.
void check_rules(journal const& log)
{
    for (auto const& owner : log.owners) {
        for (auto const& entry : owner.rules) {
            auto raw = encode_rule(entry.rule);
            raw.fs.location = entry.id.value_or(0);
            check(decode_rule(raw).rule == entry.rule);
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size)
{
    std::string_view const text{reinterpret_cast<char const*>(data), size};
    auto const result = parse_journal(text);
    if (auto const* const damage = std::get_if<journal_damage>(&result)) {
        auto const lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
        check(damage->line >= 1 && damage->line <= lines + 1 && !damage->what.empty());
        return 0;
    }
    auto const& log = std::get<journal>(result);
    auto const whole = serialise(log);
    auto const again = parse_journal(whole);
    check(std::holds_alternative<journal>(again) && std::get<journal>(again) == log);
    // But for what was added after the end.
    if (text.ends_with("\nend\n") && text.find("\nat ") == std::string_view::npos)
        check(whole == text);
    check_rules(log);
    return 0;
}
