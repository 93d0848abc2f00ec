// SPDX-License-Identifier: Apache-2.0
//
// HttpOptions: options of requests. No function returns a value that may be secret.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <gpurx/ingest/http.hpp>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conversions.hpp"
#include "module.hpp"

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
        .def("check", &ingest::check);
}

}  // namespace gpurx::python
