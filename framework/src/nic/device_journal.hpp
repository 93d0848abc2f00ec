// SPDX-License-Identifier: Apache-2.0
//
// The journal of one device, locked for as long as this object lives: read once, written back after each step.
#pragma once

#include <optional>
#include <string>

#include "claim_environment.hpp"
#include "journal.hpp"
#include "journal_file.hpp"
#include "nic_device.hpp"

namespace gpurx::detail {

class device_journal {
  public:
    // Waits for the lock. A journal of another boot or device is dropped: what it speaks of is gone. Throws
    // system_error.
    device_journal(claim_environment const& environment, nic_device const& device);

    [[nodiscard]] journal* operator->() noexcept { return &value_; }
    [[nodiscard]] journal& operator*() noexcept { return value_; }
    // What must be on disk before the next change is made. Throws system_error.
    void save() const { file_.store(value_); }
    // A sentence, if a journal was dropped.
    [[nodiscard]] std::optional<std::string> const& dropped() const noexcept { return dropped_; }

  private:
    journal_file file_;
    journal value_;
    std::optional<std::string> dropped_;
};

}  // namespace gpurx::detail
