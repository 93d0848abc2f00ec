// SPDX-License-Identifier: Apache-2.0
//
// CAP_NET_ADMIN, which a session needs for the NIC's settings unless gpurxd has it.
#pragma once

namespace gpurx::lab {

// Of this thread, whose permitted set has it: capabilities belong to threads.
void set_net_admin(bool effective);

// Until this is destroyed.
class without_net_admin {
  public:
    without_net_admin() { set_net_admin(false); }
    without_net_admin(without_net_admin const&) = delete;
    without_net_admin& operator=(without_net_admin const&) = delete;
    ~without_net_admin() { set_net_admin(true); }
};

}  // namespace gpurx::lab
