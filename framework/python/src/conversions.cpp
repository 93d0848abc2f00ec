// SPDX-License-Identifier: Apache-2.0
#include "conversions.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <boost/system/system_error.hpp>
#include <charconv>
#include <cmath>
#include <exception>
#include <gpurx/ingest/error.hpp>
#include <optional>
#include <string>

#include "module.hpp"

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

constexpr char own_codes[] = R"(Errors of gpurx itself: Error.code of category 'gpurx'.

* ALREADY_RUNNING: another operation is pending on the same object.
* TRANSPORT_UNAVAILABLE: the requested transport cannot work here. Error.advice names the missing prerequisite.
* NO_CUDA: the library was built without CUDA, or no driver is installed.
* MEMORY_TOO_SMALL: the memory is too small for `max_flows` flows.
* TOO_MANY_FLOWS: the session already has `max_flows` flows.
* MEMORY_LOCKED_UP: out-of-order data held every page, and the flow was ended. Give the session more memory.
* FOREIGN_MEMORY: data arrived in device memory of another process, and the flow is over.
* MIXED_FRAGMENTS: a segment lies in both device and host memory, and the flow is over. The NIC driver is at fault.
* QUEUE_BUSY: another user holds a queue that the session needs.
* JOURNAL_INVALID: a journal in the state directory is damaged or of another program. Nothing was changed.
* BAD_DESTINATION: the transport cannot write to memory of this size or kind.
* WRONG_GPU: the stream belongs to another GPU than the memory.
* UNUSABLE_STREAM: the stream is being captured into a CUDA graph, or is CU_STREAM_PER_THREAD.
* BEYOND_LOAN_LIMIT: a call asked for more bytes than one flow may have on loan.)";

constexpr char codes_of_ingest[] = R"(Errors of loads and of tensor streams: Error.code of category 'gpurx.ingest'.

* BAD_URL: the text is no URL of http, https, s3 or hf, or the URL cannot be used.
* BAD_RESPONSE: the answer is not HTTP/1.1, or its header is larger than 16 KiB.
* HTTP_STATUS: the server answered with a status that is no success. See Error.status, NotFound and Forbidden.
* BAD_REDIRECT: the server redirected more than 10 times, or to a URL that cannot be used.
* UNKNOWN_SIZE: the answer has no length.
* WRONG_RANGE: the answer has other bytes than the requested ones.
* OBJECT_CHANGED: the object has changed since the load began.
* GAVE_UP: the server is slower than `timeout`, `min_speed` or `deadline` allow, or every attempt ended early.
* WRONG_CHECKSUM: the bytes do not have the announced checksum.
* BAD_SAFETENSORS: the file breaks the format.
* BAD_FRAME: a sender sent bytes that are no frame of this version.
* STREAM_CUT: a sender's connection ended before its last frame, and the sender did not reconnect in time.
* WRONG_SOURCE: a sender has the number of another sender, or a number outside the stream.
* NO_CREDENTIALS: there are no credentials for S3, or the service that issues them returned none.
* TLS_FAILURE: TLS with the server failed, or a file of `ca`, `cert` or `key` cannot be used.
* WRONG_SECRET: a sender does not know the stream's secret, or uses version 1 of the protocol, which has none.
* EPOCH_ENDED: all sources have ended an epoch. This is no failure.
* MIRRORS_DIFFER: the URLs of an object have different content.)";

// The names are those of the enumerators, in capitals.
void bind_codes(nb::module_& module)
{
    nb::enum_<errc> own{module, "ErrorCode", nb::is_arithmetic(), own_codes};
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
    nb::enum_<ingest::errc> of_ingest{module, "IngestErrorCode", nb::is_arithmetic(), codes_of_ingest};
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
    // As for enum.IntEnum, str() is the number.
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

nb::str text_of(std::string_view text)
{
    return nb::steal<nb::str>(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

std::chrono::milliseconds milliseconds_of(double seconds, char const* name, double least)
{
    constexpr double most = 1e9;  // some thirty years
    if (!(seconds >= least && seconds <= most))
        throw nb::value_error(fmt::format("{} is a number of seconds, not {}; {} is the least, and {} the most", name,
                                          seconds, least, most)
                                  .c_str());
    return std::chrono::milliseconds{std::llround(std::ceil(seconds * 1000))};
}

// ---- devices ----

namespace {

constexpr char no_device[] =
    "is no place for memory: None, 'cpu' and 'host' are the host's; 0, 'gpu:0', 'cuda:0' and torch.device('cuda', 0) a "
    "GPU's";

[[noreturn]] void refuse_device(nb::handle device)
{
    auto const text = nb::cast<std::string>(nb::repr(device));
    throw nb::value_error(fmt::format("{} {}", text, no_device).c_str());
}

int device_named(std::string_view name, nb::handle given)
{
    if (name == "host" || name == "cpu")
        return host;
    for (std::string_view const kind : {"gpu", "cuda"}) {
        if (!name.starts_with(kind))
            continue;
        auto const rest = name.substr(kind.size());
        if (rest.empty())
            return 0;
        int ordinal = 0;
        auto const [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), ordinal);
        if (rest.front() == ':' && error == std::errc{} && end == rest.data() + rest.size() && ordinal >= 0)
            return ordinal;
    }
    refuse_device(given);
}

int ordinal_of(nb::handle number, nb::handle given)
{
    auto const exact = nb::steal(PyNumber_Index(number.ptr()));
    int ordinal = -1;
    if (!exact.is_valid())
        throw nb::python_error();
    if (!nb::try_cast(exact, ordinal) || ordinal < 0)
        refuse_device(given);
    return ordinal;
}

bool is_number(nb::handle what)
{
    return !PyBool_Check(what.ptr()) && PyIndex_Check(what.ptr()) != 0;
}

// Reads an object like torch.device. Nothing: it is no such object.
std::optional<int> device_of_object(nb::handle device)
{
    if (!nb::hasattr(device, "type") || !nb::hasattr(device, "index"))
        return std::nullopt;
    auto const kind = device.attr("type");
    nb::object const index = device.attr("index");
    if (!nb::isinstance<nb::str>(kind) || !(index.is_none() || is_number(index)))
        return std::nullopt;
    auto const name = nb::cast<std::string>(kind);
    if (name == "cpu")
        return host;
    if (name != "cuda")
        refuse_device(device);
    return index.is_none() ? 0 : ordinal_of(index, device);
}

}  // namespace

int parse_device(nb::handle device)
{
    if (device.is_none())
        return host;
    if (nb::isinstance<nb::str>(device))
        return device_named(nb::cast<std::string>(device), device);
    if (auto const known = device_of_object(device))
        return *known;
    if (is_number(device))
        return ordinal_of(device, device);
    auto const text = nb::cast<std::string>(nb::repr(device));
    throw nb::type_error(fmt::format("{} {}", text, no_device).c_str());
}

}  // namespace gpurx::python
