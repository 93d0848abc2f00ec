// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <functional>

#include "nic.hpp"

using namespace gpurx::doctor;
using namespace gpurx::doctor::test;
using Catch::Matchers::ContainsSubstring;

namespace {

struct machine_row {
    char const* name;
    std::function<void(machine_facts&)> spoil;
    char const* topic;
    severity level;
    char const* said;     // a part of it
    char const* command;  // all of it
    requirements wanted = {};
};

std::vector<machine_row> const machine_rows{
    {"no bind-rx", [](auto& machine) { machine.kernel.has_bind_rx = false; }, "kernel", severity::blocking,
     "boot Linux 7.2 or later", ""},
    {"not asked", [](auto& machine) { machine.kernel.has_bind_rx.reset(); }, "kernel", severity::note,
     "cannot be determined", ""},
    {"no NET_DEVMEM", [](auto& machine) { machine.kernel.config.erase("NET_DEVMEM"); }, "kernel", severity::blocking,
     "CONFIG_NET_DEVMEM", ""},
    {"no configuration to read",
     [](auto& machine) {
         machine.kernel.config.clear();
         machine.kernel.config_file.clear();
     },
     "kernel", severity::fine, "", ""},
    {"an older kernel", [](auto& machine) { machine.kernel.release = "6.18.44-cloud"; }, "kernel", severity::note,
     "not tested", ""},
    {"the oldest that was tried", [](auto& machine) { machine.kernel.release = "7.2-rc1"; }, "kernel", severity::fine,
     "", ""},
    {"a later kernel", [](auto& machine) { machine.kernel.release = "10.0"; }, "kernel", severity::fine, "", ""},
    {"xarray tokens", [](auto& machine) { machine.kernel.has_array_tokens = false; }, "tokens", severity::note,
     "xarray", ""},
    {"array tokens", [](auto&) {}, "tokens", severity::fine, "array tokens", ""},
    {"no page sizes", [](auto& machine) { machine.kernel.has_page_sizes = false; }, "page-size", severity::note, "",
     ""},

    {"no UDMABUF",
     [](auto& machine) {
         machine.memory.udmabuf_error = ENOENT;
         machine.kernel.config.erase("UDMABUF");
     },
     "udmabuf", severity::blocking, "this kernel has no UDMABUF", ""},
    {"no device file", [](auto& machine) { machine.memory.udmabuf_error = ENOENT; }, "udmabuf", severity::blocking,
     "--device /dev/udmabuf", ""},
    {"a device file of others", [](auto& machine) { machine.memory.udmabuf_error = EACCES; }, "udmabuf",
     severity::blocking, "may not open", "setfacl -m u:$USER:rw /dev/udmabuf"},
    {"small udmabufs",
     [](auto& machine) { machine.memory.udmabuf_size_limit = 64 << 20; },
     "udmabuf",
     severity::blocking,
     "of this size",
     "echo 65 > /sys/module/udmabuf/parameters/size_limit_mb",
     {(64 << 20) + 1}},
    {"large enough udmabufs",
     [](auto& machine) { machine.memory.udmabuf_size_limit = 64 << 20; },
     "udmabuf",
     severity::fine,
     "",
     "",
     {64 << 20}},
    {"few huge pages", [](auto& machine) { machine.memory.free_huge_pages = 31; }, "huge-pages", severity::note, "",
     "sysctl vm.nr_hugepages=32"},
    {"huge pages enough", [](auto& machine) { machine.memory.free_huge_pages = 32; }, "huge-pages", severity::fine, "",
     ""},

    {"no right", [](auto& machine) { machine.process.net_admin = false; }, "rights", severity::blocking, "as root",
     "setcap cap_net_admin+ep PROGRAM"},
    {"no right, and gpurxd",
     [](auto& machine) {
         machine.process.net_admin = false;
         machine.process.daemon = "/run/gpurxd.sock";
     },
     "rights", severity::fine, "gpurxd at /run/gpurxd.sock does it", ""},
    {"array tokens, and zcrx", [](auto&) {}, "zcrx", severity::fine, "devmem has array tokens", ""},
    {"xarray tokens, and zcrx", [](auto& machine) { machine.kernel.has_array_tokens = false; }, "zcrx", severity::fine,
     "set rx_session_options::allow_zcrx", ""},
    {"io_uring disabled",
     [](auto& machine) {
         machine.zcrx.disabled = 2;
         machine.zcrx.ring_error = EPERM;
     },
     "zcrx", severity::note, "kernel.io_uring_disabled is 2", "sysctl kernel.io_uring_disabled=0"},
    {"io_uring filtered", [](auto& machine) { machine.zcrx.ring_error = ENOSYS; }, "zcrx", severity::note, "seccomp",
     ""},
    {"no zero-copy receive", [](auto& machine) { machine.zcrx.query_error = EINVAL; }, "zcrx", severity::note,
     "CONFIG_IO_URING_ZCRX", ""},
    {"no areas of dmabufs", [](auto& machine) { machine.zcrx.offers.area_flags = 0; }, "zcrx", severity::note,
     "takes no dmabuf", ""},
    {"no imports", [](auto& machine) { machine.zcrx.offers.register_flags = 2; }, "zcrx", severity::note, "imports",
     ""},
    {"rights in a user namespace", [](auto& machine) { machine.zcrx.right_error = EPERM; }, "zcrx", severity::note,
     "initial user namespace", "setcap cap_net_admin+ep PROGRAM"},
    {"no state directory", [](auto& machine) { machine.process.state_error = "/run/gpurx: Permission denied"; },
     "state-directory", severity::blocking, "journals", "install -d -m 0700 -o $USER /run/gpurx"},
};

}  // namespace

TEST_CASE("the checks of a machine find each fault")
{
    for (auto const& row : machine_rows) {
        DYNAMIC_SECTION(row.name)
        {
            auto machine = good_machine();
            row.spoil(machine);
            auto const found = about(check_machine(machine, false, row.wanted), row.topic);
            CHECK(found.topic == row.topic);
            CHECK(to_string(found.level) == to_string(row.level));
            CHECK_THAT(found.what, ContainsSubstring(row.said));
            CHECK(found.command == row.command);
        }
    }
}

TEST_CASE("a GPU makes host memory a side matter")
{
    auto machine = good_machine();
    machine.memory.udmabuf_error = ENOENT;
    machine.memory.free_huge_pages = 0;
    CHECK(judge(check_machine(machine, false, {})) == verdict::not_possible);
    CHECK(judge(check_machine(machine, true, {})) == verdict::ready);
}

TEST_CASE("the evidence of zcrx is what the kernel answered")
{
    auto machine = good_machine();
    auto const evidence = [&machine] { return about(check_machine(machine, false, {}), "zcrx").evidence; };
    CHECK_THAT(evidence(), ContainsSubstring("register flags 0x3, area flags 0x1, 4 operations"));
    machine.zcrx.result = -EOPNOTSUPP;
    CHECK_THAT(evidence(), ContainsSubstring("IORING_REGISTER_QUERY answers Operation not supported"));
    machine.zcrx.ring_error = EPERM;
    CHECK_THAT(evidence(), ContainsSubstring("io_uring_setup answers Operation not permitted") &&
                               ContainsSubstring("kernel.io_uring_disabled is 0"));
}

TEST_CASE("the worst finding is the verdict")
{
    auto const of = [](std::vector<severity> const& levels) {
        std::vector<finding> all;
        for (auto const level : levels)
            all.push_back({.level = level, .topic = "x", .what = "y"});
        return judge(all);
    };
    CHECK(of({}) == verdict::ready);
    CHECK(of({severity::fine, severity::note}) == verdict::ready);
    CHECK(of({severity::degraded, severity::note}) == verdict::degraded);
    CHECK(of({severity::degraded, severity::blocking, severity::fine}) == verdict::not_possible);
}
