// SPDX-License-Identifier: Apache-2.0
//
// How fast a gather is, beside a copy of as many bytes in one piece and beside other ways to gather.
//
// Two rates: `gpu`, of launches that stand ready when the first begins, which is what the GPU takes; and `all`, of
// calls one after the other, which is what a program sees that does nothing else: the slower of CPU and GPU. What is
// called once per fragment, or may be inside the driver, has no `gpu`: a stream cannot be filled with it.
#include <fmt/format.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <exception>
#include <map>
#include <optional>

#include "bench.hpp"
#include "clock.hpp"
#include "gather_methods.hpp"

namespace gpurx::bench {

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

struct results {
    samples gpu;  // GB/s
    samples all;
    samples cpu;  // us per call
};

// Counts up through the batches of a workload, so that the same one comes again only after all others.
class turn {
  public:
    [[nodiscard]] batch const& next(workload const& of) { return of.batches()[next_++ % of.batches().size()]; }

  private:
    std::size_t next_ = 0;
};

class bench {
  public:
    bench(device const& on, options const& how, report& into);
    void run(shape const& what);

  private:
    void run(shape const& what, std::size_t batch_size);
    void try_out(method& by, workload const& of);
    void verify(method const& by, workload const& of);
    void measure(method const& by, workload const& of, results& into, turn& at);
    [[nodiscard]] std::optional<double> rate(method const& by, workload const& of, turn& at, std::size_t calls,
                                             bool held, double& cpu);
    void judge(shape const& what, std::map<std::string, results>& by_method);

    device const& on_;
    options const& how_;
    report& into_;
    section& table_;
    gather_memory memory_;
    std::vector<method> methods_;
    gate gate_;
    stream stream_;
    stopwatch watch_;
};

std::size_t source_size(device const& on, bool quick)
{
    if (quick)
        return 16 * mebibyte;
    auto const wanted = on.free_memory() / 4;
    auto size = 1024 * mebibyte;
    while (size > wanted && size > 128 * mebibyte)
        size /= 2;
    return size;
}

bench::bench(device const& on, options const& how, report& into)
    : on_{on},
      how_{how},
      into_{into},
      table_{
          into.begin("gather",
                     "GB of source bytes per second, median (min-max). gpu: launches that stood ready; all: calls one "
                     "after the other; of_copy: of the copy's gpu rate; cpu_us: of the calling thread, per call")},
      memory_{on, source_size(on, how.quick), how.quick ? 16 * mebibyte : 256 * mebibyte},
      methods_{all_methods(on)},
      gate_{on},
      stream_{on},
      watch_{on}
{
    into_.set("gather_source_mib", static_cast<double>(memory_.source_size()) / mebibyte);
    for (auto const& each : methods_)
        if (!each.missing.empty())
            into_.skip(each.name, each.missing);
}

void bench::run(shape const& what)
{
    for (auto const size : how_.quick ? std::vector{mebibyte / 4} : std::vector{mebibyte, 4 * mebibyte, 64 * mebibyte})
        run(what, size);
}

void bench::run(shape const& what, std::size_t batch_size)
{
    workload const of{on_, memory_, what, batch_size};
    std::map<std::string, results> by_method;
    std::map<std::string, turn> at;
    for (auto& each : methods_)
        try_out(each, of);
    // Rounds below 0 warm up.
    for (int round = how_.quick ? -1 : -2; round < (how_.quick ? 2 : 11); ++round) {
        results unused;
        for (auto const& each : methods_)
            if (each.missing.empty())
                measure(each, of, round < 0 ? unused : by_method[each.name], at[each.name]);
    }
    auto const copy = by_method["one copy"].gpu.median();
    for (auto const& each : methods_) {
        if (!each.missing.empty())
            continue;
        auto const& got = by_method[each.name];
        fields row{{"shape", what.name}, {"mib", static_cast<double>(batch_size) / mebibyte}, {"method", each.name}};
        add_samples(row, "gpu", got.gpu);
        if (got.gpu.empty() || copy == 0)
            row.emplace_back("of_copy", "-");
        else
            row.emplace_back("of_copy", got.gpu.median() / copy);
        add_samples(row, "all", got.all);
        add_samples(row, "cpu_us", got.cpu);
        table_.rows.push_back(std::move(row));
    }
    if (batch_size == 64 * mebibyte)
        judge(what, by_method);
}

// A method that an error comes from is left out from then on.
void bench::try_out(method& by, workload const& of)
{
    if (!by.missing.empty())
        return;
    try {
        verify(by, of);
    } catch (std::exception const& error) {
        by.missing = error.what();
        auto const what = fmt::format("{}: {}", by.name, of.name());
        if (by.is_rival)
            into_.skip(what, by.missing);
        else
            into_.fail(what, by.missing);
    }
}

void bench::verify(method const& by, workload const& of)
{
    auto const& one = of.batches().front();
    require(on_.more().cuMemsetD8Async(one.destination, 0xee, one.size, stream_.get()), "fill");
    by.enqueue(one, stream_);
    stream_.finish();
    std::vector<std::byte> got(one.size);
    auto const& to = memory_.destination();
    to.read(got, one.destination - to.address());
    auto const offset = one.contiguous - memory_.source().address();
    auto const expected = by.contiguous ? std::vector<std::byte>{} : of.expected(one);
    auto const wanted = by.contiguous ? memory_.content().subspan(offset, one.size) : std::span{expected};
    if (!std::ranges::equal(got, wanted))
        into_.fail(fmt::format("{}: {}", by.name, of.name()), "its bytes are not those of the fragments");
    if (!by.crc)
        return;
    boost::crc_optimal<32, 0x1edc6f41, 0xffffffff, 0xffffffff, true, true> crc;
    crc.process_bytes(got.data(), got.size());
    if (by.crc() != crc.checksum())
        into_.fail(fmt::format("{}: {}", by.name, of.name()), "its CRC is wrong");
}

void bench::measure(method const& by, workload const& of, results& into, turn& at)
{
    auto const size = of.batches().front().size;
    auto const calls = std::clamp<std::size_t>(512 * mebibyte / size, 1, how_.quick ? 4 : 64);
    double cpu = 0;
    if (by.few_commands && on_.has_event_times()) {
        if (auto const gpu = rate(by, of, at, calls, true, cpu))
            into.gpu.add(*gpu);
        else
            into_.skip(fmt::format("{}: {}", by.name, of.name()), "a round whose stream could not be held");
    }
    // Calls that take milliseconds are not repeated as often.
    auto const repeated = by.few_commands ? calls : std::max<std::size_t>(1, calls / 8);
    if (auto const all = rate(by, of, at, repeated, false, cpu))
        into.all.add(*all);
    into.cpu.add(cpu * 1e6);
}

// GB/s; `cpu` is the seconds per call. Nothing if the stream went on before it was filled.
std::optional<double> bench::rate(method const& by, workload const& of, turn& at, std::size_t calls, bool held,
                                  double& cpu)
{
    std::size_t bytes = 0;
    if (held)
        gate_.close(stream_);
    watch_.start(stream_);
    auto const start = times::now();
    for (std::size_t i = 0; i < calls; ++i) {
        auto const& one = at.next(of);
        by.enqueue(one, stream_);
        bytes += one.size;
    }
    cpu = times::now().since(start).thread / static_cast<double>(calls);
    watch_.stop(stream_);
    gate_.open();
    auto const seconds = watch_.seconds();
    if (held && gate_.expired())
        return std::nullopt;
    return static_cast<double>(bytes) / seconds * 1e-9;
}

void bench::judge(shape const& what, std::map<std::string, results>& by_method)
{
    auto const& copy = by_method["one copy"];
    auto const& ours = by_method["gpurx::gather"];
    if (copy.gpu.empty() || ours.gpu.empty())
        return;
    if (what.bar > 0)
        into_.add({.name = fmt::format("{}, 64 MiB: gather / copy", what.name),
                   .figure = ours.gpu.median() / copy.gpu.median(),
                   .unit = "x",
                   .limit = what.bar,
                   .at_least = true});
    into_.add({.name = fmt::format("{}, 64 MiB: gather_crc32c / copy", what.name),
               .figure = by_method["gpurx::gather_crc32c"].gpu.median() / copy.gpu.median(),
               .unit = "x",
               .limit = 0.5,
               .at_least = true});
    for (auto const& each : methods_) {
        auto const other = by_method.find(each.name);
        if (!each.is_rival || other == by_method.end())
            continue;
        // Like with like: what the GPU takes if that is known of both, else what the program sees.
        auto const& theirs = other->second;
        auto const ahead =
            theirs.gpu.empty() ? ours.all.median() / theirs.all.median() : ours.gpu.median() / theirs.gpu.median();
        into_.add({.name = fmt::format("{}, 64 MiB: gather / {}", what.name, other->first),
                   .figure = ahead,
                   .unit = "x",
                   .limit = 1,
                   .at_least = true});
    }
}

}  // namespace

void bench_gather(device const& on, options const& how, report& into)
{
    std::vector<trace_entry> trace;
    std::vector<shape> shapes{
        {.name = "4096 aligned", .fragment = 4096, .alignment = 4096, .bar = 0.85},
        {.name = "4096 to odd", .fragment = 4096, .alignment = 4096, .destination = 1, .bar = 0.70},
        {.name = "1448 packed", .fragment = 1448, .alignment = 4096, .bar = 0.70},
        {.name = "64 KiB", .fragment = 65536, .alignment = 65536, .bar = 0.85},
    };
    bench all{on, how, into};
    if (how.trace.empty()) {
        into.skip("gather of a recorded trace", "no trace was given (--trace FILE)");
    } else {
        trace = read_trace(how.trace);
        shapes.push_back({.name = "trace", .fragment = 0, .alignment = 0, .trace = &trace});
    }
    for (auto const& each : shapes)
        all.run(each);
    into.print_section();
}

}  // namespace gpurx::bench
