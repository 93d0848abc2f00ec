// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gpurx/error.hpp>

#include "base/syscalls.hpp"
#include "lease/daemon_nic.hpp"
#include "memory/topology.hpp"
#include "nic/families.hpp"
#include "nic/kernel_nic.hpp"
#include "nic/process.hpp"
#include "nic/uapi.hpp"
#include "observe.hpp"
#include "system_files.hpp"

namespace gpurx::doctor {

namespace {

constexpr std::array<std::string_view, 3> options_that_matter{"NET_DEVMEM", "UDMABUF", "PCI_P2PDMA"};

std::optional<std::uint64_t> number_in(std::string const& path)
{
    auto const text = read_line(path);
    std::uint64_t value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size())
        return std::nullopt;
    return value;
}

void observe_config(kernel_facts& kernel)
{
    auto const beside = "/boot/config-" + kernel.release;
    auto const modules = "/lib/modules/" + kernel.release + "/config";
    for (auto const& path : {std::string{"/proc/config.gz"}, beside, modules}) {
        auto text = read_text(path);
        if (path.ends_with(".gz"))
            text = gunzip(text).value_or("");
        if (text.empty())
            continue;
        kernel.config_file = path;
        kernel.config = read_kernel_config(text, options_that_matter);
        return;
    }
}

kernel_facts observe_kernel()
{
    kernel_facts kernel;
    utsname system{};
    if (::uname(&system) == 0)
        kernel.release = system.release;
    observe_config(kernel);
    try {
        auto const accepted = detail::bind_rx_attributes();
        kernel.has_bind_rx = accepted.contains(detail::uapi::netdev::dmabuf_fd);
        kernel.has_page_sizes = accepted.contains(detail::uapi::netdev::dmabuf_rx_page_size);
        kernel.has_array_tokens = detail::netdev::has_array_tokens(accepted);
    } catch (system_error const& error) {
        // The family, or the operation, is not there.
        if (error.code().value() == ENOENT || error.code().value() == EOPNOTSUPP)
            kernel.has_bind_rx = false;
    }
    return kernel;
}

host_memory_facts observe_memory()
{
    host_memory_facts memory;
    detail::unique_fd const udmabuf{::open("/dev/udmabuf", O_RDWR | O_CLOEXEC)};
    memory.udmabuf_error = udmabuf ? 0 : errno;
    if (auto const limit = number_in("/sys/module/udmabuf/parameters/size_limit_mb"))
        memory.udmabuf_size_limit = *limit << 20;
    memory.page_size = detail::sys::page_size();
    memory.free_huge_pages = number_in("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").value_or(0);
    return memory;
}

// As a session would find it; nothing is made.
std::string state_error(std::string const& directory)
{
    if (::access(directory.c_str(), R_OK | W_OK | X_OK) == 0)
        return {};
    auto const reason = errno;
    auto const parent = std::filesystem::path{directory}.parent_path();
    if (reason == ENOENT && ::access(parent.c_str(), W_OK | X_OK) == 0)
        return {};
    return fmt::format("{}: {}", directory, error_code{reason, boost::system::system_category()}.message());
}

}  // namespace

std::string read_text(std::string const& path)
{
    std::ifstream file{path, std::ios::binary};
    return {std::istreambuf_iterator<char>{file}, {}};
}

std::string read_line(std::string const& path)
{
    auto text = read_text(path);
    text.resize(std::min(text.find('\n'), text.size()));
    return text;
}

machine_facts observe_machine(std::string const& state_directory)
{
    return {observe_kernel(),
            observe_memory(),
            {.net_admin = detail::may_configure_nics(),
             .state_error = state_error(state_directory),
             .user = ::getuid(),
             .daemon = detail::find_daemon()},
            detail::observe_zcrx()};
}

pci_facts observe_pci(std::string const& address)
{
    pci_facts device;
    device.address = address;
    auto const directory = "/sys/bus/pci/devices/" + address;
    std::error_code ignored;
    device.bridges = pci_addresses(std::filesystem::canonical(directory, ignored).string());
    if (!device.bridges.empty())
        device.bridges.pop_back();  // itself
    device.numa_node = detail::parse_numa_node(read_line(directory + "/numa_node"));
    device.iommu = read_line(directory + "/iommu_group/type");
    for (auto const& bridge : device.bridges) {
        if (auto const turns = redirects_peers(read_text("/sys/bus/pci/devices/" + bridge + "/config")))
            device.turns.emplace(bridge, *turns);
    }
    return device;
}

}  // namespace gpurx::doctor
