// SPDX-License-Identifier: Apache-2.0
#include "error.hpp"

#include <boost/system/system_error.hpp>
#include <exception>
#include <gpurx/ingest/error.hpp>

#include "text.hpp"

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
    auto const make = nb::module_::import_("gpurx._error").attr("error_of");
    // Both are numbers of errno.
    auto const* const category =
        code.category() == boost::system::generic_category() ? "system" : code.category().name();
    return make(text_of(describe(code, why)), code.value(), category, text_of(why.operation), text_of(why.object),
                text_of(why.kernel_message), text_of(why.advice));
}

// The names are those of the enumerators, as Python writes constants.
void bind_codes(nb::module_& module)
{
    nb::enum_<errc> own{module, "ErrorCode", nb::is_arithmetic(),
                        "What gpurx decides by itself: Error.code of category 'gpurx'."};
    own.value("ALREADY_RUNNING", errc::already_running)
        .value("TRANSPORT_UNAVAILABLE", errc::transport_unavailable)
        .value("NO_CUDA", errc::no_cuda)
        .value("MEMORY_TOO_SMALL", errc::memory_too_small)
        .value("TOO_MANY_FLOWS", errc::too_many_flows)
        .value("MEMORY_LOCKED_UP", errc::memory_locked_up)
        .value("FOREIGN_MEMORY", errc::foreign_memory)
        .value("MIXED_FRAGMENTS", errc::mixed_fragments)
        .value("QUEUE_BUSY", errc::queue_busy)
        .value("JOURNAL_INVALID", errc::journal_invalid)
        .value("BAD_DESTINATION", errc::bad_destination)
        .value("WRONG_GPU", errc::wrong_gpu)
        .value("UNUSABLE_STREAM", errc::unusable_stream)
        .value("BEYOND_LOAN_LIMIT", errc::beyond_loan_limit);
    nb::enum_<ingest::errc> of_ingest{
        module, "IngestErrorCode", nb::is_arithmetic(),
        "What loading objects and streams of tensors decide: Error.code of category 'gpurx.ingest'."};
    of_ingest.value("BAD_URL", ingest::errc::bad_url)
        .value("BAD_RESPONSE", ingest::errc::bad_response)
        .value("HTTP_STATUS", ingest::errc::http_status)
        .value("BAD_REDIRECT", ingest::errc::bad_redirect)
        .value("UNKNOWN_SIZE", ingest::errc::unknown_size)
        .value("WRONG_RANGE", ingest::errc::wrong_range)
        .value("OBJECT_CHANGED", ingest::errc::object_changed)
        .value("GAVE_UP", ingest::errc::gave_up)
        .value("WRONG_CHECKSUM", ingest::errc::wrong_checksum)
        .value("BAD_SAFETENSORS", ingest::errc::bad_safetensors)
        .value("BAD_FRAME", ingest::errc::bad_frame)
        .value("STREAM_CUT", ingest::errc::stream_cut)
        .value("WRONG_SOURCE", ingest::errc::wrong_source)
        .value("NO_CREDENTIALS", ingest::errc::no_credentials)
        .value("TLS_FAILURE", ingest::errc::tls_failure)
        .value("WRONG_SECRET", ingest::errc::wrong_secret)
        .value("EPOCH_ENDED", ingest::errc::epoch_ended)
        .value("MIRRORS_DIFFER", ingest::errc::mirrors_differ);
    // As enum.IntEnum has it: the number, in messages that programs write.
    for (nb::object const& each : {nb::object{own}, nb::object{of_ingest}})
        each.attr("__str__") = nb::module_::import_("builtins").attr("int").attr("__repr__");
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
