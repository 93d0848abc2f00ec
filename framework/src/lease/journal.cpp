// SPDX-License-Identifier: Apache-2.0
#include "journal.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <limits>
#include <utility>

namespace gpurx::detail {

namespace {

constexpr std::array<std::string_view, 8> setting_names{"rx-gro-hw", "tcp-data-split", "hds-thresh", "ntuple-filters",
                                                        "channels",  "rss-table",      "rx-ring",    "link"};

std::string number_or_pending(std::optional<std::uint32_t> const& id)
{
    return id ? fmt::to_string(*id) : "pending";
}

std::string rule_text(flow_rule const& rule)
{
    auto const& match = rule.match;
    auto const& remote = match.remote;
    return fmt::format("{} {} {} {} {} {} {}\n", match.v6 ? "tcp6" : "tcp4",
                       match.local ? match.local->to_string() : "*", match.local_port,
                       remote ? remote->address().to_string() : "*", remote ? fmt::to_string(remote->port()) : "*",
                       rule.kind == rule_target::queue ? "queue" : "context", rule.target);
}

}  // namespace

std::string_view to_string(setting value) noexcept
{
    return setting_names[static_cast<std::size_t>(value)];
}

setting_change const* journal::find(setting what) const noexcept
{
    auto const found = std::find_if(changes.begin(), changes.end(), [what](auto const& c) { return c.what == what; });
    return found != changes.end() ? &*found : nullptr;
}

journal_owner* journal::find(owner_key const& key) noexcept
{
    auto const found = std::find_if(owners.begin(), owners.end(), [&key](auto const& o) { return o.key == key; });
    return found != owners.end() ? &*found : nullptr;
}

void journal::record(setting_change change)
{
    auto const place = std::find_if(changes.begin(), changes.end(),
                                    [&change](auto const& other) { return other.what >= change.what; });
    if (place != changes.end() && place->what == change.what)
        *place = std::move(change);
    else
        changes.insert(place, std::move(change));
}

void journal::forget(setting what)
{
    std::erase_if(changes, [what](auto const& change) { return change.what == what; });
}

void journal::forget(owner_key const& key)
{
    std::erase_if(owners, [&key](auto const& owner) { return owner.key == key; });
}

std::set<unsigned> journal::leased_queues() const
{
    std::set<unsigned> all;
    for (auto const& owner : owners)
        all.insert(owner.queues.begin(), owner.queues.end());
    return all;
}

std::string serialise(journal const& from)
{
    std::string text = fmt::format("gpurx-journal 1\nboot {}\ndevice {} {} {}\n", from.device.boot_id,
                                   from.device.interface, from.device.ifindex, from.device.netns);
    auto const out = std::back_inserter(text);
    for (auto const& change : from.changes) {
        fmt::format_to(out, "change {} {} -> {}\n", to_string(change.what), fmt::join(change.original, " "),
                       fmt::join(change.ours, " "));
    }
    for (auto const& owner : from.owners) {
        fmt::format_to(out, "owner {} {} {} {}\n", owner.key.pid, owner.key.start_time, owner.key.pid_namespace,
                       owner.key.session);
        if (owner.binding)
            fmt::format_to(out, "binding {}\n",
                           owner.binding->io_uring ? "io_uring" : number_or_pending(owner.binding->id));
        if (!owner.queues.empty())
            fmt::format_to(out, "queues {}\n", fmt::join(owner.queues, " "));
        for (auto const& rule : owner.rules)
            fmt::format_to(out, "rule {} {}", number_or_pending(rule.id), rule_text(rule.rule));
        for (auto const& context : owner.contexts)
            fmt::format_to(out, "context {} {}\n", number_or_pending(context.id), fmt::join(context.queues, " "));
    }
    text += "end\n";
    return text;
}

std::string serialise(journal_record const& from)
{
    return fmt::format("at {} {} {}", from.owner, from.gone ? "gone" : number_or_pending(from.entry.id),
                       rule_text(from.entry.rule));
}

bool apply(journal_record const& record, journal& to)
{
    if (record.owner >= to.owners.size())
        return false;
    auto& rules = to.owners[record.owner].rules;
    auto const found =
        std::find_if(rules.begin(), rules.end(), [&record](auto const& one) { return one.rule == record.entry.rule; });
    if (record.gone && found == rules.end())
        return false;
    if (record.gone)
        rules.erase(found);
    else if (found == rules.end())
        rules.push_back(record.entry);
    else
        found->id = record.entry.id;
    return true;
}

namespace ip = boost::asio::ip;

namespace {

// Far above what happens, and low enough that nonsense is refused at once.
constexpr std::size_t longest_value = 16384;  // numbers in a line: the largest RSS tables have some thousand
constexpr std::size_t most_owners = 1024;

// Thrown within this file only.
struct damage {
    std::string what;
};

// The words of one line, apart by one space each.
class words {
  public:
    explicit words(std::string_view line) noexcept : rest_{line} {}

    [[nodiscard]] bool at_end() const noexcept { return !more_; }

    std::string_view next()
    {
        if (!more_)
            throw damage{"the line is too short"};
        auto const space = rest_.find(' ');
        more_ = space != std::string_view::npos;
        std::string_view const word = rest_.substr(0, space);
        rest_.remove_prefix(more_ ? space + 1 : rest_.size());
        if (word.empty())
            throw damage{"a word is missing"};
        return word;
    }

    template <class Number>
    Number number()
    {
        return to_number<Number>(next());
    }

    template <class Number>
    static Number to_number(std::string_view word)
    {
        Number value{};
        auto const* const end = word.data() + word.size();
        auto const [stopped, error] = std::from_chars(word.data(), end, value);
        // One spelling per number: what is read and written again must be the same text.
        if (error != std::errc{} || stopped != end || word.front() == '-' || (word.front() == '0' && word.size() > 1))
            throw damage{"'" + std::string{word.substr(0, 32)} + "' is not a valid number here"};
        return value;
    }

    void expect(std::string_view word)
    {
        if (next() != word)
            throw damage{"'" + std::string{word} + "' is missing"};
    }

    void expect_end() const
    {
        if (more_)
            throw damage{"the line is too long"};
    }

  private:
    std::string_view rest_;
    bool more_ = true;
};

std::vector<std::uint32_t> numbers_until(words& line, std::string_view stop)
{
    std::vector<std::uint32_t> values;
    while (!line.at_end()) {
        std::string_view const word = line.next();
        if (word == stop)
            return values;
        if (values.size() == longest_value)
            throw damage{"too many numbers"};
        values.push_back(words::to_number<std::uint32_t>(word));
    }
    if (!stop.empty())
        throw damage{"'" + std::string{stop} + "' is missing"};
    return values;
}

std::vector<std::uint32_t> numbers_to_end(words& line)
{
    auto values = numbers_until(line, {});
    if (values.empty())
        throw damage{"the line is too short"};
    return values;
}

std::optional<std::uint32_t> number_or_pending(std::string_view word)
{
    if (word == "pending")
        return std::nullopt;
    return words::to_number<std::uint32_t>(word);
}

std::optional<std::uint32_t> number_or_pending(words& line)
{
    return number_or_pending(line.next());
}

journal_binding binding_of(std::string_view word)
{
    if (word == "io_uring")
        return {.id = std::nullopt, .io_uring = true};
    return {.id = number_or_pending(word)};
}

setting to_setting(std::string_view word)
{
    auto const* const found = std::find(setting_names.begin(), setting_names.end(), word);
    if (found != setting_names.end())
        return static_cast<setting>(found - setting_names.begin());
    throw damage{"there is no setting '" + std::string{word.substr(0, 32)} + "'"};
}

void check_sizes(setting_change const& change)
{
    auto const fits = [&change](setting_value const& value) {
        switch (change.what) {
            case setting::channels:
                return value.size() == 3;
            case setting::rss_table:
                return !value.empty();
            default:
                return value.size() == 1;
        }
    };
    if (!fits(change.original) || !fits(change.ours))
        throw damage{"the setting has another number of values"};
}

std::optional<ip::address> address_or_any(words& line, bool v6)
{
    std::string_view const word = line.next();
    if (word == "*")
        return std::nullopt;
    boost::system::error_code error;
    auto const address = ip::make_address(word, error);
    if (error || address.is_v6() != v6 || address.to_string() != word || (v6 && address.to_v6().scope_id() != 0))
        throw damage{"'" + std::string{word.substr(0, 64)} + "' is not a valid address here"};
    return address;
}

flow_match to_match(words& line)
{
    flow_match match;
    std::string_view const family = line.next();
    if (family != "tcp4" && family != "tcp6")
        throw damage{"a rule must be for tcp4 or tcp6"};
    match.v6 = family == "tcp6";
    match.local = address_or_any(line, match.v6);
    match.local_port = line.number<std::uint16_t>();
    if (auto const remote = address_or_any(line, match.v6))
        match.remote = ip::tcp::endpoint{*remote, line.number<std::uint16_t>()};
    else
        line.expect("*");
    return match;
}

flow_rule to_flow_rule(words& line)
{
    flow_rule rule;
    rule.match = to_match(line);
    std::string_view const kind = line.next();
    if (kind != "queue" && kind != "context")
        throw damage{"a rule must lead to a queue or a context"};
    rule.kind = kind == "queue" ? rule_target::queue : rule_target::context;
    rule.target = line.number<std::uint32_t>();
    return rule;
}

// Line after line, in the order that the format has.
class parser {
  public:
    explicit parser(std::string_view text) noexcept : rest_{text} {}

    journal parse()
    {
        header();
        while (!done_)
            body_line();
        while (!rest_.empty() && !is_cut_off())
            record();
        return std::move(result_);
    }

    device_key device()
    {
        header();
        return std::move(result_.device);
    }

    [[nodiscard]] unsigned line_number() const noexcept { return line_number_; }

  private:
    // The end of a line whose writer was killed.
    [[nodiscard]] bool is_cut_off() const noexcept
    {
        constexpr std::string_view begin{"at "};
        return rest_.find('\n') == std::string_view::npos &&
               rest_.substr(0, begin.size()) == begin.substr(0, rest_.size());
    }

    void record()
    {
        words line = next_line();
        line.expect("at");
        journal_record found;
        found.owner = line.number<std::size_t>();
        std::string_view const state = line.next();
        found.gone = state == "gone";
        if (!found.gone && state != "pending")
            found.entry.id = words::to_number<std::uint32_t>(state);
        found.entry.rule = to_flow_rule(line);
        line.expect_end();
        if (!apply(found, result_))
            throw damage{"there is no such owner or rule"};
    }

    words next_line()
    {
        ++line_number_;
        auto const end = rest_.find('\n');
        if (end == std::string_view::npos)
            throw damage{rest_.empty() ? "the end is missing" : "the line does not end"};
        words const line{rest_.substr(0, end)};
        rest_.remove_prefix(end + 1);
        return line;
    }

    void header()
    {
        words magic = next_line();
        magic.expect("gpurx-journal");
        magic.expect("1");
        magic.expect_end();
        words boot = next_line();
        boot.expect("boot");
        result_.device.boot_id = boot.next();
        boot.expect_end();
        words device = next_line();
        device.expect("device");
        result_.device.interface = device.next();
        result_.device.ifindex = device.number<std::uint32_t>();
        result_.device.netns = device.number<std::uint64_t>();
        device.expect_end();
    }

    void body_line()
    {
        words line = next_line();
        std::string_view const kind = line.next();
        if (kind == "end")
            done_ = true;
        else if (kind == "change")
            change(line);
        else if (kind == "owner")
            owner(line);
        else if (kind == "binding")
            binding(line);
        else if (kind == "queues")
            queues(line);
        else if (kind == "rule")
            rule(line);
        else if (kind == "context")
            context(line);
        else
            throw damage{"there is no kind of line '" + std::string{kind.substr(0, 32)} + "'"};
        line.expect_end();
    }

    void change(words& line)
    {
        setting_change entry;
        entry.what = to_setting(line.next());
        entry.original = numbers_until(line, "->");
        entry.ours = numbers_to_end(line);
        check_sizes(entry);
        if (!result_.owners.empty() || (!result_.changes.empty() && result_.changes.back().what >= entry.what))
            throw damage{"the lines are not in order"};
        result_.changes.push_back(std::move(entry));
    }

    void owner(words& line)
    {
        owner_key key;
        key.pid = line.number<std::int32_t>();
        key.start_time = line.number<std::uint64_t>();
        key.pid_namespace = line.number<std::uint64_t>();
        key.session = line.number<std::uint64_t>();
        if (result_.owners.size() == most_owners)
            throw damage{"too many owners"};
        if (result_.find(key) != nullptr)
            throw damage{"the owner occurs twice"};
        result_.owners.push_back({key, {}, {}, {}});
    }

    journal_owner& last_owner()
    {
        if (result_.owners.empty())
            throw damage{"the line belongs to no owner"};
        return result_.owners.back();
    }

    void binding(words& line)
    {
        auto& owner = last_owner();
        if (owner.binding || !owner.queues.empty() || !owner.rules.empty() || !owner.contexts.empty())
            throw damage{"the lines are not in order"};
        owner.binding = binding_of(line.next());
    }

    void queues(words& line)
    {
        auto& owner = last_owner();
        if (!owner.queues.empty() || !owner.rules.empty() || !owner.contexts.empty())
            throw damage{"the lines are not in order"};
        owner.queues = numbers_to_end(line);
        for (unsigned const queue : owner.queues) {
            if (!leased_.insert(queue).second)
                throw damage{"a queue is leased twice"};
        }
    }

    void rule(words& line)
    {
        auto& owner = last_owner();
        if (!owner.contexts.empty())
            throw damage{"the lines are not in order"};
        auto const id = number_or_pending(line);
        owner.rules.push_back({id, to_flow_rule(line)});
    }

    void context(words& line)
    {
        auto& owner = last_owner();
        auto const id = number_or_pending(line);
        owner.contexts.push_back({id, numbers_to_end(line)});
    }

    std::string_view rest_;
    unsigned line_number_ = 0;
    bool done_ = false;
    std::set<unsigned> leased_;
    journal result_;
};

}  // namespace

std::optional<device_key> parse_device(std::string_view text)
{
    try {
        return parser{text}.device();
    } catch (damage const&) {
        return std::nullopt;
    }
}

std::variant<journal, journal_damage> parse_journal(std::string_view text)
{
    parser reader{text};
    try {
        return reader.parse();
    } catch (damage const& found) {
        return journal_damage{reader.line_number(), found.what};
    }
}

}  // namespace gpurx::detail
