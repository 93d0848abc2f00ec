// SPDX-License-Identifier: Apache-2.0
#include "credentials.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/string/case_conv.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/json/parse.hpp>
#include <charconv>
#include <initializer_list>
#include <locale>
#include <utility>

#include "location.hpp"
#include "xml.hpp"

namespace gpurx::ingest::detail::s3 {

namespace {

namespace json = boost::json;

std::string text_in(json::object const& fields, std::string_view name)
{
    auto const* const found = fields.if_contains(name);
    auto const* const text = found == nullptr ? nullptr : found->if_string();
    return text == nullptr ? std::string{} : std::string{text->data(), text->size()};
}

bool read_digits(std::string_view text, std::size_t at, std::size_t count, int& value) noexcept
{
    auto const* const begin = text.data() + at;
    auto const [stopped, error] = std::from_chars(begin, begin + count, value);
    return error == std::errc{} && stopped == begin + count && *begin != '-';
}

// What may follow the seconds.
bool is_utc(std::string_view rest) noexcept
{
    if (rest.starts_with('.')) {
        auto const end = rest.find_first_not_of("0123456789", 1);
        rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end);
    }
    return rest == "Z" || rest == "+00:00";
}

constexpr std::string_view space = " \t\r\n\v\f";

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

std::string unsupported(std::string const& place, std::string_view way)
{
    return fmt::format(
        "{} gets them by {}, which gpurx does not support: put the output of `aws configure "
        "export-credentials --format env` into the environment",
        place, way);
}

// Finds an identity that AWS's tools prefer to keys in the profile files, or the obstacle. Each variable stands in for
// the profile's setting of that name, unless the program has named the profile.
void find_role(environment const& variable, profile_file const& credentials_file, profile_file const& config_file,
               bool profile_was_named, std::string const& sts, setup& found)
{
    auto const of_profile = [&](std::string const& name) {
        return first_of({value_in(config_file, found.profile, name), value_in(credentials_file, found.profile, name)});
    };
    auto const value = [&](std::string_view of_environment, std::string const& name) {
        return first_of({profile_was_named ? std::string{} : variable(of_environment), of_profile(name)});
    };
    auto const place = fmt::format("profile \"{}\"", found.profile);
    auto const token_file = value("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file");
    auto const role = value("AWS_ROLE_ARN", "role_arn");
    if (!of_profile("role_arn").empty() && of_profile("web_identity_token_file").empty())
        found.obstacle = unsupported(place, "role_arn without web_identity_token_file");
    else if (!token_file.empty() && role.empty())
        found.obstacle = fmt::format("the token file {} has no role: set AWS_ROLE_ARN, or role_arn of {}",
                                     printable(token_file, 1000), place);
    else if (!token_file.empty())
        found.service =
            credential_service{.of = credential_service::kind::web_identity,
                               .url = sts,
                               .token_file = token_file,
                               .role = role,
                               .session_name = first_of({value("AWS_ROLE_SESSION_NAME", "role_session_name"), "gpurx"}),
                               .ca_file = found.ca_bundle};
    else
        for (auto const* const way : {"sso_session", "sso_start_url"})
            if (!of_profile(way).empty())
                found.obstacle = unsupported(place, way);
}

std::string obstacle_in(profile_file const& credentials_file, profile_file const& config_file, std::string const& name)
{
    constexpr auto const* way = "login_session";
    if (!value_in(config_file, name, way).empty() || !value_in(credentials_file, name, way).empty())
        return unsupported(fmt::format("profile \"{}\"", name), way);
    if (name != "default" && !credentials_file.contains(name) && !config_file.contains(name))
        return fmt::format("there is no profile \"{}\"", name);
    return {};
}

std::optional<credential_service> program_of(profile_file const& credentials_file, profile_file const& config_file,
                                             std::string const& name)
{
    constexpr auto const* way = "credential_process";
    auto command = first_of({value_in(config_file, name, way), value_in(credentials_file, name, way)});
    if (command.empty())
        return std::nullopt;
    return credential_service{.of = credential_service::kind::program, .url = std::move(command)};
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
    return credential_service{.of = credential_service::kind::instance, .url = std::move(endpoint)};
}

std::optional<credentials> with_end(credentials found, std::string const& expiration, std::string& why)
{
    found.expires = parse_time(expiration);
    if (are_usable(found) && (expiration.empty() || found.expires))
        return found;
    why = "its answer lacks a usable AccessKeyId or SecretAccessKey, or its Expiration is not a time";
    return std::nullopt;
}

}  // namespace

std::optional<credentials> parse_credentials(std::string_view json, std::string& why)
{
    boost::system::error_code code;
    auto const parsed = json::parse({json.data(), json.size()}, code);
    auto const* const fields = code ? nullptr : parsed.if_object();
    if (fields == nullptr) {
        why = "it does not answer with a JSON object";
        return std::nullopt;
    }
    // The metadata service says here that it has none.
    if (auto const status = text_in(*fields, "Code"); !status.empty() && status != "Success") {
        why = fmt::format("it answers {} {}", status, text_in(*fields, "Message"));
        return std::nullopt;
    }
    credentials found{.access_key = text_in(*fields, "AccessKeyId"),
                      .secret_key = text_in(*fields, "SecretAccessKey"),
                      .session_token = first_of({text_in(*fields, "Token"), text_in(*fields, "SessionToken")}),
                      .expires = {}};
    auto const* const version = fields->if_contains("Version");
    if (version != nullptr && *version != 1) {
        why = "its answer has a Version other than 1";
        return std::nullopt;
    }
    return with_end(std::move(found), text_in(*fields, "Expiration"), why);
}

std::optional<credentials> parse_assumed_role(std::string_view xml, std::string& why)
{
    credentials found;
    std::string expiration;
    std::array<std::pair<std::string_view, std::string*>, 4> const fields{
        {{"/Credentials/AccessKeyId", &found.access_key},
         {"/Credentials/SecretAccessKey", &found.secret_key},
         {"/Credentials/SessionToken", &found.session_token},
         {"/Credentials/Expiration", &expiration}}};
    xml_reader reader{xml};
    while (reader.next()) {
        for (auto const& [path, field] : fields) {
            if (reader.path().ends_with(path))
                *field = trimmed(reader.text());
        }
    }
    if (!reader.is_whole() || found.session_token.empty()) {
        why = "its answer is not one of AssumeRoleWithWebIdentity";
        return std::nullopt;
    }
    return with_end(std::move(found), expiration, why);
}

bool are_usable(credentials const& found) noexcept
{
    auto const visible = [](char each) { return each > ' ' && each <= '~'; };
    return !found.access_key.empty() && !found.secret_key.empty() && std::ranges::all_of(found.access_key, visible) &&
           std::ranges::all_of(found.session_token, visible);
}

std::optional<time_point> parse_time(std::string_view text) noexcept
{
    constexpr std::string_view shape = "0000-00-00T00:00:00";
    if (text.size() <= shape.size())
        return std::nullopt;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] != '0' && text[i] != shape[i])
            return std::nullopt;
    }
    int year = 0;
    int month = 0;
    int day = 0;
    int hour = 0;
    int minute = 0;
    int second = 0;
    if (!read_digits(text, 0, 4, year) || !read_digits(text, 5, 2, month) || !read_digits(text, 8, 2, day) ||
        !read_digits(text, 11, 2, hour) || !read_digits(text, 14, 2, minute) || !read_digits(text, 17, 2, second) ||
        !is_utc(text.substr(shape.size())))
        return std::nullopt;
    using namespace std::chrono;
    year_month_day const date{std::chrono::year{year}, std::chrono::month(static_cast<unsigned>(month)),
                              std::chrono::day(static_cast<unsigned>(day))};
    if (!date.ok() || hour > 23 || minute > 59 || second > 60)
        return std::nullopt;
    return sys_days{date} + hours{hour} + minutes{minute} + seconds{second};
}

std::string basic_time(time_point when)
{
    using namespace std::chrono;
    auto const day = floor<days>(when);
    year_month_day const date{day};
    hh_mm_ss const time{when - day};
    return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", static_cast<int>(date.year()),
                       static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), time.hours().count(),
                       time.minutes().count(), time.seconds().count());
}

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

std::vector<std::string> words_in(std::string_view command)
{
    std::vector<std::string> words;
    std::string word;
    char quote = 0;
    auto is_word = false;
    for (std::size_t i = 0; i < command.size(); ++i) {
        auto const each = command[i];
        auto const next = i + 1 < command.size() ? command[i + 1] : '\0';
        auto const is_escape = each == '\\' && quote != '\'' && (quote == 0 || next == '"' || next == '\\');
        if (is_escape) {
            ++i;
            word.append(next == 0 ? 0 : 1, next);
        } else if (each == quote) {
            quote = 0;
        } else if (quote == 0 && (each == '"' || each == '\'')) {
            quote = each;
        } else if (quote == 0 && is_space(each)) {
            if (std::exchange(is_word, false))
                words.push_back(std::exchange(word, {}));
            continue;
        } else {
            word += each;
        }
        is_word = true;
    }
    if (is_word)
        words.push_back(std::move(word));
    return quote == 0 ? words : std::vector<std::string>{};
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
    auto const ignores_endpoints = first_of({variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"),
                                             value_in(config_file, name, "ignore_configured_endpoint_urls")});
    auto const endpoint_of = [&](std::string_view of_environment, std::string const& of_services) {
        if (boost::beast::iequals(ignores_endpoints, "true"))
            return std::string{};
        return first_of({variable(of_environment), variable("AWS_ENDPOINT_URL"),
                         value_in(config_file, "services " + value_in(config_file, name, "services"), of_services),
                         value_in(config_file, name, "endpoint_url")});
    };
    found.endpoint = endpoint_of("AWS_ENDPOINT_URL_S3", "s3.endpoint_url");
    found.ca_bundle = first_of({variable("AWS_CA_BUNDLE"), value_in(config_file, name, "ca_bundle")});
    found.style = first_of(
        {value_in(config_file, name, "s3.addressing_style"), value_in(credentials_file, name, "s3.addressing_style")});
    if (profile.empty())
        found.written = written_in(variable);
    if (!found.written)
        find_role(variable, credentials_file, config_file, !profile.empty(),
                  first_of({endpoint_of("AWS_ENDPOINT_URL_STS", "sts.endpoint_url"), aws_url("sts", found.region)}),
                  found);
    if (!found.obstacle.empty() || found.service)
        return found;
    if (!found.written)
        found.written = written_in(credentials_file, name);
    if (!found.written)
        found.service = program_of(credentials_file, config_file, name);
    if (found.service)
        return found;
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
