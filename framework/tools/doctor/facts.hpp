// SPDX-License-Identifier: Apache-2.0
//
// Facts of this machine, of its interfaces, and of a GPU. Plain data: a fact that could not be found out is absent, and
// none is a judgement. findings.hpp judges.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/zcrx_support.hpp"
#include "lease/journal.hpp"
#include "nic/families.hpp"
#include "nic/flow_rule.hpp"

namespace gpurx::doctor {

// Why a question to the kernel was not answered.
struct refusal {
    int error = 0;     // errno; 0: it was answered
    std::string text;  // the kernel's own words, or the error's

    friend bool operator==(refusal const&, refusal const&) = default;
};

struct kernel_facts {
    std::string release;                        // as uname -r
    std::string config_file;                    // where the options are from; empty: none could be read
    std::map<std::string, std::string> config;  // of the options that matter those that are set: "NET_DEVMEM" is "y"
    std::optional<bool> has_bind_rx;            // the netlink operation that binds memory to queues
    bool has_page_sizes = false;                // it takes a page size
    bool has_array_tokens = false;
};

struct host_memory_facts {
    std::optional<int> udmabuf_error;                 // errno of opening /dev/udmabuf; 0: it opens
    std::optional<std::uint64_t> udmabuf_size_limit;  // bytes of one udmabuf
    std::uint64_t page_size = 4096;
    std::uint64_t free_huge_pages = 0;  // of 2 MiB
};

struct process_facts {
    bool net_admin = false;        // CAP_NET_ADMIN in the user namespace that owns this network namespace
    std::string state_error = {};  // why sessions cannot keep their journals; empty: they can, or it is not known
    unsigned user = 0;
    std::string daemon = {};  // gpurxd's socket; empty: it is not there, or nobody is to ask
};

// The answer of gpurxd to a request for queues that brings no memory, and names its required size.
struct daemon_facts {
    bool answered = false;
    refusal said;                // EBADF: but for the memory it would be granted
    bool less_would_do = false;  // it would be granted with less memory
};

struct machine_facts {
    kernel_facts kernel;
    host_memory_facts memory;
    process_facts process;
    detail::zcrx_support zcrx;
};

// A queue that was taken for transport zcrx, and given back.
struct zcrx_trial {
    std::vector<unsigned> queues = {};  // that were registered
    std::string failure = {};           // why none was; empty: it was
    std::vector<std::string> notices = {};
};

// A gpurx session that the journal of an interface names.
struct session_facts {
    detail::journal_owner owner;
    std::optional<bool> alive;  // nothing: cannot be told from here
    std::string program;        // its name; empty: not known
};

// A PCI device, as far as its place matters.
struct pci_facts {
    std::string address;                // "0000:3b:00.0"
    std::vector<std::string> bridges;   // above it, from the root on
    std::string iommu;                  // type of its IOMMU group: "DMA-FQ", "identity"; empty: no IOMMU
    std::map<std::string, bool> turns;  // of bridges: whether access control sends its peers' traffic up to the root
    std::optional<int> numa_node = {};  // nothing: the machine has none, or does not tell
};

struct interface_facts {
    std::string name;
    std::string alias;                           // IFLA_IFALIAS: free text, by which who manages a device may know it
    std::vector<std::string> alternative_names;  // udev gives some, and so may anybody
    unsigned index = 0;
    bool up = false;
    bool carrier = false;
    bool loopback = false;
    std::uint32_t mtu = 0;
    std::string kind;    // of a virtual one: "veth", "bridge"; empty: none was said
    std::string driver;  // empty: none was said
    bool xdp = false;    // an XDP program is attached
    std::optional<pci_facts> pci;

    refusal settings;  // why the ethtool family answered nothing at all
    // Why bind-rx of a descriptor that is none fails: EBADF where the kernel came as far as to look at it, and nothing
    // else stands in the way that can be seen without changing the NIC.
    std::optional<refusal> bind_probe;

    std::optional<detail::ethtool::rings> rings;  // nothing: it has no rings to set
    std::optional<detail::ethtool::feature_state> ntuple;
    std::optional<detail::ethtool::feature_state> hardware_gro;
    std::optional<detail::ethtool::channels> channels;  // nothing: it has none to set
    std::vector<std::uint32_t> rss_table;
    std::vector<detail::ethtool::rss_context> rss_contexts;
    std::optional<std::vector<detail::installed_rule>> rules;  // nothing: it cannot be asked
    std::vector<detail::netdev::rx_queue> queues;              // empty while it is down, or without queues of its own

    std::optional<daemon_facts> daemon;  // nothing: it was not asked
    std::optional<zcrx_trial> trial;     // nothing: none was asked for

    std::vector<session_facts> sessions;
    std::vector<detail::setting_change> session_changes;
    std::vector<detail::setting_change> own_changes;  // made by an earlier --fix
    std::string journal_error;                        // why the journals were not read; empty: they were, or none is
};

struct gpu_facts {
    int ordinal = 0;
    std::string error;  // why there is none to use; empty: there is
    std::string name;
    bool exports = false;     // its memory can be bound to a NIC
    std::string explanation;  // device_memory::explain()
    std::optional<pci_facts> pci;
    std::optional<std::uint64_t> bar1;  // bytes of the window that NICs reach its memory through
};

// The requirements of a program.
struct requirements {
    std::uint64_t memory = 64 << 20;  // bytes
};

struct facts {
    machine_facts machine;
    std::vector<interface_facts> interfaces;
    std::optional<gpu_facts> gpu;  // nothing: none was asked about
    requirements wanted;
};

}  // namespace gpurx::doctor
