// SPDX-License-Identifier: Apache-2.0
//
// gpurx._native: the extension under the Python package. The package's modules are the public interface.
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
    // For tests. A thread that waits at Python's end keeps its objects; nanobind would report them as leaks.
    nanobind::set_leak_warnings(false);
    module.def("warn_of_leaks", &nanobind::set_leak_warnings, nanobind::arg("warn"));
    module.def("stop", [] {
        close_sessions();
        // A forked process has no other threads, so their operations would never end.
        if (in_own_process()) {
            end_calls();
            keep_others_out();
        }
        without_gil const unlocked;
        stop_engine();
    });
}
