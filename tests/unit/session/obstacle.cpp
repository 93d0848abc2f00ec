// SPDX-License-Identifier: Apache-2.0
#include "session/obstacle.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cerrno>

namespace gpurx::detail {

namespace {

devmem_obstacle of(int error, std::string_view operation, bool by_daemon = false)
{
    return obstacle_of({error, boost::system::system_category()}, operation, by_daemon);
}

}  // namespace

TEST_CASE("an error of a NIC says which prerequisite of devmem is missing")
{
    using enum devmem_obstacle;
    CHECK(obstacle_of(errc::memory_too_small, "share out memory", false) == memory_too_small);
    CHECK(obstacle_of(errc::queue_busy, "lease", false) == too_few_queues);
    CHECK(obstacle_of(errc::journal_invalid, "read journal", true) == state_directory);
    CHECK(of(EPERM, "get rings") == no_rights);
    CHECK(of(EPERM, "use state directory") == state_directory);
    CHECK(of(ETIMEDOUT, "take lock") == state_directory);
    CHECK(of(EOPNOTSUPP, "get rings") == no_header_split);
    CHECK(of(EINVAL, "set tcp-data-split") == no_header_split);
    CHECK(of(ERANGE, "lease") == too_few_queues);
    CHECK(of(EINVAL, "set channels") == too_few_queues);
    CHECK(of(ENETDOWN, "bind") == interface_down);
    CHECK(of(ENODEV, "bind-rx") == interface_down);
    CHECK(of(EOPNOTSUPP, "bind-rx") == not_bound);
    CHECK(of(ENOSPC, "add RSS context") == other);
}

TEST_CASE("what gpurxd refuses is told from what the NIC refuses through it")
{
    using enum devmem_obstacle;
    CHECK(of(EACCES, "open", true) == refused_by_gpurxd);
    CHECK(of(EUSERS, "open", true) == refused_by_gpurxd);
    CHECK(of(ECONNRESET, "ask", true) == refused_by_gpurxd);
    CHECK(of(EACCES, "connect to", true) == refused_by_gpurxd);
    CHECK(of(EOPNOTSUPP, "bind-rx", true) == not_bound);
    CHECK(of(EOPNOTSUPP, "get rings", true) == no_header_split);
}

}  // namespace gpurx::detail
