// SPDX-License-Identifier: Apache-2.0
//
// gpurx._native: what the Python package is made of. Its files are what users see.
#include "module.hpp"

#include "conversions.hpp"
#include "engine.hpp"
#include "operation.hpp"
#include "session.hpp"

NB_MODULE(_native, module)
{
    using namespace gpurx::python;
    translate_errors();
    bind_codes(module);
    bind_tensor(module);
    bind_operation(module);
    bind_sender(module);
    bind_http_options(module);
    bind_session(module);
    bind_stream(module);
    bind_tensor_file(module);
    bind_objects(module);
    // A thread that waits when Python ends keeps what it has; that is no leak. For tests.
    nanobind::set_leak_warnings(false);
    module.def("warn_of_leaks", &nanobind::set_leak_warnings, nanobind::arg("warn"));
    module.def("stop", [] {
        close_sessions();
        // Of a forked process nobody else is there, and what they were about to do is not over.
        if (in_own_process())
            keep_others_out();
        without_gil const unlocked;
        stop_engine();
    });
}
