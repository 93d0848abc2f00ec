// SPDX-License-Identifier: Apache-2.0
//
// gpurxd, as a test starts it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "eventually.hpp"

namespace gpurx::lab {

// Whether `ready()` holds within a minute.
template <class Ready>
[[nodiscard]] bool comes_true(Ready ready)
{
    return test::eventually(ready);
}

// With a policy of the test's own. GPURXD_SOCKET names its socket for as long as it runs.
class running_daemon {
  public:
    explicit running_daemon(
        std::string const& policy = "allow user 65534 interface dms0 queues 2 memory 64MiB opens 6000\n",
        std::string const& name = "gpurxd-test");
    running_daemon(running_daemon const&) = delete;
    running_daemon& operator=(running_daemon const&) = delete;
    ~running_daemon();

    void start();
    void kill(int signal) const;

    // What it and its clients' processes have said since this was made.
    [[nodiscard]] std::string log() const;
    [[nodiscard]] std::string socket() const { return (directory_ / "socket").string(); }
    // What node_exporter would read: what was counted a second ago.
    [[nodiscard]] std::string page() const;

  private:
    [[nodiscard]] bool is_there() const;
    [[nodiscard]] std::filesystem::path metrics() const { return directory_ / "metrics"; }

    std::filesystem::path directory_;
    pid_t pid_ = -1;
};

// Whether no journal says that a NIC's settings are to be given back, and they are those, within a minute.
[[nodiscard]] bool settled(std::string const& before);

}  // namespace gpurx::lab
