// SPDX-License-Identifier: Apache-2.0
//
// Python's lock, given up for a while: in the place of nanobind's gil_scoped_release. When Python ends, CPython up to
// 3.13 ends the threads that ask for its lock then, by an unwinding that no destructor of C++ lets through: the process
// would abort.
#pragma once

#include <nanobind/nanobind.h>

namespace gpurx::python {

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

}  // namespace gpurx::python
