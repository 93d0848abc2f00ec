// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <chrono>
#include <gpurx/ingest/http.hpp>
#include <stdexcept>

#include "../net/display.hpp"
#include "../net/environment.hpp"
#include "../s3/client.hpp"
#include "../s3/location.hpp"

namespace gpurx::ingest {

namespace {

void check_field(detail::header_field const& field, std::string_view what)
{
    if (auto const* const wrong = detail::what_is_wrong(field))
        throw std::invalid_argument{fmt::format("{}: {}", what, wrong)};
}

}  // namespace

fetch_options with_rest_of_deadline(fetch_options options, std::chrono::steady_clock::time_point began)
{
    using std::chrono::milliseconds;
    if (options.deadline > milliseconds{0}) {
        auto const gone = std::chrono::ceil<milliseconds>(std::chrono::steady_clock::now() - began);
        options.deadline = gone < options.deadline ? options.deadline - gone : milliseconds{-1};
    }
    return options;
}

void check(fetch_options const& options)
{
    if (options.flows == 0 || options.chunk_size == 0 || options.attempts == 0)
        throw std::invalid_argument{"fetch_options: flows, chunk_size and attempts have to be at least 1"};
    for (auto const& [name, value] : options.headers)
        check_field({name, value}, fmt::format("header \"{}\"", detail::printable(name, 100)));
    check_field({"Authorization", options.bearer}, "the bearer token");
    if (options.tls.certificate.empty() && !options.tls.key.empty())
        throw std::invalid_argument{"a key for TLS is that of a certificate, and none is named"};
    for (auto const& each : detail::s3::servers_of(options.s3))
        detail::s3::check({each.endpoint, each.region});
}

}  // namespace gpurx::ingest
