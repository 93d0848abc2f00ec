// SPDX-License-Identifier: Apache-2.0
//
// Which transport a session on dms0 gets, and the reason that it gives against the others.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <gpurx/gpurx.hpp>
#include <string>

#include "base/zcrx_support.hpp"
#include "bed.hpp"
#include "nic.hpp"
#include "rights.hpp"

using namespace gpurx::lab;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using gpurx::transport;
using gpurx::transport_obstacle;

namespace {

// Of this kernel. Notices are dropped: the ring takes much of so little memory.
gpurx::rx_session open(gpurx::rx_session_options options)
{
    options.interface = near_interface;
    options.max_flows = 1;
    return gpurx::rx_session{std::move(options), gpurx::device_memory::on_host(8 * mebibyte)};
}

// kernel.io_uring_disabled, while this lives.
class io_uring_disabled {
  public:
    explicit io_uring_disabled(int value) { set(value); }
    io_uring_disabled(io_uring_disabled const&) = delete;
    io_uring_disabled& operator=(io_uring_disabled const&) = delete;
    ~io_uring_disabled() { set(0); }

  private:
    static void set(int value) { run_command("sysctl -qw kernel.io_uring_disabled=" + std::to_string(value)); }
};

std::string why_no_zcrx()
{
    return gpurx::detail::describe(gpurx::detail::observe_zcrx());
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "automatic takes zcrx on a stock kernel if it is allowed, and recommends it else",
                 "[smoke][choice]")
{
    if (auto const why = why_no_zcrx(); !why.empty())
        SKIP("transport zcrx: " << why);
    auto const arrays = kernel_has_array_tokens();
    {
        auto const session = open({});
        CHECK(session.transport() == transport::devmem);
        CHECK(session.why_not_zcrx() == (arrays ? transport_obstacle::better_in_use : transport_obstacle::not_allowed));
        CHECK_THAT(session.explain(),
                   ContainsSubstring(arrays ? "\nzcrx: not in use: devmem with array tokens is preferred"
                                            : "\nzcrx: not in use: set rx_session_options::allow_zcrx"));
    }
    auto const session = open({.allow_zcrx = true});
    CHECK(session.transport() == (arrays ? transport::devmem : transport::zcrx));
    CHECK(session.why_not_devmem() == (arrays ? transport_obstacle::none : transport_obstacle::better_in_use));
    CHECK(session.why_not_zcrx() == (arrays ? transport_obstacle::better_in_use : transport_obstacle::none));
    CHECK_THAT(session.explain(), StartsWith(arrays ? "devmem: in use: dms0" : "zcrx: in use: dms0") &&
                                      ContainsSubstring("\ncopy: not in use: ") &&
                                      ContainsSubstring("\nmemory: 8 MiB"));
}

TEST_CASE_METHOD(unchanged_nic, "what speaks against zcrx is named, and automatic takes devmem", "[smoke][choice]")
{
    if (auto const why = why_no_zcrx(); !why.empty())
        SKIP("transport zcrx: " << why);
    if (kernel_has_array_tokens())
        SKIP("this kernel has array tokens: automatic takes devmem before it tries zcrx");
    io_uring_disabled const setting{2};
    auto const session = open({.allow_zcrx = true});
    CHECK(session.transport() == transport::devmem);
    CHECK(to_string(session.why_not_zcrx()) == to_string(transport_obstacle::io_uring_disabled));
    CHECK_THAT(session.explain(), StartsWith("devmem: in use") && ContainsSubstring("\nzcrx: not in use: ") &&
                                      ContainsSubstring("kernel.io_uring_disabled is 2"));
    CHECK_THROWS_AS(open({.transport = transport::zcrx}), gpurx::system_error);
}

TEST_CASE_METHOD(unchanged_nic, "without CAP_NET_ADMIN neither devmem nor zcrx is possible, and each says so",
                 "[smoke][choice]")
{
    if (auto const why = why_no_zcrx(); !why.empty())
        SKIP("transport zcrx: " << why);
    without_net_admin const rights;
    auto const session = open({.allow_zcrx = true});
    CHECK(session.transport() == transport::copy);
    CHECK(session.why_not_zcrx() == transport_obstacle::no_rights);
    CHECK(session.why_not_devmem() == transport_obstacle::no_rights);
    CHECK_THAT(session.explain(), ContainsSubstring("CAP_NET_ADMIN in the initial user namespace"));
}
