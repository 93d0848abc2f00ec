// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <functional>
#include <vector>

namespace gpurx::perf {

namespace {

// Values below 2^7 have a bucket each; of each power of two above there are 2^6.
constexpr unsigned bits = 6;
constexpr std::size_t bucket_count = std::size_t{64 - bits + 1} << bits;

constexpr std::size_t bucket_of(std::uint64_t value) noexcept
{
    auto const width = static_cast<unsigned>(std::bit_width(value));
    auto const shift = width > bits + 1 ? width - bits - 1 : 0U;
    return (std::size_t{shift} << bits) + static_cast<std::size_t>(value >> shift);
}

// The largest value in it.
constexpr std::uint64_t end_of(std::size_t bucket) noexcept
{
    auto const shift = bucket < (std::size_t{2} << bits) ? 0U : static_cast<unsigned>(bucket >> bits) - 1;
    auto const lead = static_cast<std::uint64_t>(bucket) - (std::uint64_t{shift} << bits);
    return ((lead + 1) << shift) - 1;
}

static_assert(bucket_of(0) == 0 && bucket_of(127) == 127 && bucket_of(128) == 128 && bucket_of(129) == 128);
static_assert(end_of(127) == 127 && end_of(128) == 129 && bucket_of(~std::uint64_t{0}) == bucket_count - 1);
static_assert(end_of(bucket_count - 1) == ~std::uint64_t{0});

constexpr double gib = 1 << 30;
constexpr std::array percentiles{50.0, 90.0, 99.0, 99.9, 100.0};

struct summary {
    greeting how;
    std::vector<result> received;
    histogram latency;
};

// In the order in which they first came.
std::vector<summary> summaries_of(std::span<round_result const> rounds)
{
    std::vector<summary> all;
    for (auto const& each : rounds) {
        auto found = std::ranges::find(all, each.server, &summary::how);
        if (found == all.end())
            found = all.insert(found, summary{each.server, {}, {}});
        found->received.push_back(each.received);
        found->latency.add(each.latency);
    }
    return all;
}

double median(std::span<result const> of, std::function<double(result const&)> const& value)
{
    std::vector<double> values;
    std::ranges::transform(of, std::back_inserter(values), value);
    std::ranges::sort(values);
    auto const middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double process_cpu(result const& of)
{
    return cpu_per_gib(of.process_cpu_ns, of);
}

double machine_cpu(result const& of)
{
    return cpu_per_gib(of.machine_cpu_ns, of);
}

double microseconds(std::chrono::nanoseconds time)
{
    return static_cast<double>(time.count()) / 1000;
}

boost::json::object latency_of(histogram const& of)
{
    boost::json::object all{{"count", of.count()}};
    for (auto const percent : percentiles)
        all[percent < 100 ? fmt::format("p{:g}", percent) : "max"] = microseconds(of.percentile(percent));
    return all;
}

boost::json::object json_of(round_result const& round)
{
    return {{"setting", round.server.setting},
            {"transport", round.server.transport},
            {"bytes", round.received.bytes},
            {"seconds", static_cast<double>(round.received.nanoseconds) * 1e-9},
            {"gib_per_second", gib_per_second(round.received)},
            {"process_cpu_per_gib", process_cpu(round.received)},
            {"machine_cpu_per_gib", machine_cpu(round.received)},
            {"verified_bytes", round.received.verified},
            {"wrong_words", round.received.wrong_words},
            {"latency_us", latency_of(round.latency)}};
}

boost::json::object json_of(summary const& of)
{
    return {{"setting", of.how.setting},
            {"transport", of.how.transport},
            {"rounds", of.received.size()},
            {"gib_per_second", median(of.received, gib_per_second)},
            {"process_cpu_per_gib", median(of.received, process_cpu)},
            {"machine_cpu_per_gib", median(of.received, machine_cpu)},
            {"latency_us", latency_of(of.latency)}};
}

std::string row(summary const& of)
{
    auto const by_speed = [](result const& one, result const& other) {
        return gib_per_second(one) < gib_per_second(other);
    };
    auto const [slowest, fastest] = std::ranges::minmax(of.received, by_speed);
    auto text =
        fmt::format("{:<30.30} {:<9} {:>6} {:>7.3f} {:>6.3f}..{:<6.3f} {:>8.3f} {:>8.3f}", of.how.setting,
                    of.how.transport, of.received.size(), median(of.received, gib_per_second), gib_per_second(slowest),
                    gib_per_second(fastest), median(of.received, process_cpu), median(of.received, machine_cpu));
    for (auto const percent : percentiles)
        text += fmt::format(" {:>8.0f}", microseconds(of.latency.percentile(percent)));
    return text + "\n";
}

}  // namespace

histogram::histogram() : buckets_(bucket_count) {}

void histogram::add(std::chrono::nanoseconds duration) noexcept
{
    auto const value = static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 0));
    ++buckets_[bucket_of(value)];
    ++count_;
    largest_ = std::max(largest_, value);
}

void histogram::add(histogram const& other) noexcept
{
    for (std::size_t i = 0; i < buckets_.size(); ++i)
        buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    largest_ = std::max(largest_, other.largest_);
}

std::chrono::nanoseconds histogram::percentile(double percent) const noexcept
{
    auto const rank = static_cast<std::uint64_t>(std::ceil(percent / 100 * static_cast<double>(count_)));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
        seen += buckets_[i];
        if (seen > 0 && seen >= rank)
            return std::chrono::nanoseconds{static_cast<std::int64_t>(std::min(end_of(i), largest_))};
    }
    return {};
}

double gib_per_second(result const& of)
{
    return of.nanoseconds == 0 ? 0 : static_cast<double>(of.bytes) / gib / (static_cast<double>(of.nanoseconds) * 1e-9);
}

double cpu_per_gib(std::uint64_t cpu_ns, result const& of)
{
    return of.bytes == 0 ? 0 : static_cast<double>(cpu_ns) * 1e-9 / (static_cast<double>(of.bytes) / gib);
}

std::string table(std::span<round_result const> rounds)
{
    std::string text =
        fmt::format("{:<40} {:>6} {:>7} {:>14} {:>17} {:>44}\n{:<30} {:<9} {:>6} {:>7} {:>14} {:>8} {:>8}", "", "", "",
                    "", "CPU s per GiB", "latency of a message, us", "setting", "transport", "rounds", "GiB/s",
                    "min..max", "process", "machine");
    for (auto const percent : percentiles)
        text += fmt::format(" {:>8}", percent < 100 ? fmt::format("p{:g}", percent) : "max");
    text += "\n";
    for (auto const& each : summaries_of(rounds))
        text += row(each);
    return text;
}

std::string json(client_options const& wanted, std::span<round_result const> rounds)
{
    boost::json::array each_round;
    for (auto const& each : rounds)
        each_round.push_back(json_of(each));
    boost::json::array settings;
    for (auto const& each : summaries_of(rounds))
        settings.push_back(json_of(each));
    boost::json::object const all{{"gpurx_perf", 1},
                                  {"version", GPURX_VERSION},
                                  {"load",
                                   {{"flows", wanted.flows},
                                    {"message", wanted.message_size},
                                    {"window", wanted.window},
                                    {"warm_up", static_cast<double>(wanted.warm_up.count()) / 1000},
                                    {"seconds", static_cast<double>(wanted.measured.count()) / 1000}}},
                                  {"rounds", each_round},
                                  {"settings", settings}};
    return boost::json::serialize(all) + "\n";
}

}  // namespace gpurx::perf
