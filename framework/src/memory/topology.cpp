// SPDX-License-Identifier: Apache-2.0
#include "topology.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <utility>

#include <gpurx/local_gpu.hpp>

#include "base/failure.hpp"

namespace gpurx::detail {

namespace {

std::optional<int> read_numa_node(std::string const& path)
{
    std::ifstream file{path};
    std::string line;
    return std::getline(file, line) ? parse_numa_node(line) : std::nullopt;
}

}  // namespace

std::string pci_address_of(int domain, int bus, int device)
{
    if (domain == 0 && bus == 0 && device == 0)
        return {};
    return fmt::format("{:04x}:{:02x}:{:02x}.0", domain, bus, device);
}

std::optional<int> parse_numa_node(std::string_view text) noexcept
{
    if (text.ends_with('\n'))
        text.remove_suffix(1);
    int node = -1;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), node);
    return error == std::errc{} && end == text.data() + text.size() && node >= 0 ? std::optional{node} : std::nullopt;
}

std::string describe_nodes(int nic_node, int gpu_node)
{
    if (nic_node == gpu_node)
        return fmt::format("NIC and GPU are on NUMA node {}", gpu_node);
    return fmt::format(
        "NIC on NUMA node {}, GPU on node {}: bytes cross the link between the processors; prefer a NIC and a GPU on "
        "one node",
        nic_node, gpu_node);
}

std::string describe(whereabouts const& of)
{
    auto text = fmt::format("GPU {}", of.gpu);
    if (!of.gpu_address.empty())
        text += fmt::format(" is {}", of.gpu_address);
    if (!of.visible.empty())
        text += fmt::format("{} number {} of CUDA_VISIBLE_DEVICES ({})", of.gpu_address.empty() ? " is" : ",",
                            of.gpu + 1, of.visible);
    if (of.gpu_node && of.nic_node)
        text += "; " + describe_nodes(*of.nic_node, *of.gpu_node);
    else if (of.gpu_node)
        text += fmt::format("; GPU on NUMA node {}", *of.gpu_node);
    return text;
}

int choose_local_gpu(char const* local_rank, std::string_view visible, int count)
{
    std::string_view const text = local_rank != nullptr ? local_rank : "0";
    auto const refuse = [&](boost::system::errc::errc_t error, std::string advice) {
        throw system_error{make_error_code(error),
                           {.operation = "choose",
                            .object = local_rank != nullptr ? fmt::format("a GPU by LOCAL_RANK '{}'", text) : "a GPU",
                            .kernel_message = {},
                            .advice = std::move(advice)}};
    };
    int rank = -1;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
    if (error != std::errc{} || end != text.data() + text.size() || rank < 0)
        refuse(boost::system::errc::invalid_argument,
               "set it to a number from 0, as torchrun does, or choose the GPU by number");
    bool const has_its_own = !visible.empty() && visible.find(',') == std::string_view::npos;
    if (has_its_own)
        rank = 0;
    if (rank >= count)
        refuse(boost::system::errc::no_such_device,
               fmt::format("this process sees {} GPU{}{}: start at most one process per GPU on the machine, or make "
                           "more GPUs visible",
                           count, count == 1 ? "" : "s",
                           visible.empty() ? "" : fmt::format(" (CUDA_VISIBLE_DEVICES is {})", visible)));
    return rank;
}

whereabouts find_whereabouts(int gpu, std::string gpu_address, std::string_view interface, std::string_view sys)
{
    // Set by whoever starts the program.
    auto const* const visible = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT(concurrency-mt-unsafe)
    whereabouts found{.gpu = gpu,
                      .gpu_address = std::move(gpu_address),
                      .visible = visible != nullptr ? visible : "",
                      .gpu_node = {},
                      .nic_node = {}};
    if (!found.gpu_address.empty())
        found.gpu_node = read_numa_node(fmt::format("{}/bus/pci/devices/{}/numa_node", sys, found.gpu_address));
    if (!interface.empty())
        found.nic_node = read_numa_node(fmt::format("{}/class/net/{}/device/numa_node", sys, interface));
    return found;
}

}  // namespace gpurx::detail

namespace gpurx {

int local_gpu()
{
    // Set by whoever starts the program.
    auto const* const rank = std::getenv("LOCAL_RANK");               // NOLINT(concurrency-mt-unsafe)
    auto const* const visible = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT(concurrency-mt-unsafe)
    return detail::choose_local_gpu(rank, visible != nullptr ? visible : "", detail::count_gpus());
}

int local_gpu(error_code& code, diagnostics& why)
{
    return detail::reporting(code, why, [] { return std::optional{local_gpu()}; }).value_or(-1);
}

}  // namespace gpurx
