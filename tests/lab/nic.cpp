// SPDX-License-Identifier: Apache-2.0
#include "nic.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <variant>

#include "eventually.hpp"
#include "memory/memory_state.hpp"
#include "session/nic_worker.hpp"

namespace gpurx::lab {

using namespace std::chrono_literals;

namespace {

constexpr std::string_view status_end = " of the command)\n";

std::string fault_file(std::string_view name)
{
    return fmt::format("/sys/kernel/debug/devmemsim/{}/{}", near_interface, name);
}

std::uint64_t injected_so_far(std::string const& fault)
{
    std::ifstream file{fault_file("injected")};
    std::string name;
    std::uint64_t count = 0;
    while (file >> name >> count) {
        if (name == fault || name == fault + ":")
            return count;
    }
    throw std::runtime_error{"devmemsim lists no fault " + fault};
}

std::string bind_answer()
{
    static auto const memory = detail::make_host_memory(4096);
    detail::kernel_nic nic{near_interface};
    std::array const queue{nic.channels().rx_queues() - 1};
    try {
        auto const binding = nic.bind_rx(queue, memory->dmabuf_fd(), 0);
        return "accepted";
    } catch (system_error const& refusal) {
        return refusal.why().kernel_message;
    }
}

std::size_t free_huge_pages()
{
    std::ifstream file{"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"};
    std::size_t count = 0;
    file >> count;
    return count;
}

}  // namespace

std::string output_of(std::string const& command)
{
    std::string text;
    auto* const pipe = ::popen(("{ " + command + "\n} 2>&1").c_str(), "re");
    if (pipe == nullptr)
        throw std::runtime_error{"cannot run " + command};
    std::array<char, 4096> part{};
    while (auto const count = std::fread(part.data(), 1, part.size(), pipe))
        text.append(part.data(), count);
    if (auto const status = ::pclose(pipe); status != 0)
        text += fmt::format("(status {:#x}{}", status, status_end);
    return text;
}

void run_command(std::string const& command)
{
    if (auto const text = output_of(command); text.ends_with(status_end))
        throw std::runtime_error{command + ": " + text};
}

std::string nic_settings()
{
    detail::nic_worker::wait_for_all();  // of sessions whose last user is gone
    // The counts of features are not ours; what is dynamic is left out.
    auto text =
        output_of(fmt::format("ethtool -l {0}; ethtool -x {0}; ethtool -n {0}; ethtool -g {0}; "
                              "ethtool -k {0} | grep -E 'ntuple|gro-hw'",
                              near_interface));
    detail::kernel_nic nic{near_interface};
    auto const rings = nic.rings();
    text += fmt::format("tcp-data-split in effect {}, hds-thresh {}\n", static_cast<int>(rings.split),
                        rings.hds_threshold.value_or(0));
    for (auto const& context : nic.rss_contexts())
        text += fmt::format("rss context {}\n", context.id);
    return text + "bind-rx: " + bind_answer() + "\n";
}

bool kernel_has_page_sizes()
{
    utsname system{};
    int major = 0;
    int minor = 0;
    if (::uname(&system) != 0 || std::sscanf(system.release, "%d.%d", &major, &minor) != 2)
        throw std::runtime_error{"uname tells no release"};
    return major > 7 || (major == 7 && minor >= 3);
}

bool kernel_has_array_tokens()
{
    return detail::kernel_nic{near_interface}.has_array_tokens();
}

dmabuf_pools pools_now()
{
    dmabuf_pools found;
    for (auto const& pool : detail::kernel_nic{near_interface}.page_pools()) {
        if (!pool.dmabuf && !pool.io_uring)
            continue;
        ++found.count;
        found.in_flight += pool.inflight;
    }
    return found;
}

bool pools_vanish()
{
    return gpurx::test::eventually([] { return pools_now().count == 0; });
}

std::uint64_t allocation_failures()
{
    std::uint64_t sum = 0;
    for (auto const& queue : detail::kernel_nic{near_interface}.rx_losses())
        sum += queue.allocation_failures.value_or(0);
    return sum;
}

detail::journal journal_now()
{
    std::error_code ignored;
    for (auto const& entry : std::filesystem::directory_iterator{"/run/gpurx", ignored}) {
        if (entry.path().extension() != ".journal")
            continue;
        std::ifstream file{entry.path()};
        auto found = detail::parse_journal(std::string{std::istreambuf_iterator<char>{file}, {}});
        if (auto* const log = std::get_if<detail::journal>(&found);
            log != nullptr && log->device.interface == near_interface)
            return std::move(*log);
    }
    return {};
}

nic_fault::nic_fault(std::string name, unsigned value) : name_{std::move(name)}, before_{injected_so_far(name_)}
{
    std::ofstream file{fault_file(name_)};
    file << value << std::flush;
    if (!file)
        throw std::runtime_error{"cannot set fault " + name_};
}

nic_fault::~nic_fault()
{
    std::ofstream{fault_file(name_)} << 0;
}

std::uint64_t nic_fault::injected() const
{
    return injected_so_far(name_) - before_;
}

without_gro::without_gro(bool of_nic, bool of_kernel) : of_nic_{of_nic}, of_kernel_{of_kernel}
{
    if (of_nic_)
        run_command("ethtool -K dms0 rx-gro-hw off");
    if (of_kernel_)
        run_command("ethtool -K dms0 gro off");
}

without_gro::~without_gro()
{
    if (of_kernel_)
        run_command("ethtool -K dms0 gro on");
    if (of_nic_)
        run_command("ethtool -K dms0 rx-gro-hw on");
}

ordinary_pages::ordinary_pages() : size_{free_huge_pages() << 21}
{
    if (size_ == 0)
        return;
    reserved_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (reserved_ == MAP_FAILED)
        throw std::runtime_error{"cannot reserve the free huge pages"};
}

ordinary_pages::~ordinary_pages()
{
    if (reserved_ != nullptr)
        ::munmap(reserved_, size_);
}

unchanged_nic::unchanged_nic() : before_{nic_settings()} {}

unchanged_nic::~unchanged_nic()
{
    CHECK(pools_vanish());
    CHECK(nic_settings() == before_);
}

}  // namespace gpurx::lab
