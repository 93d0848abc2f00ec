// SPDX-License-Identifier: Apache-2.0
//
// The first request for an object: it finds where that is, and what.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <optional>

#include "../net/message.hpp"
#include "lane.hpp"
#include "mirror.hpp"
#include "origin.hpp"
#include "request.hpp"
#include "transfer_context.hpp"

namespace gpurx::ingest::detail {

class opening {
  public:
    // What it refers to outlives it.
    opening(lane& by, mirror& what, transfer_context& context, std::uint64_t size)
        : by_{by}, what_{what}, from_{what.from}, context_{context}, size_{size}
    {}

    // Connects, follows redirects, and reads the header of the answer to a request for the first `size` bytes; that
    // request is then under way on the lane.
    [[nodiscard]] asio::awaitable<opened_object> async_open();

  private:
    // Empty: it is to be asked for in another way, or elsewhere.
    [[nodiscard]] asio::awaitable<std::optional<opened_object>> attempt();
    // The request's answer brings the object elsewhere, or would without a range.
    [[nodiscard]] bool is_elsewhere(answer const& head);
    [[nodiscard]] bool is_refused_range(answer const& head);

    lane& by_;
    mirror& what_;
    origin& from_;
    transfer_context& context_;
    std::uint64_t size_;
};

}  // namespace gpurx::ingest::detail
