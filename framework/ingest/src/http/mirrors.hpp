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

// From several strands, once async_open is done.
class mirrors {
  public:
    // Errors: as of object's constructor. The context outlives it.
    mirrors(std::string_view text, transfer_context& context);

    // The first that can be opened, through this lane, on which its answer is under way then; it says what the object
    // is.
    [[nodiscard]] asio::awaitable<void> async_open(lane& by);
    [[nodiscard]] mirror const& first() const noexcept { return *first_; }
    [[nodiscard]] bool are_several() const noexcept { return all_.size() > 1; }

    // Connects the lane to the mirror whose turn it is, which is opened if it has not been. Errors: those of connecting
    // and opening, and errc::mirrors_differ.
    [[nodiscard]] asio::awaitable<void> async_connect(lane& by);
    // The lane has no connection any more, and will not have another.
    void leave(lane& by);

    // What a failure of the lane's means: another attempt may go better, at its mirror or at another; else it is thrown
    // on.
    [[nodiscard]] passing_error passing(system_error const& failure, lane const& of);
    // Whether the next attempt is made elsewhere, so that it need not wait.
    [[nodiscard]] bool has_sound() const;
    // The lane's mirror has brought what it was asked for, in so many bytes per second.
    void progressed(lane const& of, double speed);

    [[nodiscard]] std::vector<mirror_stats> stats() const;

  private:
    class opening_turn;

    [[nodiscard]] bool assign(lane& to);
    // The mirror has refused what it served before: it is to be found anew, from its URL. False: it was just now.
    [[nodiscard]] bool renew(mirror& refused);
    [[nodiscard]] asio::awaitable<void> open(lane& by, mirror& what);
    // Empty: there is nobody else.
    [[nodiscard]] speed_check check_of(mirror const& what);
    void exclude(mirror& what, system_error const& failure);
    [[nodiscard]] std::string words_of_others(mirror const& than) const;

    transfer_context& context_;
    std::vector<mirror_place> places_;          // of all
    std::vector<std::shared_ptr<mirror>> all_;  // which of them there are is guarded
    std::shared_ptr<mirror> first_;             // to be opened; until then, of all
    url secrets_for_;

    mutable std::mutex mutex_;  // guards what follows, and what is said to be guarded
    mirror_shares shares_;
};

}  // namespace gpurx::ingest::detail
