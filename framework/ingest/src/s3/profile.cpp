// SPDX-License-Identifier: Apache-2.0
#include "profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/algorithm/string/case_conv.hpp>
#include <boost/beast/core/string.hpp>
#include <initializer_list>
#include <locale>

namespace gpurx::ingest::detail::s3 {

namespace {

constexpr std::string_view space = " \t\r\v\f";

bool is_space(char each) noexcept
{
    return space.find(each) != std::string_view::npos;
}

std::string_view trimmed(std::string_view text) noexcept
{
    text.remove_prefix(std::min(text.find_first_not_of(space), text.size()));
    return text.substr(0, text.find_last_not_of(space) + 1);
}

// "[profile x]" of the one file is "[x]" of the other.
std::string section_named(std::string_view line)
{
    auto name = trimmed(line.substr(1, line.find(']') - 1));
    constexpr std::string_view prefix = "profile";
    if (name.starts_with(prefix) && name.size() > prefix.size() && is_space(name[prefix.size()]))
        name = trimmed(name.substr(prefix.size()));
    if (name.size() >= 2 && name.front() == name.back() && (name.front() == '"' || name.front() == '\''))
        name = name.substr(1, name.size() - 2);
    return std::string{name};
}

std::string first_of(std::initializer_list<std::string> candidates)
{
    auto const* const found = std::ranges::find_if(candidates, [](auto const& each) { return !each.empty(); });
    return found == candidates.end() ? std::string{} : *found;
}

std::string value_in(profile_file const& file, std::string const& profile, std::string const& name)
{
    auto const section = file.find(profile);
    if (section == file.end())
        return {};
    auto const found = section->second.find(name);
    return found == section->second.end() ? std::string{} : found->second;
}

// Of all three, one place has to have the first two.
std::optional<credentials> written_in(profile_file const& file, std::string const& profile)
{
    credentials found{.access_key = value_in(file, profile, "aws_access_key_id"),
                      .secret_key = value_in(file, profile, "aws_secret_access_key"),
                      .session_token = value_in(file, profile, "aws_session_token"),
                      .expires = {}};
    return are_usable(found) ? std::optional{found} : std::nullopt;
}

std::optional<credentials> written_in(environment const& variable)
{
    credentials found{.access_key = variable("AWS_ACCESS_KEY_ID"),
                      .secret_key = variable("AWS_SECRET_ACCESS_KEY"),
                      .session_token = variable("AWS_SESSION_TOKEN"),
                      .expires = parse_time(variable("AWS_CREDENTIAL_EXPIRATION"))};
    return are_usable(found) ? std::optional{found} : std::nullopt;
}

std::string obstacle_in(profile_file const& credentials_file, profile_file const& config_file, std::string const& name)
{
    for (auto const* const way : {"sso_session", "sso_start_url", "role_arn", "credential_process"}) {
        if (!value_in(config_file, name, way).empty() || !value_in(credentials_file, name, way).empty())
            return fmt::format(
                "profile \"{}\" gets them by {}, which is not done here: put what `aws configure "
                "export-credentials --format env` prints into the environment",
                name, way);
    }
    if (name != "default" && !credentials_file.contains(name) && !config_file.contains(name))
        return fmt::format("there is no profile \"{}\"", name);
    return {};
}

std::optional<credential_service> container_of(environment const& variable)
{
    auto const relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    auto const url =
        relative.empty() ? variable("AWS_CONTAINER_CREDENTIALS_FULL_URI") : "http://169.254.170.2" + relative;
    if (url.empty())
        return std::nullopt;
    return credential_service{.of = credential_service::kind::container,
                              .url = url,
                              .authorization = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
                              .token_file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")};
}

std::optional<credential_service> instance_of(environment const& variable)
{
    if (boost::beast::iequals(variable("AWS_EC2_METADATA_DISABLED"), "true"))
        return std::nullopt;
    auto endpoint = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    if (endpoint.empty())
        endpoint = boost::beast::iequals(variable("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"), "ipv6")
                       ? "http://[fd00:ec2::254]"
                       : "http://169.254.169.254";
    while (endpoint.ends_with('/'))
        endpoint.pop_back();
    return credential_service{
        .of = credential_service::kind::instance, .url = std::move(endpoint), .authorization = {}, .token_file = {}};
}

}  // namespace

profile_file parse_profiles(std::string_view text)
{
    profile_file file;
    std::string section;
    std::string above;  // what is indented belongs to this setting
    while (!text.empty()) {
        auto const line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(line.size() + 1, text.size()));
        auto const content = trimmed(line);
        if (content.empty() || content.front() == '#' || content.front() == ';')
            continue;
        auto const is_nested = is_space(line.front());
        if (content.front() == '[' && !is_nested) {
            section = section_named(content);
            above.clear();
            continue;
        }
        auto const sign = content.find_first_of("=:");
        if (sign == std::string_view::npos || section.empty() || (is_nested && above.empty()))
            continue;
        auto name =
            boost::algorithm::to_lower_copy(std::string{trimmed(content.substr(0, sign))}, std::locale::classic());
        if (is_nested)
            name = fmt::format("{}.{}", above, name);
        else
            above = name;
        file[section][name] = trimmed(content.substr(sign + 1));
    }
    return file;
}

profile_paths paths_of(environment const& variable)
{
    auto const home = variable("HOME");
    auto const path = [&](std::string const& chosen, char const* usual) {
        if (chosen.starts_with("~/"))
            return home + chosen.substr(1);
        return chosen.empty() ? home + usual : chosen;
    };
    return {.credentials = path(variable("AWS_SHARED_CREDENTIALS_FILE"), "/.aws/credentials"),
            .config = path(variable("AWS_CONFIG_FILE"), "/.aws/config")};
}

setup set_up(environment const& variable, profile_file const& credentials_file, profile_file const& config_file,
             std::string const& profile)
{
    setup found;
    found.profile = first_of({profile, variable("AWS_PROFILE"), variable("AWS_DEFAULT_PROFILE"), "default"});
    auto const& name = found.profile;
    found.region = first_of({variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"),
                             value_in(config_file, name, "region"), value_in(credentials_file, name, "region")});
    if (!boost::beast::iequals(variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"), "true"))
        found.endpoint = first_of({variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL"),
                                   value_in(config_file, name, "endpoint_url")});
    found.style = first_of(
        {value_in(config_file, name, "s3.addressing_style"), value_in(credentials_file, name, "s3.addressing_style")});
    if (profile.empty())
        found.written = written_in(variable);
    if (!found.written)
        found.written = written_in(credentials_file, name);
    if (!found.written)
        found.written = written_in(config_file, name);
    if (found.written)
        return found;
    found.obstacle = obstacle_in(credentials_file, config_file, name);
    // Who is named is not taken for another.
    if (found.obstacle.empty())
        found.service = container_of(variable);
    if (found.obstacle.empty() && !found.service)
        found.service = instance_of(variable);
    return found;
}

}  // namespace gpurx::ingest::detail::s3
