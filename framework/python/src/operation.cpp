// SPDX-License-Identifier: Apache-2.0
#include "operation.hpp"

#include <unistd.h>

namespace gpurx::python {

namespace {

// How long Ctrl-C may go unnoticed.
constexpr std::chrono::milliseconds glance{50};

}  // namespace

void pending::wait() const
{
    for (auto over = false;;) {
        {
            nb::gil_scoped_release const unlocked;
            over = operation_->wait_for(glance);
            while (stopped_by_another())
                ::pause();
        }
        if (over)
            return;
        if (PyErr_CheckSignals() != 0)
            throw nb::python_error();
    }
}

nb::object pending::result()
{
    wait();
    auto const take = std::exchange(take_, nullptr);
    if (take == nullptr)
        throw nb::value_error("its result was taken before");
    return take();
}

void bind_operation(nb::module_& module)
{
    nb::class_<pending>(module, "Operation")
        .def("is_over", &pending::is_over)
        .def("wait", &pending::wait)
        .def("cancel", &pending::cancel)
        .def("fileno", &pending::descriptor)
        .def("result", &pending::result);
}

}  // namespace gpurx::python
