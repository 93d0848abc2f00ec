// SPDX-License-Identifier: Apache-2.0
#include "base/zcrx_support.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "child.hpp"
#include "zcrx_answers.hpp"

using Catch::Matchers::ContainsSubstring;

namespace gpurx::detail {

namespace {

using test::zcrx_of_linux_7_3;

struct row {
    void (*change)(zcrx_support&);
    zcrx_lack lack;
    char const* words;
};

constexpr row rows[]{
    {[](auto& it) { it.ring_error = EPERM, it.disabled = 2; }, zcrx_lack::permission, "io_uring_disabled is 2"},
    {[](auto& it) { it.ring_error = EPERM, it.disabled = 1; }, zcrx_lack::permission, "io_uring_group"},
    {[](auto& it) { it.ring_error = EPERM; }, zcrx_lack::system_calls, "filtered (EPERM)"},
    {[](auto& it) { it.ring_error = EACCES; }, zcrx_lack::system_calls, "seccomp"},
    {[](auto& it) { it.ring_error = EPERM, it.disabled = {}; }, zcrx_lack::system_calls, "seccomp"},
    {[](auto& it) { it.ring_error = ENOSYS; }, zcrx_lack::system_calls, "filtered (ENOSYS)"},
    {[](auto& it) { it.ring_error = ENOSYS, it.disabled = {}; }, zcrx_lack::io_uring, "CONFIG_IO_URING"},
    {[](auto& it) { it.ring_error = EINVAL; }, zcrx_lack::zcrx, "Linux 7.2"},
    {[](auto& it) { it.ring_error = ENOMEM; }, zcrx_lack::ring, "memory"},
    {[](auto& it) { it.query_error = EINVAL; }, zcrx_lack::zcrx, "Linux 7.2"},
    {[](auto& it) { it.result = -EOPNOTSUPP; }, zcrx_lack::zcrx, "CONFIG_IO_URING_ZCRX"},
    {[](auto& it) { it.offers.area_flags = 2; }, zcrx_lack::dmabuf, "no dmabuf"},
    {[](auto& it) { it.offers.register_flags = 2; }, zcrx_lack::sharing, "imports"},
    {[](auto& it) { it.offers.nr_ctrl_opcodes = 1; }, zcrx_lack::sharing, "exports"},
    {[](auto& it) { it.right_error = EPERM; }, zcrx_lack::net_admin, "CAP_NET_ADMIN in the initial user namespace"},
};

}  // namespace

TEST_CASE("the first obstacle to queues of io_uring is named, with advice")
{
    CHECK(find_lack(zcrx_of_linux_7_3()) == zcrx_lack::nothing);
    CHECK(describe(zcrx_of_linux_7_3()).empty());
    // As 7.2.12 does, which cannot add areas.
    auto older = zcrx_of_linux_7_3();
    older.offers.nr_ctrl_opcodes = 3;
    CHECK(find_lack(older) == zcrx_lack::nothing);
    // The setting lets administrators and its group through.
    auto permitted = zcrx_of_linux_7_3();
    permitted.disabled = 1;
    CHECK(find_lack(permitted) == zcrx_lack::nothing);
    for (auto const& [change, lack, words] : rows) {
        auto seen = zcrx_of_linux_7_3();
        change(seen);
        CAPTURE(words);
        CHECK(find_lack(seen) == lack);
        CHECK_THAT(describe(seen), ContainsSubstring(words));
    }
}

TEST_CASE("obstacles are told in their order: rings, then the kernel, then the right")
{
    auto seen = zcrx_of_linux_7_3();
    seen.right_error = EPERM;
    seen.offers.area_flags = 0;
    CHECK(find_lack(seen) == zcrx_lack::dmabuf);
    seen.query_error = EINVAL;
    CHECK(find_lack(seen) == zcrx_lack::zcrx);
    seen.ring_error = EPERM;
    CHECK(find_lack(seen) == zcrx_lack::system_calls);
}

namespace {

// As container runtimes do: io_uring_setup fails with this error in this process. Returns whether it does.
bool filter_rings(unsigned error)
{
    sock_filter program[]{
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    sock_fprog const all{.len = std::size(program), .filter = program};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0;
}

}  // namespace

TEST_CASE("a filter of system calls is told from a kernel without io_uring", "[native]")
{
    auto const setting = observe_zcrx().disabled;
    if (!setting || *setting != 0)
        SKIP("kernel.io_uring_disabled is not 0 here: the filter is not what a ring fails by");
    for (unsigned const error : {EPERM, ENOSYS}) {
        CAPTURE(error);
        CHECK(test::in_child([error](test::child_report& child) {
                  child.expect(filter_rings(error), "a filter can be installed");
                  auto const seen = observe_zcrx();
                  child.expect(seen.ring_error == static_cast<int>(error), "io_uring_setup fails by the filter");
                  child.expect(find_lack(seen) == zcrx_lack::system_calls, "the filter is the obstacle");
              }).empty());
    }
}

TEST_CASE("the kernel of this machine answers", "[native]")
{
    auto const seen = observe_zcrx();
    // Without a ring nothing more is asked; with one, a registration of nothing never succeeds.
    CHECK((seen.ring_error != 0) == (seen.right_error == 0));
    CHECK((find_lack(seen) == zcrx_lack::nothing) == describe(seen).empty());
}

}  // namespace gpurx::detail
