// SPDX-License-Identifier: Apache-2.0
//
// What a server may answer, and where it may redirect to: what is believed of it agrees with itself.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "http/request.hpp"
#include "net/message.hpp"
#include "net/url.hpp"

namespace {

using namespace gpurx::ingest::detail;

void check(bool holds)
{
    if (!holds)
        std::abort();
}

// Up to the first empty line, as it is read from a connection.
std::size_t header_size(std::string_view text)
{
    constexpr std::string_view end = "\r\n\r\n";
    auto const at = text.find(end);
    return at == std::string_view::npos ? 0 : at + end.size();
}

void read_answer(std::string_view text)
{
    gpurx::error_code code;
    std::string why;
    auto const head = parse_answer(text.substr(0, header_size(text)), code, why);
    check(!code || !why.empty());
    if (code)
        return;
    byte_range const asked{1000, 2000};
    auto const first = understand_first(head, asked, code, why);
    check(code || first.follows.begin <= first.follows.end);
    check(code || first.follows.end <= first.object.size);
    auto const bytes = understand(head, asked, {.size = 5000, .etag = "\"a\"", .last_modified = {}}, code, why);
    check(code || head.status == 200 || head.status == 416 || (bytes.begin == asked.begin && bytes.end <= asked.end));
    check(code || bytes.end <= 5000);
}

void read_location(std::string_view text)
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    auto const from = parse_url("http://host:8080/a/b?c", code, why);
    auto const to = follow(from, text, code, why);
    if (code)
        return;
    // What was accepted is accepted again, and its request is of two lines that belong together.
    auto const again = parse_url(to.text, code, why);
    check(!code && again.host == to.host && again.port == to.port && again.target == to.target);
    auto const request = get_request(to, {0, 1}, true);
    check(header_size(request) == request.size());
    check(to.target.find_first_of(" \r\n") == std::string::npos);
    check(to.authority.find_first_of(" \r\n") == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size)
{
    std::string_view const text{reinterpret_cast<char const*>(data), size};
    read_answer(text);
    read_location(text.substr(0, text.find('\n')));
    return 0;
}
