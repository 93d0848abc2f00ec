// SPDX-License-Identifier: Apache-2.0
//
// The servers that have an object: its URL's, and those of fetch_options::mirrors. All have the same object. Each
// connection chooses one.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/ingest/http.hpp>

#include "../net/retry.hpp"
#include "lane.hpp"
#include "mirror_shares.hpp"

namespace gpurx::ingest::detail {

// Safe from several strands after async_open() has completed.
class mirrors {
  public:
    // Errors: those of object's constructor. The context must outlive this.
    mirrors(std::string_view text, transfer_context& context);

    // Opens the first usable mirror through this lane. Its response is then in flight on the lane, and it defines the
    // object.
    [[nodiscard]] asio::awaitable<void> async_open(lane& by);
    [[nodiscard]] mirror const& first() const noexcept { return *first_; }
    [[nodiscard]] bool are_several() const noexcept { return all_.size() > 1; }

    // Connects the lane to the next mirror, and opens the mirror if necessary. Errors: those of connecting and opening,
    // and errc::mirrors_differ.
    [[nodiscard]] asio::awaitable<void> async_connect(lane& by);
    // The lane has lost its connection, and gets no other.
    void leave(lane& by);

    // Classifies a failure of the lane. Returns a passing_error if another attempt may succeed, at its mirror or at
    // another. Otherwise rethrows the failure.
    [[nodiscard]] passing_error passing(system_error const& failure, lane const& of);
    // Returns whether the next attempt uses another mirror, so that it need not wait.
    [[nodiscard]] bool has_sound() const;
    // Notes that the lane's mirror has delivered the requested bytes, at this speed in bytes per second.
    void progressed(lane const& of, double speed);

    [[nodiscard]] std::vector<mirror_stats> stats() const;

  private:
    class opening_turn;

    [[nodiscard]] bool assign(lane& to);
    // The mirror refuses an object that it has served: resolve its URL again. Returns false if that was done just now.
    [[nodiscard]] bool renew(mirror& refused);
    [[nodiscard]] asio::awaitable<void> open(lane& by, mirror& what);
    // Empty if there is no other mirror.
    [[nodiscard]] speed_check check_of(mirror const& what);
    void exclude(mirror& what, system_error const& failure);
    [[nodiscard]] std::string words_of_others(mirror const& than) const;

    transfer_context& context_;
    std::vector<mirror_place> places_;          // of all
    std::vector<std::shared_ptr<mirror>> all_;  // mutex_ guards the pointers
    std::shared_ptr<mirror> first_;             // first opened; before that, first of all
    url secrets_for_;

    mutable std::mutex mutex_;  // guards the members below, and those marked as guarded
    mirror_shares shares_;
};

}  // namespace gpurx::ingest::detail
