// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace gpurx::bench {

namespace {

std::string quoted(std::string const& text)
{
    std::string result = "\"";
    for (auto const c : text) {
        if (c == '"' || c == '\\')
            result += '\\';
        if (static_cast<unsigned char>(c) < 0x20)
            result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
            result += c;
    }
    return result + '"';
}

std::string json_of(double number)
{
    return std::isfinite(number) ? fmt::format("{:.6g}", number) : "null";
}

std::string json_of(value const& what)
{
    auto const* const number = std::get_if<double>(&what);
    return number != nullptr ? json_of(*number) : quoted(std::get<std::string>(what));
}

std::string json_of(fields const& all)
{
    std::string result;
    for (auto const& [name, what] : all)
        result += fmt::format("{}{}: {}", result.empty() ? "{" : ", ", quoted(name), json_of(what));
    return result.empty() ? "{}" : result + '}';
}

std::string json_of(bar const& of)
{
    return fmt::format(R"({{"name": {}, "value": {}, "unit": {}, "limit": {}, "at_least": {}, "holds": {}}})",
                       quoted(of.name), json_of(of.figure), quoted(of.unit), json_of(of.limit), of.at_least,
                       of.holds());
}

// [ITEM, ...], an item to a line.
template <class Items, class Text>
std::string list_of(Items const& items, Text text)
{
    std::string result;
    for (auto const& item : items)
        result += (result.empty() ? "\n    " : ",\n    ") + text(item);
    return result.empty() ? "[]" : '[' + result + "\n  ]";
}

// For the table: minima and maxima stand behind their medians.
std::string cell_of(fields const& row, std::size_t column)
{
    auto const& [name, what] = row[column];
    auto const* const number = std::get_if<double>(&what);
    if (number == nullptr)
        return std::get<std::string>(what);
    auto const text = [](double of) { return fmt::format("{:.{}f}", of, of >= 100 ? 0 : of >= 10 ? 1 : 2); };
    if (column + 2 < row.size() && row[column + 1].first == name + "_min")
        return fmt::format("{} ({}-{})", text(*number), text(std::get<double>(row[column + 1].second)),
                           text(std::get<double>(row[column + 2].second)));
    return text(*number);
}

bool is_spread(std::string const& name)
{
    return name.ends_with("_min") || name.ends_with("_max");
}

}  // namespace

void add_samples(fields& row, std::string const& name, samples const& of)
{
    if (of.empty()) {
        row.emplace_back(name, "-");
        return;
    }
    row.emplace_back(name, of.median());
    row.emplace_back(name + "_min", of.min());
    row.emplace_back(name + "_max", of.max());
}

section& report::begin(std::string name, std::string about)
{
    return sections_.emplace_back(section{std::move(name), std::move(about), {}});
}

void report::print_section() const
{
    auto const& of = sections_.back();
    std::vector<std::vector<std::string>> table;
    for (auto const& row : of.rows) {
        std::vector<std::string> names;
        auto& cells = table.emplace_back();
        for (std::size_t i = 0; i < row.size(); ++i) {
            if (is_spread(row[i].first))
                continue;
            names.push_back(row[i].first);
            cells.push_back(cell_of(row, i));
        }
        if (table.size() == 1)
            table.insert(table.begin(), names);
    }
    std::vector<std::size_t> widths;
    for (auto const& line : table)
        for (std::size_t i = 0; i < line.size(); ++i) {
            widths.resize(std::max(widths.size(), i + 1));
            widths[i] = std::max(widths[i], line[i].size());
        }
    fmt::print("\n{}: {}\n", of.name, of.about);
    for (auto const& line : table) {
        for (std::size_t i = 0; i < line.size(); ++i)
            fmt::print("{:<{}}{}", line[i], widths[i], i + 1 == line.size() ? "\n" : "  ");
    }
    std::fflush(stdout);
}

void report::add(bar what)
{
    if (judging_)
        bars_.push_back(std::move(what));
}

void report::skip(std::string what, std::string reason)
{
    fmt::print("skipped: {}: {}\n", what, reason);
    skipped_.push_back({std::move(what), std::move(reason)});
}

void report::fail(std::string what, std::string reason)
{
    fmt::print("FAILED: {}: {}\n", what, reason);
    failed_.push_back({std::move(what), std::move(reason)});
}

bool report::bars_hold() const noexcept
{
    return std::ranges::all_of(bars_, [](bar const& each) { return each.holds(); });
}

int report::finish() const
{
    fmt::print("\n");
    for (auto const& each : bars_)
        fmt::print("bar: {}: {:.3f}{} (limit {} {}{}) {}\n", each.name, each.figure, each.unit,
                   each.at_least ? ">=" : "<=", each.limit, each.unit, each.holds() ? "holds" : "FALLS SHORT");
    for (auto const& each : failed_)
        fmt::print("FAILED: {}: {}\n", each.what, each.reason);
    if (!failed_.empty())
        return 1;
    return bars_hold() ? 0 : 3;
}

std::string report::json() const
{
    auto const text_of = [](remark const& of) {
        return fmt::format(R"({{"what": {}, "reason": {}}})", quoted(of.what), quoted(of.reason));
    };
    std::string rows;
    for (auto const& of : sections_)
        rows += fmt::format(",\n  {}: {}", quoted(of.name),
                            list_of(of.rows, [](fields const& row) { return json_of(row); }));
    return fmt::format(
        "{{\n  \"name\": \"gpu_bench\",\n  \"configuration\": {}{},\n  \"bars_judged\": {},\n"
        "  \"bars\": {},\n  \"skipped\": {},\n  \"failed\": {}\n}}\n",
        json_of(head_), rows, judging_, list_of(bars_, [](bar const& each) { return json_of(each); }),
        list_of(skipped_, text_of), list_of(failed_, text_of));
}

}  // namespace gpurx::bench
