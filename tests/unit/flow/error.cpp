// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <gpurx/error.hpp>
#include <set>
#include <string>

#include "base/failure.hpp"

namespace gpurx {

using Catch::Matchers::ContainsSubstring;
using detail::advice_on;

TEST_CASE("every errc has a text of its own")
{
    std::set<std::string> texts;
    for (int value = static_cast<int>(errc::already_running); value <= static_cast<int>(errc::beyond_loan_limit);
         ++value)
        texts.insert(gpurx_category().message(value));
    CHECK(texts.size() == 14);
    auto const unknown = gpurx_category().message(0);
    CHECK(texts.count(unknown) == 0);
    CHECK(unknown == gpurx_category().message(15));
    CHECK(error_code{errc::no_cuda}.category() == gpurx_category());
    CHECK(std::string{gpurx_category().name()} == "gpurx");
}

TEST_CASE("describe() leaves out unknown parts of an error")
{
    error_code const code{22, boost::system::system_category()};
    CHECK(describe(code, {}) == "Invalid argument");
    CHECK(describe(code, {.operation = "bind-rx", .object = {}, .kernel_message = {}, .advice = {}}) ==
          "bind-rx: Invalid argument");
    CHECK(describe(code, {.operation = "bind-rx", .object = "eth1 queue 15", .kernel_message = {}, .advice = {}}) ==
          "bind-rx eth1 queue 15: Invalid argument");
    CHECK(describe(code, {.operation = {}, .object = {}, .kernel_message = "no", .advice = {}}) ==
          "(kernel: no): Invalid argument");
    diagnostics const all{.operation = "bind-rx",
                          .object = "eth1 queue 15",
                          .kernel_message = "tcp-data-split is disabled",
                          .advice = "turn it on"};
    CHECK(describe(code, all) ==
          "bind-rx eth1 queue 15 (kernel: tcp-data-split is disabled): Invalid argument; turn it on");

    system_error const failure{code, all};
    CHECK(std::string{failure.what()} == describe(code, all));
    CHECK(failure.code() == code);
    CHECK(failure.why() == all);
    system_error const copy{failure};
    CHECK(std::string{copy.what()} == describe(code, all));
}

TEST_CASE("cleared diagnostics are empty")
{
    diagnostics why{.operation = "a", .object = "b", .kernel_message = "c", .advice = "d"};
    why.clear();
    CHECK(why == diagnostics{});
}

TEST_CASE("advice goes by operation, errno and attribute")
{
    CHECK_THAT(advice_on("bind-rx", EPERM), ContainsSubstring("CAP_NET_ADMIN"));
    CHECK_THAT(advice_on("set channels", EPERM), ContainsSubstring("CAP_NET_ADMIN"));
    CHECK_THAT(advice_on("bind-rx", EINVAL), ContainsSubstring("tcp-data-split on"));
    // The kernel does not say which attribute.
    CHECK_THAT(advice_on("bind-rx", EINVAL), ContainsSubstring("dmabuf"));
    CHECK_THAT(advice_on("bind-rx", EINVAL, "queues.id"), ContainsSubstring("no such RX queue"));
    CHECK_THAT(advice_on("bind-rx", EEXIST), ContainsSubstring("XDP"));
    CHECK_THAT(advice_on("bind-rx", EOPNOTSUPP), ContainsSubstring("queue management"));
    CHECK_THAT(advice_on("bind-rx", 524), ContainsSubstring("nvidia-smi topo -m") && ContainsSubstring("ACS") &&
                                              ContainsSubstring("GrdmaPciTopoCheckOverride"));
    CHECK_THAT(advice_on("bind-rx", ENOMEM), ContainsSubstring("BAR1"));
    CHECK_THAT(advice_on("bind-rx", ENODATA), ContainsSubstring("header split"));
}

TEST_CASE("advice on queues of io_uring names their own rights and limits")
{
    constexpr char registration[] = "register with io_uring";
    CHECK_THAT(advice_on(registration, EPERM), ContainsSubstring("initial user namespace"));
    CHECK_THAT(advice_on(registration, EEXIST), ContainsSubstring("former owner"));
    CHECK_THAT(advice_on(registration, EBUSY), ContainsSubstring("leased"));
    CHECK_THAT(advice_on(registration, EOPNOTSUPP), ContainsSubstring("queue management"));
    CHECK_THAT(advice_on(registration, ERANGE), ContainsSubstring("no such RX queue"));
    CHECK_THAT(advice_on(registration, EINVAL), ContainsSubstring("tcp-data-split on"));
    CHECK_THAT(advice_on(registration, ENOMEM), ContainsSubstring("RLIMIT_MEMLOCK"));
    CHECK(advice_on(registration, 524) == advice_on("bind-rx", 524));
    CHECK(advice_on(registration, EXDEV).empty());
    CHECK_THAT(advice_on("import with io_uring", EPERM), ContainsSubstring("each thread"));
    CHECK_THAT(advice_on("make ring", EPERM), ContainsSubstring("kernel.io_uring_disabled"));
    CHECK_THAT(advice_on("make ring", ENOSYS), ContainsSubstring("seccomp"));
}

TEST_CASE("advice on an unknown error is empty, or names the attribute of the kernel")
{
    CHECK(advice_on("bind-rx", EXDEV).empty());
    CHECK(advice_on("set channels", EEXIST).empty());
    CHECK(advice_on("bind-rx", EXDEV, "ifindex") == "the kernel refuses the attribute ifindex");
}

}  // namespace gpurx
