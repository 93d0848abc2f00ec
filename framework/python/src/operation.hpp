// SPDX-License-Identifier: Apache-2.0
//
// Operations of the engine as Python sees them: to be waited for in a thread, with Ctrl-C, or through a descriptor. And
// Python's lock, given up for a while: in the place of nanobind's gil_scoped_release. When Python ends, CPython up to
// 3.13 ends the threads that ask for its lock then, by an unwinding that no destructor of C++ lets through: the process
// would abort.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "engine.hpp"

namespace gpurx::python {

namespace nb = nanobind;

// For its scope, in a thread that has the lock. From keep_others_out() on, a thread that is to have it again stands
// still instead, until the process has ended.
class without_gil {
  public:
    without_gil() noexcept : thread_{PyEval_SaveThread()} {}
    without_gil(without_gil const&) = delete;
    without_gil& operator=(without_gil const&) = delete;
    ~without_gil();

  private:
    PyThreadState* thread_;
};

// For the end of Python, in the thread that ends it, with the lock. Returns when no other thread is about to have it
// again.
void keep_others_out() noexcept;

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

}  // namespace gpurx::python
