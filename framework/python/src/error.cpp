// SPDX-License-Identifier: Apache-2.0
#include "error.hpp"

#include <boost/system/system_error.hpp>
#include <exception>

namespace gpurx::python {

namespace {

void raise(error_code code, diagnostics const& why)
{
    auto const error = error_object(code, why);
    PyErr_SetObject(error.type().ptr(), error.ptr());
}

}  // namespace

nb::object error_object(error_code code, diagnostics const& why)
{
    auto const type = nb::module_::import_("gpurx._error").attr("Error");
    auto const text = describe(code, why);
    // Both are numbers of errno.
    auto const* const category =
        code.category() == boost::system::generic_category() ? "system" : code.category().name();
    return type(nb::str(text.c_str(), text.size()), code.value(), category, why.operation.c_str(), why.object.c_str(),
                why.kernel_message.c_str(), why.advice.c_str());
}

void translate_errors()
{
    nb::register_exception_translator([](std::exception_ptr const& failure, void*) {
        try {
            std::rethrow_exception(failure);
        } catch (system_error const& met) {
            raise(met.code(), met.why());
        } catch (boost::system::system_error const& met) {
            raise(met.code(), {});
        }
    });
}

}  // namespace gpurx::python
