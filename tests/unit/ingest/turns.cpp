// SPDX-License-Identifier: Apache-2.0
#include "stream/turns.hpp"

#include <catch2/catch_test_macros.hpp>
#include <string>

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
