// SPDX-License-Identifier: Apache-2.0
//
// Which of an object's mirrors a connection goes to: those that fail, and those that are slow, lose their share. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace gpurx::ingest::detail {

class mirror_shares {
  public:
    explicit mirror_shares(std::size_t mirrors) : all_(mirrors) {}

    // The next connection's: of those that have failed least in a row, the one with the most speed for each connection.
    // What is not known to be slow is tried. Empty: none is left, or those that are left are not to be had now.
    [[nodiscard]] std::optional<std::size_t> choose() const;
    // Whether one would be chosen that has not failed since it was last of use.
    [[nodiscard]] bool has_sound() const;

    void began(std::size_t mirror) { ++all_[mirror].connections; }
    void ended(std::size_t mirror) { --all_[mirror].connections; }
    // An attempt at it.
    void failed(std::size_t mirror) { ++all_[mirror].failures; }
    void progressed(std::size_t mirror) { all_[mirror].failures = 0; }
    // Not to be chosen: for the moment, or for good.
    void hold(std::size_t mirror, bool held) { all_[mirror].held = held; }
    void exclude(std::size_t mirror) { all_[mirror].excluded = true; }
    // How many are not excluded.
    [[nodiscard]] std::size_t left() const;

    // What one of its connections has brought of late, in bytes per second.
    void measured(std::size_t mirror, double speed);
    // A connection to it that is no faster than this had better go to another.
    [[nodiscard]] bool is_outrun(std::size_t mirror, double speed) const;

  private:
    struct state {
        std::size_t connections = 0;
        unsigned failures = 0;
        bool held = false;
        bool excluded = false;
        std::optional<double> speed;  // of one connection

        [[nodiscard]] bool is_free() const noexcept { return !held && !excluded; }
    };

    std::vector<state> all_;
};

}  // namespace gpurx::ingest::detail
