// SPDX-License-Identifier: Apache-2.0
//
// Operations of the engine for Python. A thread waits for them, with Ctrl-C, or an event loop through a descriptor.
// Also a scope without Python's lock, instead of nanobind's gil_scoped_release: at Python's end, CPython up to 3.13
// ends threads that request its lock. It unwinds them, which no C++ destructor permits, so the process would abort.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "engine.hpp"

namespace gpurx::python {

namespace nb = nanobind;

// Releases the lock for its scope, in a thread that has it. After keep_others_out(), a thread that would take it again
// blocks until the process has ended.
class without_gil {
  public:
    without_gil() noexcept : thread_{PyEval_SaveThread()} {}
    without_gil(without_gil const&) = delete;
    without_gil& operator=(without_gil const&) = delete;
    ~without_gil();

  private:
    PyThreadState* thread_;
};

// Holds the lock for its scope, in a thread of the engine that calls Python. After end_calls(), it does not.
class with_gil {
  public:
    with_gil() noexcept;
    with_gil(with_gil const&) = delete;
    with_gil& operator=(with_gil const&) = delete;
    ~with_gil();

    [[nodiscard]] explicit operator bool() const noexcept { return holds_; }

  private:
    bool holds_;
    PyGILState_STATE state_{};
};

// For the end of Python, with the lock held. Waits for the engine's calls of Python, and permits no more.
void end_calls() noexcept;

// For the end of Python, in the thread that ends it, with the lock held. Returns when no other thread is about to take
// the lock again.
void keep_others_out() noexcept;

// Longest delay of Ctrl-C.
inline constexpr std::chrono::milliseconds glance{50};

class pending {
  public:
    // `convert` makes a Python object of a T, with Python's lock. `hurry`: for an operation that may wait for others.
    template <class T, class Convert>
    pending(std::shared_ptr<operation_of<T>> what, Convert convert, std::function<void()> hurry = nullptr)
        : operation_{what},
          take_{[what, convert] { return nb::object{convert(what->take())}; }},
          hurry_{std::move(hurry)}
    {}

    [[nodiscard]] bool is_over() const { return operation_->wait_for({}); }
    // Returns true at the end of the operation, and false after this number of seconds; a negative number is no limit.
    // Throws the exception of a signal handler in Python, such as KeyboardInterrupt.
    bool wait(double seconds) const;
    void cancel() const { operation_->cancel(); }
    // Gives the operation priority over those without a waiter.
    void hurry() const
    {
        if (hurry_)
            hurry_();
    }
    [[nodiscard]] int descriptor() const { return operation_->descriptor(); }
    // Waits, and returns the result or throws the failure. May be called once.
    [[nodiscard]] nb::object result();

  private:
    std::shared_ptr<operation> operation_;
    std::function<nb::object()> take_;
    std::function<void()> hurry_;
};

}  // namespace gpurx::python
