// SPDX-License-Identifier: Apache-2.0
//
// What s3_test.py asks of the library:
//
//   s3_probe sign             a JSON object per line in, target and Authorization out, for s3_signatures.py to compare
//   s3_probe list PREFIX      the objects that begin like this, as a JSON array; or the error
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/json.hpp>
#include <gpurx/ingest/http.hpp>
#include <iostream>
#include <string>

#include "s3/location.hpp"
#include "s3/sigv4.hpp"

namespace {

namespace json = boost::json;
namespace s3 = gpurx::ingest::detail::s3;

std::string text_in(json::object const& of, std::string_view name)
{
    return json::value_to<std::string>(of.at(name));
}

std::string target_of(json::object const& request)
{
    auto const query = json::value_to<std::vector<std::pair<std::string, std::string>>>(request.at("query"));
    auto target = "/" + s3::encoded(text_in(request, "path"), true);
    return query.empty() ? target : target + "?" + s3::query_text(query);
}

std::string signature_of(json::object const& request, std::string_view target)
{
    gpurx::ingest::detail::header_fields fields;
    for (auto const& [name, value] : request.at("fields").as_object())
        fields.push_back({name, json::value_to<std::string>(value)});
    auto const method = text_in(request, "method");
    auto const payload = text_in(request, "payload");
    auto const added =
        s3::signature_fields({.method = method, .target = target, .fields = fields, .payload_hash = payload},
                             {.access_key = text_in(request, "access_key"),
                              .secret_key = text_in(request, "secret_key"),
                              .session_token = text_in(request, "session_token"),
                              .expires = {}},
                             text_in(request, "region"), s3::parse_time(text_in(request, "time")).value());
    return added.back().value;
}

void sign()
{
    for (std::string line; std::getline(std::cin, line);) {
        auto const request = json::parse(line).as_object();
        auto const target = target_of(request);
        std::cout << json::serialize(json::array{target, signature_of(request, target)}) << '\n';
    }
}

int list(std::string const& prefix)
{
    boost::asio::io_context context{1};
    auto listing = boost::asio::co_spawn(context, gpurx::ingest::async_list_s3(prefix), boost::asio::use_future);
    context.run();
    try {
        json::array objects;
        for (auto const& each : listing.get())
            objects.push_back(json::array{each.url, each.size, each.etag});
        std::cout << json::serialize(objects) << '\n';
        return 0;
    } catch (gpurx::system_error const& error) {
        std::cerr << "error: " << error.what() << '\n';
        return 1;
    }
}

}  // namespace

int main(int argc, char** argv)
{
    if (argc > 2)
        return list(argv[2]);
    sign();
}
