// SPDX-License-Identifier: Apache-2.0
#include "zcrx_nic.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <system_error>

namespace bench {

zcrx_nic::zcrx_nic(std::uint16_t port, std::size_t bytes)
    : memory_{memory_kind::contiguous, bytes}, rss_{nic_.rss_table()}
{
    split_headers();
    auto others = rss_;
    std::replace(others.begin(), others.end(), std::uint32_t{queue}, std::uint32_t{0});
    nic_.set_rss_table(others);
    gpurx::detail::flow_rule rule{};
    rule.match.local_port = port;
    rule.target = queue;
    rule_ = nic_.add_rule(rule);
    zcrx_queue const where{interface, queue, memory_.fd(), memory_.size()};
    if (zcrx_open(&ring_, &where) != 0)
        throw std::system_error{errno, std::system_category(), "zcrx_open"};
}

zcrx_nic::~zcrx_nic()
try {
    zcrx_close(&ring_);
    nic_.remove_rule(rule_);
    nic_.set_rss_table(rss_);
    ::usleep(200'000);  // the kernel gives the queue back later than close() returns
} catch (std::exception const& error) {
    std::fprintf(stderr, "overhead: the NIC keeps a rule of the C loop: %s\n", error.what());
}

}  // namespace bench
