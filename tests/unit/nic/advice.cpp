// SPDX-License-Identifier: Apache-2.0
#include "base/advice.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>

using Catch::Matchers::ContainsSubstring;
using gpurx::detail::advice_on;

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

TEST_CASE("where nothing is known, nothing is said, or only what the kernel pointed at")
{
    CHECK(advice_on("bind-rx", EXDEV).empty());
    CHECK(advice_on("set channels", EEXIST).empty());
    CHECK(advice_on("bind-rx", EXDEV, "ifindex") == "the kernel refuses the attribute ifindex");
}
