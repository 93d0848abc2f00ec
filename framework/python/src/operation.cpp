// SPDX-License-Identifier: Apache-2.0
#include "operation.hpp"

#include "without_gil.hpp"

namespace gpurx::python {

namespace {

constexpr double forever = -1;

}  // namespace

bool pending::wait(double seconds) const
{
    auto const start = std::chrono::steady_clock::now();
    for (auto over = false;;) {
        {
            without_gil const unlocked;
            over = operation_->wait_for(glance);
        }
        if (over)
            return true;
        if (PyErr_CheckSignals() != 0)
            throw nb::python_error();
        if (seconds >= 0 && std::chrono::steady_clock::now() - start >= std::chrono::duration<double>{seconds})
            return false;
    }
}

nb::object pending::result()
{
    wait(forever);
    auto const take = std::exchange(take_, nullptr);
    if (take == nullptr)
        throw nb::value_error("its result was taken before");
    return take();
}

void bind_operation(nb::module_& module)
{
    nb::class_<pending>(module, "Operation")
        .def("is_over", &pending::is_over)
        .def("wait", &pending::wait, nb::arg("seconds") = forever)
        .def("cancel", &pending::cancel)
        .def("hurry", &pending::hurry)
        .def("fileno", &pending::descriptor)
        .def("result", &pending::result);
}

}  // namespace gpurx::python
