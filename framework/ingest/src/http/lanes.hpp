// SPDX-License-Identifier: Apache-2.0
//
// All that is wanted of an object, through several connections at once, each a lane.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "../source/fetch_plan.hpp"
#include "../together.hpp"
#include "delivery.hpp"
#include "lane.hpp"
#include "mirrors.hpp"
#include "transfer_context.hpp"

namespace gpurx::ingest::detail {

class lanes {
  public:
    // What it refers to outlives it.
    lanes(asio::any_io_executor executor, mirrors& from, delivery& to, transfer_context& context)
        : executor_{std::move(executor)}, from_{from}, to_{to}, context_{context}
    {}

    // Brings these bytes, which are in the order of the object. The first lane may have a connection, and an answer
    // under way. Throws consumer_failure.
    [[nodiscard]] asio::awaitable<void> async_run(lane first, std::vector<byte_range> wanted);
    // Not while that goes on: closes the connections that have been kept.
    void disconnect() noexcept { kept_.clear(); }

  private:
    [[nodiscard]] std::vector<lane> make_lanes(lane first);
    void keep(std::vector<lane> all);
    void check(outcomes const& of);
    [[nodiscard]] asio::awaitable<void> work(lane& of);
    // False: the last answer had less than was asked for.
    [[nodiscard]] asio::awaitable<bool> converse(lane& of);
    // False: the rest of the answer was left where it is.
    [[nodiscard]] asio::awaitable<bool> receive(lane& of, pending_request& what);
    [[nodiscard]] asio::awaitable<void> receive_piece(lane& of, pending_request& what);

    // ---- the plan, which all lanes share ----
    [[nodiscard]] std::optional<pending_request> take(bool ahead);
    void give_back(lane& of);
    void finish(lane& of);
    // Whatever the lanes that have not ended do, no byte is left for them.
    [[nodiscard]] bool is_done();
    [[nodiscard]] bool may_end(lane const& of, bool cannot_go_on);

    asio::any_io_executor executor_;
    mirrors& from_;
    delivery& to_;
    transfer_context& context_;

    std::vector<lane> kept_;  // with connections that have nothing to do

    std::mutex mutex_;  // guards what follows: lanes have strands of their own
    fetch_plan plan_;
    std::size_t working_ = 0;    // lanes that have not ended
    std::size_t under_way_ = 0;  // requests of theirs
};

}  // namespace gpurx::ingest::detail
