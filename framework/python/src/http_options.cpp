// SPDX-License-Identifier: Apache-2.0
//
// HttpOptions: options of requests. No function returns a value that may be secret.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <gpurx/ingest/http.hpp>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "conversions.hpp"
#include "engine.hpp"
#include "module.hpp"
#include "operation.hpp"

namespace gpurx::python {

namespace {

void set_checksum(ingest::fetch_options& options, std::string_view name)
{
    using checksum = ingest::fetch_options::checksum;
    if (name == "none")
        options.crc32c = checksum::none;
    else if (name == "automatic")
        options.crc32c = checksum::automatic;
    else if (name == "always")
        options.crc32c = checksum::always;
    else
        throw nb::value_error("checksum must be 'none', 'automatic' or 'always'");
}

void set_times(ingest::fetch_options& options, double timeout, double deadline)
{
    options.timeout = milliseconds_of(timeout, "timeout", 0.001);
    options.deadline = milliseconds_of(deadline, "deadline");
}

void set_headers(ingest::fetch_options& options, std::vector<std::pair<std::string, std::string>> headers)
{
    options.headers = std::move(headers);
}

void set_bearer(ingest::fetch_options& options, std::string token)
{
    options.bearer = std::move(token);
}

void set_tls(ingest::fetch_options& options, std::string ca_file, std::string ca_directory, std::string certificate,
             std::string key)
{
    options.tls = {std::move(ca_file), std::move(ca_directory), std::move(certificate), std::move(key)};
}

ingest::s3_options::addressing parse_addressing(std::string_view name)
{
    using enum ingest::s3_options::addressing;
    if (name.empty() || name == "auto")
        return automatic;
    if (name == "path")
        return path;
    if (name == "virtual")
        return virtual_host;
    throw nb::value_error("addressing_style must be 'auto', 'path' or 'virtual'");
}

void set_s3(ingest::fetch_options& options, std::vector<std::string> endpoints, std::string region, bool anonymous,
            std::string profile, std::string_view style)
{
    options.s3 = {.region = std::move(region),
                  .anonymous = anonymous,
                  .profile = std::move(profile),
                  .style = parse_addressing(style)};
    if (!endpoints.empty()) {
        options.s3.endpoint = std::move(endpoints.front());
        options.s3.more_endpoints.assign(std::make_move_iterator(endpoints.begin() + 1),
                                         std::make_move_iterator(endpoints.end()));
    }
}

// A function of Python that supplies the credentials of a scheme. Its result is a tuple: three texts of keys, pairs of
// header fields, and the end in seconds since 1970 or None.
class supplier {
  public:
    explicit supplier(nb::callable function) : function_{function.release().ptr(), &release} {}

    ingest::request_credentials operator()(std::string_view scheme) const
    {
        with_gil const locked;
        if (!locked)
            throw std::runtime_error{"Python is ending"};
        try {
            return called(scheme);
        } catch (nb::python_error const& error) {
            auto const text = nb::cast<std::string>(nb::str(error.value()));
            auto const kind = nb::cast<std::string>(error.type().attr("__name__"));
            throw std::runtime_error{text.empty() ? kind : kind + ": " + text};
        }
    }

  private:
    using fields = std::vector<std::pair<std::string, std::string>>;
    using result = std::tuple<std::string, std::string, std::string, fields, std::optional<double>>;

    [[nodiscard]] ingest::request_credentials called(std::string_view scheme) const
    {
        auto [id, secret, token, headers, end] =
            nb::cast<result>(nb::borrow<nb::callable>(function_.get())(nb::str(scheme.data(), scheme.size())));
        ingest::request_credentials found{std::move(id), std::move(secret), std::move(token), std::move(headers), {}};
        if (end)
            found.expires = std::chrono::system_clock::time_point{
                std::chrono::duration_cast<std::chrono::system_clock::duration>(std::chrono::duration<double>{*end})};
        return found;
    }

    // Not in this thread, which may have Python's lock already.
    static void release(PyObject* function)
    {
        run_later([function] {
            with_gil const locked;
            if (locked)
                Py_DECREF(function);
        });
    }

    std::shared_ptr<PyObject> function_;
};

void set_credentials(ingest::fetch_options& options, nb::callable function, bool is_fallback)
{
    auto& to = is_fallback ? options.fallback_credentials : options.credentials;
    to = std::make_shared<ingest::credential_source>(supplier{std::move(function)});
}

ingest::fetch_options with_mirrors(ingest::fetch_options options, std::vector<std::string> urls)
{
    options.mirrors = std::move(urls);
    return options;
}

// 0 or less: the deadline has passed.
ingest::fetch_options with_deadline(ingest::fetch_options options, double seconds)
{
    options.deadline = seconds > 0 ? milliseconds_of(seconds, "deadline") : std::chrono::milliseconds{-1};
    return options;
}

}  // namespace

void bind_http_options(nb::module_& module)
{
    nb::class_<ingest::fetch_options>(module, "HttpOptions")
        .def(nb::init<>())
        .def_rw("flows", &ingest::fetch_options::flows)
        .def_rw("chunk_size", &ingest::fetch_options::chunk_size)
        .def_rw("attempts", &ingest::fetch_options::attempts)
        .def_rw("min_speed", &ingest::fetch_options::min_speed)
        .def_rw("mirrors", &ingest::fetch_options::mirrors)
        .def_rw("keep_connections", &ingest::fetch_options::keep_connections)
        .def("with_mirrors", &with_mirrors, nb::arg("urls"))
        .def("with_deadline", &with_deadline, nb::arg("seconds"))
        .def("set_times", &set_times, nb::arg("timeout"), nb::arg("deadline"))
        .def("set_checksum", &set_checksum, nb::arg("name"))
        .def("set_headers", &set_headers, nb::arg("headers"))
        .def("set_bearer", &set_bearer, nb::arg("token"))
        .def("set_tls", &set_tls, nb::arg("ca_file"), nb::arg("ca_directory"), nb::arg("certificate"), nb::arg("key"))
        .def("set_s3", &set_s3, nb::arg("endpoints"), nb::arg("region"), nb::arg("anonymous"), nb::arg("profile"),
             nb::arg("addressing_style"))
        .def("set_credentials", &set_credentials, nb::arg("function"), nb::arg("is_fallback"))
        .def("check", &ingest::check);
}

}  // namespace gpurx::python
