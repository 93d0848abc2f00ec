// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <csignal>
#include <gpurx/ingest/error.hpp>

#include "s3/credentials.hpp"
#include "s3/program.hpp"

namespace gpurx::ingest::detail::s3 {

using Catch::Matchers::ContainsSubstring;
using namespace std::chrono;

namespace {

constexpr time_point noon = sys_days{2026y / November / 23} + 12h;

std::string said_of(std::string_view json)
{
    std::string why;
    CHECK_FALSE(parse_credentials(json, why));
    CHECK_THAT(why, !ContainsSubstring("hidden"));
    return why;
}

using variables = std::map<std::string, std::string, std::less<>>;

environment environment_of(variables set)
{
    return [set = std::move(set)](std::string_view name) {
        auto const found = set.find(name);
        return found == set.end() ? std::string{} : found->second;
    };
}

setup found_in(variables set, std::string_view credentials_text = {}, std::string_view config_text = {},
               std::string const& profile = {})
{
    return set_up(environment_of(std::move(set)), parse_profiles(credentials_text), parse_profiles(config_text),
                  profile);
}

constexpr std::string_view credentials_text =
    "# of somebody\n"
    "[default]\r\n"
    "aws_access_key_id = id of default\r\n"
    "aws_access_key_id=default-id\n"
    "AWS_SECRET_ACCESS_KEY : default=key/+:\n"
    "[ work ]\n"
    "aws_access_key_id = work-id\n"
    "  nested = below it\n"
    "; another remark\n"
    "aws_secret_access_key = work-key\n"
    "aws_session_token = work-token\n"
    "no setting\n"
    "[half]\n"
    "aws_access_key_id = half-id\n";

constexpr std::string_view config_text =
    "[default]\n"
    "region = eu-west-1\n"
    "[profile work]\n"
    "region = eu-north-1\n"
    "endpoint_url = http://storage:9000\n"
    "s3 =\n"
    "    region = nowhere\n"
    "    # a remark\n"
    "\tAddressing_Style = virtual\n"
    "[profile \"with space\"]\n"
    "aws_access_key_id = space-id\n"
    "aws_secret_access_key = space-key\n"
    "[profile sso]\n"
    "sso_session = company\n";

}  // namespace

TEST_CASE("s3: times are read as services write them, and written as signatures have them")
{
    CHECK(parse_time("2026-11-23T12:00:00Z") == noon);
    CHECK(parse_time("2026-11-23T12:00:00.123Z") == noon);
    CHECK(parse_time("2026-11-23T12:00:00+00:00") == noon);
    CHECK(parse_time("2024-02-29T23:59:59Z") == sys_days{2024y / 2 / 29} + 23h + 59min + 59s);
    CHECK(basic_time(noon + 61s) == "20261123T120101Z");
    for (auto const* const text : {"", "2026-11-23", "2026-11-23T12:00:00", "2026-11-23T12:00:00+01:00",
                                   "2026-02-30T12:00:00Z", "2026-11-23T24:00:00Z", "2026-11-23 12:00:00Z",
                                   "-026-11-23T12:00:00Z", "2026-11-2xT12:00:00Z", "2026-11-23T12:00:00.Zx"})
        CHECK_FALSE(parse_time(text));
}

TEST_CASE("s3: the documents of the instance and of a container are read")
{
    std::string why;
    auto const found = parse_credentials(
        R"({"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "id", "SecretAccessKey": "key", "Token": "token",
            "Expiration": "2026-11-23T12:00:00Z"})",
        why);
    REQUIRE(found);
    CHECK(found->access_key == "id");
    CHECK(found->secret_key == "key");
    CHECK(found->session_token == "token");
    CHECK(found->expires == noon);
    auto const lasting = parse_credentials(R"({"AccessKeyId": "id", "SecretAccessKey": "key"})", why);
    REQUIRE(lasting);
    CHECK(lasting->session_token.empty());
    CHECK_FALSE(lasting->expires);
}

TEST_CASE("s3: the document of a program has a session token and a version")
{
    std::string why;
    auto const found = parse_credentials(
        R"({"Version": 1, "AccessKeyId": "id", "SecretAccessKey": "key", "SessionToken": "token"})", why);
    REQUIRE(found);
    CHECK(found->session_token == "token");
    CHECK_THAT(said_of(R"({"Version": 2, "AccessKeyId": "id", "SecretAccessKey": "hidden"})"),
               ContainsSubstring("Version"));
}

TEST_CASE("s3: a document that has no credentials is refused, and its secrets not shown")
{
    CHECK_THAT(said_of("<html>hidden"), ContainsSubstring("JSON object"));
    CHECK_THAT(said_of("[\"hidden\"]"), ContainsSubstring("JSON object"));
    CHECK_THAT(said_of(R"({"Code": "AssumeRoleUnauthorizedAccess", "Message": "no trust"})"),
               ContainsSubstring("AssumeRoleUnauthorizedAccess no trust"));
    CHECK_THAT(said_of(R"({"AccessKeyId": "id"})"), ContainsSubstring("SecretAccessKey"));
    CHECK_THAT(said_of(R"({"AccessKeyId": 1, "SecretAccessKey": "hidden"})"), ContainsSubstring("AccessKeyId"));
    CHECK_THAT(said_of(R"({"AccessKeyId": "id", "SecretAccessKey": "hidden", "Expiration": "soon"})"),
               ContainsSubstring("Expiration"));
    CHECK_THAT(said_of(R"({"AccessKeyId": "id\r\nX: y", "SecretAccessKey": "hidden"})"),
               ContainsSubstring("AccessKeyId"));
}

TEST_CASE("s3: profile files are read as AWS's own tools read them")
{
    auto const file = parse_profiles(credentials_text);
    CHECK(file.at("default").at("aws_access_key_id") == "default-id");
    CHECK(file.at("default").at("aws_secret_access_key") == "default=key/+:");
    CHECK(file.at("work").size() == 4);
    CHECK(file.at("work").at("aws_access_key_id.nested") == "below it");
    CHECK(parse_profiles(config_text).at("work").at("s3").empty());
    CHECK(parse_profiles(config_text).at("work").at("s3.region") == "nowhere");
    CHECK(parse_profiles(config_text).contains("with space"));
    for (auto const* const odd :
         {"", "\n\n", "[", "[]", " a = b", "[x]\n a = b", "]\n=\n[x", "[a]\n=", "key = of no section", "[a]\n==="})
        static_cast<void>(parse_profiles(odd));
}

TEST_CASE("s3: the environment comes before the profile, and that before services")
{
    auto const env = found_in({{"AWS_ACCESS_KEY_ID", "id"},
                               {"AWS_SECRET_ACCESS_KEY", "key"},
                               {"AWS_SESSION_TOKEN", "token"},
                               {"AWS_REGION", "us-west-2"},
                               {"AWS_DEFAULT_REGION", "us-west-1"},
                               {"AWS_ENDPOINT_URL", "http://all"},
                               {"AWS_ENDPOINT_URL_S3", "http://other"}},
                              credentials_text, config_text);
    REQUIRE(env.written);
    CHECK(env.written->access_key == "id");
    CHECK(env.written->session_token == "token");
    CHECK(env.region == "us-west-2");
    CHECK(env.endpoint == "http://other");
    CHECK_FALSE(env.service);

    auto const plain = found_in({}, credentials_text, config_text);
    REQUIRE(plain.written);
    CHECK(plain.written->secret_key == "default=key/+:");
    CHECK(plain.region == "eu-west-1");
    CHECK(plain.endpoint.empty());

    auto const work = found_in({{"AWS_PROFILE", "work"}}, credentials_text, config_text);
    REQUIRE(work.written);
    CHECK(work.written->session_token == "work-token");
    CHECK(work.region == "eu-north-1");
    CHECK(work.endpoint == "http://storage:9000");
    CHECK(work.style == "virtual");
    CHECK(plain.style.empty());
    CHECK(found_in({{"AWS_PROFILE", "work"}, {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"}}, {}, config_text)
              .endpoint.empty());

    auto const in_config = found_in({{"AWS_PROFILE", "with space"}}, credentials_text, config_text);
    REQUIRE(in_config.written);
    CHECK(in_config.written->access_key == "space-id");
}

TEST_CASE("s3: a profile that the program names comes before the environment's, and its credentials")
{
    variables const others{
        {"AWS_PROFILE", "absent"}, {"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "key"}, {"AWS_REGION", "r"}};
    auto const work = found_in(others, credentials_text, config_text, "work");
    REQUIRE(work.written);
    CHECK(work.written->access_key == "work-id");
    CHECK(work.profile == "work");
    CHECK(work.endpoint == "http://storage:9000");
    CHECK(work.region == "r");
    auto const missing = found_in(others, credentials_text, config_text, "none such");
    CHECK_FALSE(missing.written);
    CHECK_THAT(missing.obstacle, ContainsSubstring("no profile \"none such\""));
}

TEST_CASE("s3: a program comes behind keys of the credentials file, and before those of the configuration")
{
    constexpr std::string_view config =
        "[default]\n"
        "credential_process = /bin/keys --of me\n"
        "aws_access_key_id = config-id\n"
        "aws_secret_access_key = config-key\n"
        "[profile work]\n"
        "credential_process = /bin/keys --of work\n";
    auto const found = found_in({}, {}, config);
    REQUIRE(found.service);
    CHECK(found.service->of == credential_service::kind::program);
    CHECK(found.service->url == "/bin/keys --of me");
    CHECK_FALSE(found.written);
    CHECK(found_in({}, {}, config, "work").service->url == "/bin/keys --of work");
    CHECK(found_in({{"AWS_PROFILE", "x"}}, "[x]\ncredential_process = /x\n").service->url == "/x");
    CHECK(found_in({}, credentials_text, config).written->access_key == "default-id");
}

TEST_CASE("s3: a command has the words that a shell would find")
{
    using words = std::vector<std::string>;
    CHECK(words_in("/bin/keys --of me") == words{"/bin/keys", "--of", "me"});
    CHECK(words_in(R"( "/opt/a b/keys"  'it is "x"' a\ b "c\"d\e" '\' '' )") ==
          words{"/opt/a b/keys", "it is \"x\"", "a b", "c\"d\\e", "\\", ""});
    CHECK(words_in("$HOME/x `y` | z; ~") == words{"$HOME/x", "`y`", "|", "z;", "~"});
    for (auto const* const none : {"", "  ", "'a", "a \"b"})
        CHECK(words_in(none).empty());
}

TEST_CASE("s3: the output of a program arrives, and its failure has the end of its errors")
{
    auto const later = steady_clock::now() + 50s;
    auto const shell = [](std::string const& script) { return std::vector<std::string>{"/bin/sh", "-c", script}; };
    auto const said = [&](std::vector<std::string> const& command, steady_clock::time_point until) {
        try {
            return "gives " + output_of(command, until);
        } catch (system_error const& error) {
            CHECK(error.code() == errc::no_credentials);
            return std::string{error.what()};
        }
    };
    CHECK(output_of(shell("cat; echo hidden >&2; printf '%s' \"$0\""), later) == "/bin/sh");
    // It holds the pipe open, and outlives the program.
    auto const left_behind = std::stoi(output_of(shell("sleep 1000 & echo $!"), later));
    CHECK(::kill(left_behind, SIGKILL) == 0);
    CHECK(said(shell("echo no network >&2; exit 3"), later) ==
          "get credentials from /bin/sh: there are no credentials; the program of credential_process ended with status "
          "3: no network");
    CHECK_THAT(said(shell("kill -9 $$"), later), ContainsSubstring("signal 9"));
    CHECK_THAT(said(shell("yes | head -c 200000 >&2; echo last words >&2; exit 1"), later),
               ContainsSubstring("last words"));
    CHECK_THAT(said({"/none/such"}, later), ContainsSubstring("/none/such") && ContainsSubstring("No such file"));
    CHECK_THAT(said(shell("yes"), later), ContainsSubstring("more than 64 KiB"));
    CHECK_THAT(said(shell("sleep 1000"), steady_clock::now()), ContainsSubstring("in time"));
}

TEST_CASE("s3: a container's agent is asked before the instance, and neither if that is forbidden")
{
    auto const task = found_in({{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/id"}});
    REQUIRE(task.service);
    CHECK(task.service->of == credential_service::kind::container);
    CHECK(task.service->url == "http://169.254.170.2/v2/id");

    auto const pod = found_in({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/v1/credentials"},
                               {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/token"}});
    REQUIRE(pod.service);
    CHECK(pod.service->url == "http://169.254.170.23/v1/credentials");
    CHECK(pod.service->token_file == "/token");

    auto const instance = found_in({});
    REQUIRE(instance.service);
    CHECK(instance.service->of == credential_service::kind::instance);
    CHECK(instance.service->url == "http://169.254.169.254");
    CHECK(found_in({{"AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1/"}}).service->url ==
          "http://127.0.0.1:1");
    CHECK_FALSE(found_in({{"AWS_EC2_METADATA_DISABLED", "TRUE"}}).service);
}

TEST_CASE("s3: an unsupported profile ends the search for credentials")
{
    auto const sso = found_in({{"AWS_PROFILE", "sso"}}, credentials_text, config_text);
    CHECK_FALSE(sso.written);
    CHECK_FALSE(sso.service);
    CHECK_THAT(sso.obstacle, ContainsSubstring("sso_session") && ContainsSubstring("export-credentials"));
    auto const missing = found_in({{"AWS_PROFILE", "absent"}}, credentials_text, config_text);
    CHECK_FALSE(missing.service);
    CHECK_THAT(missing.obstacle, ContainsSubstring("no profile \"absent\""));
    CHECK_FALSE(found_in({{"AWS_PROFILE", "half"}}, credentials_text, config_text).written);
}

TEST_CASE("s3: a web identity comes behind the environment's keys and before those of a profile")
{
    variables pod{{"AWS_ROLE_ARN", "arn:aws:iam::1:role/r"},
                  {"AWS_WEB_IDENTITY_TOKEN_FILE", "/var/token"},
                  {"AWS_REGION", "eu-west-1"},
                  {"AWS_CA_BUNDLE", "/lab.pem"}};
    for (auto const file : {std::string_view{}, credentials_text}) {
        auto const found = found_in(pod, file);
        CHECK_FALSE(found.written);
        REQUIRE(found.service);
        CHECK(found.service->of == credential_service::kind::web_identity);
        CHECK(found.service->url == "https://sts.eu-west-1.amazonaws.com");
        CHECK(found.service->token_file == "/var/token");
        CHECK(found.service->role == "arn:aws:iam::1:role/r");
        CHECK(found.service->session_name == "gpurx");
        CHECK(found.service->ca_file == "/lab.pem");
    }
    // As with AWS's tools, keys in the environment come first, and a profile that the program names.
    auto with_keys = pod;
    with_keys.insert({{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "key"}});
    CHECK(found_in(with_keys).written);
    CHECK(found_in(pod, credentials_text, {}, "work").written);

    constexpr std::string_view config =
        "[profile work]\n"
        "role_arn = work-role\n"
        "web_identity_token_file = /of-work/token\n"
        "role_session_name = work-session\n"
        "services = lab\n"
        "[services lab]\n"
        "sts =\n"
        "  endpoint_url = http://sts:9000\n";
    auto const work = found_in(pod, credentials_text, config, "work").service;
    REQUIRE(work);
    CHECK(work->token_file == "/of-work/token");
    CHECK(work->role == "work-role");
    CHECK(work->session_name == "work-session");
    CHECK(work->url == "http://sts:9000");
    pod["AWS_PROFILE"] = "work";
    pod["AWS_ROLE_SESSION_NAME"] = "pod-session";
    pod["AWS_ENDPOINT_URL_STS"] = "https://pod.example.com";
    auto const both = found_in(pod, {}, config).service;
    REQUIRE(both);
    CHECK(both->token_file == "/var/token");
    CHECK(both->session_name == "pod-session");
    CHECK(both->url == "https://pod.example.com");
}

TEST_CASE("s3: STS is that of the region, and the global one without a valid region")
{
    auto const sts = [](std::string const& region) {
        return found_in({{"AWS_ROLE_ARN", "r"}, {"AWS_WEB_IDENTITY_TOKEN_FILE", "/t"}, {"AWS_REGION", region}})
            .service->url;
    };
    CHECK(sts("cn-north-1") == "https://sts.cn-north-1.amazonaws.com.cn");
    CHECK(sts("") == "https://sts.amazonaws.com");
    CHECK(sts("other.example/") == "https://sts.amazonaws.com");
}

TEST_CASE("s3: a role that is set is never replaced by keys of a profile or by the machine's role")
{
    auto const no_role = found_in({{"AWS_WEB_IDENTITY_TOKEN_FILE", "/var/token"}}, credentials_text);
    CHECK_FALSE(no_role.written);
    CHECK_FALSE(no_role.service);
    CHECK_THAT(no_role.obstacle, ContainsSubstring("/var/token") && ContainsSubstring("AWS_ROLE_ARN"));
    for (auto const* const way : {"role_arn = a", "web_identity_token_file = /f", "sso_session = s"}) {
        auto const found =
            found_in({{"AWS_PROFILE", "work"}}, credentials_text, fmt::format("[profile work]\n{}\n", way));
        CHECK_FALSE(found.written);
        CHECK_FALSE(found.service);
        CHECK_THAT(found.obstacle, ContainsSubstring("profile \"work\""));
    }
}

TEST_CASE("s3: the answer of STS is read, and one without credentials is refused without its secrets")
{
    constexpr auto const* answer =
        "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">"
        "<AssumeRoleWithWebIdentityResult><SubjectFromWebIdentityToken>sub</SubjectFromWebIdentityToken>"
        "<Credentials>{}<SecretAccessKey>hidden</SecretAccessKey><SessionToken> hidden-token\n</SessionToken>"
        "<Expiration>{}</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
        "</AssumeRoleWithWebIdentityResponse>";
    auto const key = "<AccessKeyId>id</AccessKeyId>";
    std::string why;
    auto const found = parse_assumed_role(fmt::format(answer, key, "2026-11-23T12:00:00Z"), why);
    REQUIRE(found);
    CHECK(found->access_key == "id");
    CHECK(found->secret_key == "hidden");
    CHECK(found->session_token == "hidden-token");
    CHECK(found->expires == noon);
    auto const whole = fmt::format(answer, key, "2026-11-23T12:00:00Z");
    for (auto const& text : {std::string{}, std::string{"<html>hidden</html>"}, whole.substr(0, whole.size() - 1),
                             fmt::format(answer, "", "2026-11-23T12:00:00Z"), fmt::format(answer, key, "hidden")}) {
        why.clear();
        CHECK_FALSE(parse_assumed_role(text, why));
        CHECK_THAT(why, ContainsSubstring("its answer") && !ContainsSubstring("hidden"));
    }
}

TEST_CASE("s3: endpoint and authorities come from the profile's services and ca_bundle")
{
    constexpr std::string_view config =
        "[profile work]\n"
        "services = lab\n"
        "endpoint_url = http://storage:9001\n"
        "ca_bundle = /etc/lab.pem\n"
        "[services lab]\n"
        "dynamodb =\n"
        "  endpoint_url = http://storage:9002\n"
        "s3 =\n"
        "  endpoint_url = http://storage:9000\n"
        "[profile direct]\n"
        "endpoint_url = http://storage:9001\n"
        "ignore_configured_endpoint_urls = true\n";
    CHECK(found_in({{"AWS_PROFILE", "work"}}, {}, config).endpoint == "http://storage:9000");
    CHECK(found_in({{"AWS_PROFILE", "work"}, {"AWS_ENDPOINT_URL", "http://all"}}, {}, config).endpoint == "http://all");
    CHECK(found_in({{"AWS_PROFILE", "direct"}}, {}, config).endpoint.empty());
    CHECK(found_in({{"AWS_PROFILE", "work"}}, {}, config).ca_bundle == "/etc/lab.pem");
    CHECK(found_in({{"AWS_PROFILE", "work"}, {"AWS_CA_BUNDLE", "/ca"}}, {}, config).ca_bundle == "/ca");
}

TEST_CASE("s3: the profile files are in the home directory, or at the paths in the environment")
{
    auto const usual = paths_of(environment_of({{"HOME", "/users/u"}}));
    CHECK(usual.credentials == "/users/u/.aws/credentials");
    CHECK(usual.config == "/users/u/.aws/config");
    auto const chosen = paths_of(environment_of(
        {{"HOME", "/users/u"}, {"AWS_SHARED_CREDENTIALS_FILE", "/etc/keys"}, {"AWS_CONFIG_FILE", "~/config"}}));
    CHECK(chosen.credentials == "/etc/keys");
    CHECK(chosen.config == "/users/u/config");
}

}  // namespace gpurx::ingest::detail::s3
