// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <gpurx/ingest/http.hpp>
#include <map>
#include <string>

#include "../net/url.hpp"
#include "location.hpp"

namespace gpurx::ingest {

namespace {

using namespace detail;

// The part of a URL that all files of one revision share. The directory, if the URL names no revision.
std::string revision_of(std::string_view url)
{
    if (auto const found = hub::take_apart(url))
        return found->before + found->revision;
    auto const path = url.substr(0, url.find_first_of("?#"));
    return std::string{path.substr(0, path.rfind('/') + 1)};
}

[[noreturn]] void refuse(stated_commit const& file, std::string_view other)
{
    throw system_error{
        errc::object_changed,
        {.operation = "load",
         .object = redacted_url(file.url),
         .kernel_message = {},
         .advice = fmt::format("it is of commit {}, and {}; load the model again, or name a commit in its URL",
                               printable(file.commit), other)}};
}

}  // namespace

std::string url_at_commit(std::string_view url, std::string_view commit)
{
    auto const found = hub::is_commit(commit) ? hub::take_apart(url) : std::nullopt;
    return found ? fmt::format("{}{}{}", found->before, commit, found->behind) : std::string{url};
}

void check_one_commit(std::span<stated_commit const> files)
{
    std::map<std::string, stated_commit const*> known;
    for (auto const& each : files) {
        if (each.commit.empty())
            continue;
        auto const named = hub::take_apart(each.url);
        if (named && hub::is_commit(named->revision) && named->revision != each.commit)
            refuse(each, fmt::format("the request was for commit {}", named->revision));
        auto const [found, is_new] = known.try_emplace(revision_of(each.url), &each);
        if (!is_new && found->second->commit != each.commit)
            refuse(each, fmt::format("{} is of commit {}", redacted_url(found->second->url),
                                     printable(found->second->commit)));
    }
}

}  // namespace gpurx::ingest
