// SPDX-License-Identifier: Apache-2.0
#include "location.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/string/replace.hpp>
#include <boost/url/encode.hpp>
#include <boost/url/rfc/pchars.hpp>
#include <boost/url/rfc/unreserved_chars.hpp>
#include <gpurx/ingest/error.hpp>
#include <utility>

#include "../net/url.hpp"

namespace gpurx::ingest::detail::hub {

namespace {

constexpr std::string_view scheme = "hf://";
constexpr std::string_view own_endpoint = "https://huggingface.co";
constexpr std::string_view resolve = "/resolve/";
// Kinds of repositories that have a place of their own.
constexpr std::array<std::string_view, 3> not_models{"datasets", "spaces", "buckets"};

std::string_view take_segment(std::string_view& rest)
{
    auto const segment = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(segment.size() + 1, rest.size()));
    return segment;
}

bool is_name(std::string_view text)
{
    return !text.empty() && text.front() != '.' && std::ranges::all_of(text, [](char each) {
        return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') || (each >= '0' && each <= '9') ||
               each == '-' || each == '_' || each == '.';
    });
}

// A name of Git has neither blanks nor "..".
bool is_revision(std::string_view text)
{
    return !text.empty() && text != "." && text.find("..") == std::string_view::npos &&
           std::ranges::all_of(text, [](char each) { return static_cast<unsigned char>(each) > ' ' && each != 0x7f; });
}

// refs/pr/N or refs/convert/NAME has slashes of its own, of which `rest` begins behind the first.
std::string taken_revision(std::string_view first, std::string_view& rest)
{
    std::string revision{first};
    if (first == "refs" && (rest.starts_with("pr/") || rest.starts_with("convert/"))) {
        revision.append(1, '/').append(take_segment(rest));
        revision.append(1, '/').append(take_segment(rest));
    }
    boost::algorithm::ireplace_all(revision, "%2F", "/");
    return revision;
}

std::string encoded(std::string_view text, bool keeps_slashes)
{
    return keeps_slashes ? boost::urls::encode({text.data(), text.size()}, boost::urls::pchars + '/')
                         : boost::urls::encode({text.data(), text.size()}, boost::urls::unreserved_chars);
}

}  // namespace

bool is_location(std::string_view text) noexcept
{
    return text.starts_with(scheme);
}

bool is_directory(std::string_view text)
{
    error_code code;
    diagnostics ignored;
    auto const which = parse_location(text, code, ignored);
    return code || which.file.empty() || which.file.ends_with('/');
}

location parse_location(std::string_view text, error_code& code, diagnostics& why)
{
    why = {.operation = "parse", .object = printable(text, 2000), .kernel_message = {}, .advice = {}};
    auto rest = text.substr(std::min(scheme.size(), text.size()));
    auto const owner = take_segment(rest);
    auto const named = take_segment(rest);
    auto const model = named.substr(0, named.find('@'));
    location found{.model = fmt::format("{}/{}", owner, model), .file = {}};
    if (model.size() < named.size())
        found.revision = taken_revision(named.substr(model.size() + 1), rest);
    found.file = rest;
    code.clear();
    auto const is_model = std::ranges::find(not_models, owner) == not_models.end();
    auto const is_file = rest.empty() || is_name_below(rest);
    if (is_location(text) && is_name(owner) && is_model && is_name(model) && is_revision(found.revision) && is_file)
        return found;
    code = errc::bad_url;
    why.advice =
        "write it like hf://ORG/MODEL, hf://ORG/MODEL@REVISION or hf://ORG/MODEL@REVISION/FILE, with a slash of the "
        "revision as %2F";
    return {};
}

std::string endpoint(environment const& variable)
{
    auto named = variable("HF_ENDPOINT");
    named.erase(named.find_last_not_of('/') + 1);
    return named.empty() ? std::string{own_endpoint} : named;
}

std::string url_of(location const& which, std::string_view endpoint)
{
    return fmt::format("{}/{}{}{}/{}", endpoint, which.model, resolve, encoded(which.revision, false),
                       encoded(which.file, true));
}

std::string description_url_of(location const& which, std::string_view endpoint)
{
    return fmt::format("{}/api/models/{}/revision/{}", endpoint, which.model, encoded(which.revision, false));
}

std::string_view advice_for(unsigned status) noexcept
{
    switch (status) {
        case 401:
            return "; check the name of the model; if it is private or gated, set HF_TOKEN (sent over https only) and "
                   "accept the conditions on its page";
        case 403:
            return "; accept the conditions on the model's page with the account of HF_TOKEN, and check the rights of "
                   "that token";
        case 404:
            return "; check the names of the model, the revision and the file";
        default:
            return {};
    }
}

// ---- commits ----

bool is_commit(std::string_view text) noexcept
{
    return (text.size() == 40 || text.size() == 64) && std::ranges::all_of(text, [](char each) {
               return (each >= '0' && each <= '9') || (each >= 'a' && each <= 'f') || (each >= 'A' && each <= 'F');
           });
}

std::optional<versioned_url> take_apart(std::string_view url)
{
    if (is_location(url)) {
        error_code code;
        diagnostics ignored;
        auto const which = parse_location(url, code, ignored);
        return code ? std::nullopt
                    : std::optional{versioned_url{.before = fmt::format("{}{}@", scheme, which.model),
                                                  .revision = which.revision,
                                                  .behind = fmt::format("/{}", which.file)}};
    }
    auto const path = url.substr(0, url.find_first_of("?#"));
    auto const begin = path.find(resolve) + resolve.size();
    if (begin < resolve.size())
        return std::nullopt;
    auto rest = path.substr(begin);
    auto revision = taken_revision(take_segment(rest), rest);
    if (revision.empty() || rest.empty())
        return std::nullopt;
    return versioned_url{.before = std::string{url.substr(0, begin)},
                         .revision = std::move(revision),
                         .behind = fmt::format("/{}", url.substr(path.size() - rest.size()))};
}

}  // namespace gpurx::ingest::detail::hub
