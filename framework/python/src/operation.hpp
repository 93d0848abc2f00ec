// SPDX-License-Identifier: Apache-2.0
//
// Operations of the engine as Python sees them: to be waited for in a thread, with Ctrl-C, or through a descriptor.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "engine.hpp"

namespace gpurx::python {

namespace nb = nanobind;

// How long Ctrl-C may go unnoticed.
inline constexpr std::chrono::milliseconds glance{50};

class pending {
  public:
    // `convert` makes Python's object of a T, with Python's lock. `hurry`: of one that may wait for others.
    template <class T, class Convert>
    pending(std::shared_ptr<operation_of<T>> what, Convert convert, std::function<void()> hurry = nullptr)
        : operation_{what},
          take_{[what, convert] { return nb::object{convert(what->take())}; }},
          hurry_{std::move(hurry)}
    {}

    [[nodiscard]] bool is_over() const { return operation_->wait_for({}); }
    // Returns true when it is over, false if it is not after so many seconds; less than none: they do not count. Throws
    // what a signal's handler in Python raises: KeyboardInterrupt.
    bool wait(double seconds) const;
    void cancel() const { operation_->cancel(); }
    // Somebody waits for it: it goes before those for which nobody does.
    void hurry() const
    {
        if (hurry_)
            hurry_();
    }
    [[nodiscard]] int descriptor() const { return operation_->descriptor(); }
    // Waits, and returns or throws what came of it. Once.
    [[nodiscard]] nb::object result();

  private:
    std::shared_ptr<operation> operation_;
    std::function<nb::object()> take_;
    std::function<void()> hurry_;
};

void bind_operation(nb::module_& module);

}  // namespace gpurx::python
