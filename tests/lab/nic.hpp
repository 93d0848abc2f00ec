// SPDX-License-Identifier: Apache-2.0
//
// The lab's NIC as these tests see it: its settings, its page pools, its faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lease/journal.hpp"
#include "nic/kernel_nic.hpp"

namespace gpurx::lab {

inline constexpr char near_interface[] = "dms0";

// What a program printed, standard error included; a status other than 0 is said in the last line.
[[nodiscard]] std::string output_of(std::string const& command);

// Throws std::runtime_error with the output if the status is not 0.
void run_command(std::string const& command);

// Every setting that a session may change, as text: channels, RSS, rules, features, rings, and whether bind-rx would be
// refused (which tells tcp-data-split "auto" from "on").
[[nodiscard]] std::string nic_settings();

// Since Linux 7.3 bind-rx takes the size of the pages.
[[nodiscard]] bool kernel_has_page_sizes();
// The patches in kernel-support/linux-7.3 bring them.
[[nodiscard]] bool kernel_has_array_tokens();

// Page pools whose pages come from a dmabuf, and how many pages of them are in use.
struct dmabuf_pools {
    std::size_t count = 0;
    std::uint64_t in_flight = 0;
};
[[nodiscard]] dmabuf_pools pools_now();
// Waits for up to a minute until there are none.
[[nodiscard]] bool pools_vanish();
// Packets dropped, and tries to post a buffer that failed, for want of a page.
[[nodiscard]] std::uint64_t allocation_failures();

// The journal of the interface, as it is on the disk now; empty if there is none.
[[nodiscard]] detail::journal journal_now();

// One fault of devmemsim, on while this lives. Names and values: kernel-support/devmemsim/README.md.
class nic_fault {
  public:
    nic_fault(std::string name, unsigned value);
    nic_fault(nic_fault const&) = delete;
    nic_fault& operator=(nic_fault const&) = delete;
    ~nic_fault();
    // Frames it has hit.
    [[nodiscard]] std::uint64_t injected() const;

  private:
    std::string name_;
    std::uint64_t before_;
};

// While this lives, the NIC, or the kernel, or both, combine no frames.
class without_gro {
  public:
    without_gro(bool of_nic, bool of_kernel);
    without_gro(without_gro const&) = delete;
    without_gro& operator=(without_gro const&) = delete;
    ~without_gro();

  private:
    bool of_nic_;
    bool of_kernel_;
};

// While this lives, host memory is made of ordinary pages: all free huge pages are reserved here.
class ordinary_pages {
  public:
    ordinary_pages();
    ordinary_pages(ordinary_pages const&) = delete;
    ordinary_pages& operator=(ordinary_pages const&) = delete;
    ~ordinary_pages();

  private:
    std::size_t size_;
    void* reserved_ = nullptr;
};

// Every test stands on this: the NIC must be afterwards as it was before.
class unchanged_nic {
  public:
    unchanged_nic();
    unchanged_nic(unchanged_nic const&) = delete;
    unchanged_nic& operator=(unchanged_nic const&) = delete;
    ~unchanged_nic();

  protected:
    [[nodiscard]] std::string const& settings_before() const noexcept { return before_; }

  private:
    std::string before_;
};

}  // namespace gpurx::lab
