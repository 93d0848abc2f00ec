// SPDX-License-Identifier: Apache-2.0
//
// Operations of the engine as Python sees them: to be waited for in a thread, with Ctrl-C, or through a descriptor.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <utility>

#include "engine.hpp"

namespace gpurx::python {

namespace nb = nanobind;

class pending {
  public:
    // `convert` makes Python's object of a T, with Python's lock.
    template <class T, class Convert>
    pending(std::shared_ptr<operation_of<T>> what, Convert convert)
        : operation_{what}, take_{[what, convert] { return nb::object{convert(what->take())}; }}
    {}

    [[nodiscard]] bool is_over() const { return operation_->wait_for({}); }
    // Returns true when it is over, false if it is not after so many seconds; less than none: they do not count. Throws
    // what a signal's handler in Python raises: KeyboardInterrupt.
    bool wait(double seconds) const;
    void cancel() const { operation_->cancel(); }
    [[nodiscard]] int descriptor() const { return operation_->descriptor(); }
    // Waits, and returns or throws what came of it. Once.
    [[nodiscard]] nb::object result();

  private:
    std::shared_ptr<operation> operation_;
    std::function<nb::object()> take_;
};

void bind_operation(nb::module_& module);

}  // namespace gpurx::python
