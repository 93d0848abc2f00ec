// SPDX-License-Identifier: Apache-2.0
#include "stream/epoch.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <string>

using gpurx::ingest::detail::source_progress;
using verdict = source_progress::verdict;
using gpurx::ingest::detail::shuffled;
using gpurx::ingest::detail::split_mix;
using gpurx::ingest::detail::turns;

namespace {

// Frames of source 0, 1, … are written a, b, …; those that can be placed are, in order.
class rounds {
  public:
    rounds(std::size_t sources, bool in_rounds) : turns_{sources, in_rounds} {}

    std::string arrive(std::string const& frames)
    {
        for (auto const frame : frames) {
            names_ += frame;
            REQUIRE(turns_.take(static_cast<std::size_t>(frame - 'a')) == names_.size() - 1);
        }
        return placed();
    }
    std::string end(char source)
    {
        turns_.end(static_cast<std::size_t>(source - 'a'));
        return placed();
    }
    [[nodiscard]] std::size_t waiting() const { return turns_.waiting(); }

  private:
    std::string placed()
    {
        std::string order;
        while (auto const next = turns_.next()) {
            order += names_[*next];
            turns_.placed();
        }
        return order;
    }

    turns turns_;
    std::string names_;
};

}  // namespace

TEST_CASE("As they come, frames are placed in the order of their completion")
{
    rounds in{3, false};
    CHECK(in.arrive("cabbac") == "cabbac");
    CHECK(in.end('a').empty());
    CHECK(in.end('c').empty());
    CHECK(in.arrive("bb") == "bb");
    CHECK(in.waiting() == 0);
}

TEST_CASE("In rounds, the order is that of the sources whatever comes first")
{
    rounds in{3, true};
    CHECK(in.arrive("ccb").empty());
    CHECK(in.waiting() == 3);
    CHECK(in.arrive("a") == "abc");
    CHECK(in.arrive("b").empty());
    CHECK(in.arrive("a") == "abc");
    CHECK(in.waiting() == 0);
}

TEST_CASE("In rounds, a source that ended is left out once its frames are placed")
{
    rounds in{3, true};
    CHECK(in.arrive("aab") == "ab");
    CHECK(in.end('a').empty());
    CHECK(in.arrive("cbc") == "cabc");
    CHECK(in.arrive("b") == "b");
    CHECK(in.end('c').empty());
    CHECK(in.arrive("bb") == "bb");
    CHECK(in.end('b').empty());
}

TEST_CASE("In rounds, the end of the source that all wait for lets the others go on")
{
    rounds in{3, true};
    CHECK(in.arrive("bcbc").empty());
    CHECK(in.end('a') == "bcbc");
    rounds one{1, true};
    CHECK(one.arrive("aa") == "aa");
    CHECK(one.end('a').empty());
}

TEST_CASE("A source's frames are taken once each, in order")
{
    source_progress progress;
    CHECK(progress.judge(0) == verdict::next);
    CHECK(progress.judge(1) == verdict::gap);
    progress.take(false);
    progress.take(false);
    CHECK(progress.expected() == 2);
    CHECK(progress.judge(0) == verdict::duplicate);
    CHECK(progress.judge(1) == verdict::duplicate);
    CHECK(progress.judge(2) == verdict::next);
    CHECK(progress.judge(3) == verdict::gap);
    CHECK(progress.judge(~std::uint64_t{0}) == verdict::gap);
}

TEST_CASE("After the last frame there are only duplicates")
{
    source_progress progress;
    progress.take(false);
    progress.take(true);
    CHECK(progress.last_taken());
    CHECK(progress.judge(1) == verdict::duplicate);
    CHECK(progress.judge(2) == verdict::after_end);
    CHECK(progress.judge(3) == verdict::after_end);
}

TEST_CASE("SplitMix64 gives the numbers that its authors' program gives")
{
    split_mix random{1234567};
    CHECK(random() == 6457827717110365317U);
    CHECK(random() == 3203168211198807973U);
    CHECK(random() == 9817491932198370423U);
}

TEST_CASE("Shuffled rows are all there, and in an order of seed, epoch and window")
{
    auto const order = shuffled(1000, 1, 2, 3);
    auto sorted = order;
    std::ranges::sort(sorted);
    for (std::size_t i = 0; i < sorted.size(); ++i)
        REQUIRE(sorted[i] == i);
    CHECK(order == shuffled(1000, 1, 2, 3));
    CHECK(order != shuffled(1000, 2, 2, 3));
    CHECK(order != shuffled(1000, 1, 3, 3));
    CHECK(order != shuffled(1000, 1, 2, 4));
    CHECK(shuffled(1, 1, 2, 3) == std::vector<std::size_t>{0});
}

TEST_CASE("Every order is about as likely as the others")
{
    std::array<int, 27> seen{};
    constexpr int tries = 6000;
    for (std::uint64_t window = 0; window < tries; ++window) {
        auto const order = shuffled(3, 42, 0, window);
        ++seen[order[0] * 9 + order[1] * 3 + order[2]];
    }
    CHECK(std::ranges::count(seen, 0) == 27 - 6);
    for (auto const count : seen)
        CHECK((count == 0 || (count > 850 && count < 1150)));
}
