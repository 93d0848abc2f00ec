// SPDX-License-Identifier: Apache-2.0
//
// What was measured, as a table for people and as JSON; and the bars that it is held to.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "clock.hpp"

namespace gpurx::bench {

using value = std::variant<double, std::string>;
using fields = std::vector<std::pair<std::string, value>>;

// A figure and its limit.
struct bar {
    std::string name;
    double figure = 0;
    std::string unit;
    double limit = 0;
    bool at_least = false;

    [[nodiscard]] bool holds() const noexcept { return at_least ? figure >= limit : figure <= limit; }
};

// Rows of one benchmark, all with the same names.
struct section {
    std::string name;
    std::string about;  // what the columns mean
    std::vector<fields> rows;
};

class report {
  public:
    // Bars that are not judged are left out: small sizes, or no real GPU.
    explicit report(bool judging) : judging_{judging} {}

    void set(std::string name, value what) { head_.emplace_back(std::move(name), std::move(what)); }
    section& begin(std::string name, std::string about);
    // Prints the section that was begun last.
    void print_section() const;
    void add(bar what);
    // Something that was not measured, and why.
    void skip(std::string what, std::string reason);
    // Something that went wrong: a wrong byte, an exception.
    void fail(std::string what, std::string reason);

    // Prints bars and failures. 0; 1 if something failed, 3 if a bar falls short.
    [[nodiscard]] int finish() const;
    [[nodiscard]] std::string json() const;

  private:
    struct remark {
        std::string what;
        std::string reason;
    };
    [[nodiscard]] bool bars_hold() const noexcept;

    bool judging_;
    fields head_;
    std::deque<section> sections_;  // references to them stay valid
    std::vector<bar> bars_;
    std::vector<remark> skipped_;
    std::vector<remark> failed_;
};

// NAME, NAME_min and NAME_max.
void add_samples(fields& row, std::string const& name, samples const& of);

}  // namespace gpurx::bench
