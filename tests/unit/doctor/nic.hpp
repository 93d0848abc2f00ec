// SPDX-License-Identifier: Apache-2.0
//
// Fabricated facts: a machine and a NIC with which all is well, for tests to spoil.
#pragma once

#include <cerrno>

#include "findings.hpp"
#include "zcrx_answers.hpp"

namespace gpurx::doctor::test {

inline machine_facts good_machine()
{
    machine_facts machine;
    machine.kernel = {.release = "7.3.4",
                      .config_file = "/proc/config.gz",
                      .config = {{"NET_DEVMEM", "y"}, {"UDMABUF", "y"}},
                      .has_bind_rx = true,
                      .has_page_sizes = true,
                      .has_array_tokens = true};
    machine.memory = {.udmabuf_error = 0, .udmabuf_size_limit = std::nullopt, .page_size = 4096, .free_huge_pages = 96};
    machine.process.net_admin = true;
    machine.zcrx = gpurx::test::zcrx_of_linux_7_3();
    return machine;
}

inline interface_facts good_nic()
{
    interface_facts nic;
    nic.name = "dms0";
    nic.index = 4;
    nic.up = true;
    nic.carrier = true;
    nic.mtu = 1500;
    nic.driver = "devmemsim";
    nic.bind_probe = refusal{EBADF, "Bad file descriptor"};
    nic.rings = detail::ethtool::rings{detail::ethtool::data_split::on, 0, 128};
    nic.ntuple = detail::ethtool::feature_state{true, true};
    nic.hardware_gro = detail::ethtool::feature_state{true, true};
    nic.channels = detail::ethtool::channels{0, 0, 4, 0, 0, 16};
    nic.rss_table = {0, 1, 2, 3};
    nic.rules.emplace();
    for (unsigned id = 0; id < 4; ++id)
        nic.queues.push_back({.id = id, .dmabuf = {}});
    return nic;
}

inline facts good_facts()
{
    return {good_machine(), {good_nic()}, std::nullopt, {}};
}

// A session of process 77 that has queue 3.
inline session_facts session(std::optional<bool> alive)
{
    return {{.key = {77, 1, 1, 1}, .queues = {3}, .rules = {}, .contexts = {}}, alive, alive == true ? "trainer" : ""};
}

// The worst with this topic; of level fine, without words: there is none.
inline finding about(std::vector<finding> const& all, std::string_view topic)
{
    finding worst;
    for (auto const& one : all) {
        if (one.topic == topic && (worst.topic.empty() || one.level > worst.level))
            worst = one;
    }
    return worst;
}

}  // namespace gpurx::doctor::test
