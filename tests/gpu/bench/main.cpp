// SPDX-License-Identifier: Apache-2.0
//
// What gpurx does on a GPU, in figures, each beside what it is to be compared with.
//
// Exit status: 0, also where there is no GPU; 1 if something went wrong or a wrong byte was found; 2 for a wrong
// command line; 3 if a bar falls short.
#include <fmt/format.h>
#include <sys/utsname.h>

#include <array>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <gpurx/memory.hpp>

#include "bench.hpp"

namespace gpurx::bench {

namespace {

constexpr char const* usage =
    "usage: gpu_bench [--json FILE] [--trace FILE] [--gpu ORDINAL] [--quick] [gather|transport|release]\n"
    "       gpu_bench --facts [--gpu ORDINAL]\n";

std::optional<options> parse(int argc, char** argv)
{
    options how;
    for (int i = 1; i < argc; ++i) {
        std::string_view const word = argv[i];
        auto const has_value = i + 1 < argc;
        if (word == "--quick")
            how.quick = true;
        else if (word == "--facts")
            how.facts = true;
        else if (word == "--json" && has_value)
            how.json = argv[++i];
        else if (word == "--trace" && has_value)
            how.trace = argv[++i];
        else if (word == "--gpu" && has_value)
            how.ordinal = std::atoi(argv[++i]);
        else if (word == "gather" || word == "transport" || word == "release")
            how.only = word;
        else
            return std::nullopt;
    }
    return how;
}

std::string first_line_of(char const* path, std::string_view starting = {})
{
    std::ifstream file{path};
    for (std::string line; std::getline(file, line);)
        if (line.starts_with(starting))
            return line;
    return {};
}

void describe_machine(report& into)
{
    utsname system{};
    ::uname(&system);
    auto const model = first_line_of("/proc/cpuinfo", "model name");
    auto const colon = model.find(": ");
    into.set("cpu", colon == std::string::npos ? model : model.substr(colon + 2));
    into.set("cpus", static_cast<double>(std::thread::hardware_concurrency()));
    into.set("kernel", std::string{system.release});
}

void describe_device(device const& on, report& into)
{
    int version = 0;
    require(on.calls().cuDriverGetVersion(&version), "ask for the driver's version");
    auto const driver = first_line_of("/proc/driver/nvidia/version");
    auto const cuda = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
    std::array<char, 32> bus{};
    if (on.more().cuDeviceGetPCIBusId != nullptr)
        static_cast<void>(on.more().cuDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), on.gpu().device()));
    into.set("device", on.gpu().name());
    into.set("pci", std::string{bus.data()});
    into.set("cuda_driver", cuda);
    into.set("driver", driver);
    into.set("event_times", on.has_event_times() ? "the GPU's" : "the CPU's");
    into.set("memory", device_memory::on_gpu(on.gpu().ordinal(), 1).explain());
    fmt::print("{}, driver for CUDA {} {}\n", on.gpu().name(), cuda, driver);
}

template <class Part>
void run(options const& how, char const* name, report& into, Part part)
{
    if (!how.only.empty() && how.only != name)
        return;
    try {
        part();
    } catch (std::exception const& error) {
        into.fail(name, error.what());
    }
}

void run_all(options const& how, feeder& from, report& into)
{
    std::optional<device> on;
    try {
        on.emplace(how.ordinal);
    } catch (system_error const& error) {
        into.skip("no GPU", error.what());
        return;
    }
    describe_device(*on, into);
    run(how, "gather", into, [&] { bench_gather(*on, how, into); });
    run(how, "transport", into, [&] { bench_transport(*on, how, from, into); });
    run(how, "release", into, [&] { bench_release(*on, how, into); });
}

// What decides how the library uses this GPU, in words and as the driver says it.
int show_facts(options const& how)
try {
    device const on{how.ordinal};
    int version = 0;
    require(on.calls().cuDriverGetVersion(&version), "ask for the driver's version");
    fmt::print("GPU {}: {}, driver for CUDA {}.{}\n", how.ordinal, on.gpu().name(), version / 1000,
               version % 1000 / 10);
    constexpr std::array named{std::pair{118, "whom a NIC's writes are ordered for (100: this GPU, 200: all)"},
                               std::pair{124, "memory is exported as a dmabuf"},
                               std::pair{146, "pinned host memory is, too"}};
    for (auto const& [number, meaning] : named) {
        int value = 0;
        auto const status =
            on.calls().cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(number), on.gpu().device());
        fmt::print("attribute {}: {} ({})\n", number,
                   status == CUDA_SUCCESS ? std::to_string(value) : "unknown to the driver", meaning);
    }
    fmt::print("{}\n", device_memory::on_gpu(how.ordinal, 1).explain());
    return 0;
} catch (std::exception const& error) {
    fmt::print("no GPU: {}\n", error.what());
    return 0;
}

int run(options const& how)
{
    feeder from;
    report into{!how.quick};
    describe_machine(into);
    try {
        run_all(how, from, into);
    } catch (std::exception const& error) {
        into.fail("gpu_bench", error.what());
    }
    auto const status = into.finish();
    if (!how.json.empty()) {
        std::ofstream file{how.json};
        file << into.json();
        if (!file.flush()) {
            fmt::print(stderr, "gpu_bench: {} cannot be written\n", how.json);
            return 1;
        }
    }
    return status;
}

}  // namespace

}  // namespace gpurx::bench

int main(int argc, char** argv)
try {
    auto const how = gpurx::bench::parse(argc, argv);
    if (!how) {
        std::fputs(gpurx::bench::usage, stderr);
        return 2;
    }
    return how->facts ? gpurx::bench::show_facts(*how) : gpurx::bench::run(*how);
} catch (std::exception const& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
}
