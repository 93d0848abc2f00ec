// SPDX-License-Identifier: Apache-2.0
//
// Models of Hugging Face's hub: one revision of all files, and hf:// locations.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint_bed.hpp"

namespace gpurx::test {

namespace {

using Catch::Matchers::ContainsSubstring;
using ingest::errc;

std::string const first_commit(40, 'a');
std::string const second_commit(40, 'b');
constexpr std::string_view index_name = "model.safetensors.index.json";

std::string refusal(std::string_view status, std::string_view body = {})
{
    return fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\n\r\n{}", status, body.size(), body);
}

// A model of two shards. A push moves its branch from the first commit to the second.
class hub_server {
  public:
    [[nodiscard]] std::string url(std::string_view path = {}) const { return server_.url("/" + std::string{path}); }
    [[nodiscard]] std::string file(std::string_view name, std::string_view revision = "main") const
    {
        return url(fmt::format("org/model/resolve/{}/{}", revision, name));
    }
    // With this number of answers for the model the branch moves.
    void push_after(unsigned answers) { moves_after_ = answers; }
    // States this commit in all answers, whatever the request.
    void lie(std::string commit) { lie_ = std::move(commit); }
    // Refuses later requests for the branch, as the storage does once a signature has expired.
    void expire() { expires_ = true; }
    // Redirects each request to a URL with the commit, and states none.
    void redirect_only() { redirects_ = true; }

    // Paths below org/model/resolve/.
    [[nodiscard]] std::vector<std::string> asked() const
    {
        std::vector<std::string> paths;
        for (auto const& each : server_.requests())
            paths.push_back(each.target);
        return paths;
    }

  private:
    [[nodiscard]] std::string commit_of(std::string const& revision)
    {
        if (revision != "main" && revision != "refs%2Fpr%2F1")
            return revision;
        std::scoped_lock const lock{mutex_};
        return answers_++ < moves_after_ ? first_commit : second_commit;
    }

    void answer(http_request const& request, http_reply& reply)
    {
        auto target = std::string_view{request.target}.substr(0, request.target.find('?'));
        constexpr std::string_view api = "/api/models/org/model/revision/";
        if (target.starts_with(api))
            return reply.send(description(std::string{target.substr(api.size())}));
        constexpr std::string_view files = "/org/model/resolve/";
        if (!target.starts_with(files))
            return reply.send(refusal("404 Not Found"));
        target.remove_prefix(files.size());
        std::string const revision{target.substr(0, target.find('/'))};
        std::string const name{target.substr(std::min(revision.size() + 1, target.size()))};
        serve(revision, name, request, reply);
    }

    void serve(std::string const& revision, std::string const& name, http_request const& request, http_reply& reply)
    {
        if (expires_ && revision == "main" && request.range && request.range->first > 0)
            return reply.send(refusal("403 Forbidden"));
        auto const commit = commit_of(revision);
        if (redirects_ && revision != commit)
            return reply.send(fmt::format(
                "HTTP/1.1 307 Temporary Redirect\r\nLocation: /org/model/resolve/{}/{}\r\nContent-Length: 0\r\n\r\n",
                commit, name));
        auto const letter = commit == first_commit ? "1" : "2";
        std::map<std::string, std::string> const content{
            {std::string{index_name}, index_of({{"one", "a.safetensors"}, {"two", "b.safetensors"}})},
            {"a.safetensors", shard_of({"one"})},
            {"b.safetensors", shard_of({"two"})},
            {"config.json", "{}"},
            {"large", content_of(50'000)}};
        auto const found = content.find(name);
        if (found == content.end())
            return reply.send(refusal("404 Not Found", "Entry not found"));
        http_content served{found->second};
        served.etag = fmt::format("\"{}{}\"", letter, name);
        if (!redirects_)
            served.fields = fmt::format("X-Repo-Commit: {}\r\n", lie_.empty() ? commit : lie_);
        served.serve(request, reply);
    }

    [[nodiscard]] std::string description(std::string const& revision)
    {
        auto const body = fmt::format(
            R"({{"id":"org/model","sha":"{}","siblings":[{{"rfilename":"sub/x.json"}},{{"rfilename":"{}"}},{{"rfilename":"config.json"}},{{"rfilename":"b.safetensors"}},{{"rfilename":"a.safetensors"}},{{"rfilename":"../evil"}}]}})",
            commit_of(revision), index_name);
        return fmt::format(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n",
            body.size(), body);
    }

    std::mutex mutex_;
    unsigned answers_ = 0;
    unsigned moves_after_ = UINT32_MAX;
    std::string lie_;
    bool redirects_ = false;
    bool expires_ = false;
    http_server server_{[this](http_request const& request, http_reply& reply) { answer(request, reply); }};
};

std::size_t count_at(hub_server const& hub, std::string_view revision)
{
    return static_cast<std::size_t>(std::ranges::count_if(
        hub.asked(), [&](auto const& each) { return each.find(fmt::format("/{}/", revision)) != each.npos; }));
}

struct listing {
    ingest::file_list found;
    outcome ended;
    [[nodiscard]] std::vector<std::string> names() const
    {
        std::vector<std::string> all;
        for (auto const& each : found.files)
            all.push_back(each.name);
        return all;
    }
};

listing list(std::string const& directory, bool recursive = false)
{
    world in{transport::copy, {.max_flows = 5}};
    listing result;
    run(in, result.ended, [&]() -> asio::awaitable<void> {
        result.found = co_await ingest::async_list_files(directory, recursive, options_for_tests());
    });
    return result;
}

using file_names = std::vector<std::string>;

}  // namespace

TEST_CASE("hub: shards are of the commit that their index had")
{
    hub_server hub;
    hub.push_after(1);
    SECTION("as the server states it") {}
    SECTION("as a redirect has it")
    {
        hub.redirect_only();
    }
    auto const result = read_at(hub.file(index_name) + "?download=true");
    CHECK(result.error.empty());
    REQUIRE(result.found.shards.size() == 2);
    for (auto const& each : result.found.shards) {
        CHECK(each.url.find(first_commit) != each.url.npos);
        CHECK(each.etag.starts_with("\"1"));
    }
    CHECK(count_at(hub, "main") == 1);
}

TEST_CASE("hub: files of two commits are no model, by the names of both")
{
    hub_server hub;
    SECTION("of a list whose branch moves")
    {
        hub.push_after(1);
        auto const result = read_list({hub.file("a.safetensors"), hub.file("b.safetensors")});
        CHECK(result.code == errc::object_changed);
        CHECK_THAT(result.error, ContainsSubstring(first_commit) && ContainsSubstring(second_commit));
    }
    SECTION("of an index whose server does not obey")
    {
        hub.lie(second_commit);
        auto const result = read_at(hub.file(index_name, first_commit));
        CHECK(result.code == errc::object_changed);
        CHECK_THAT(result.error, ContainsSubstring(first_commit) && ContainsSubstring(second_commit) &&
                                     ContainsSubstring(hub.url("org/model/resolve/")));
    }
    SECTION("that the program names itself")
    {
        auto const result =
            read_list({hub.file("a.safetensors", first_commit), hub.file("b.safetensors", second_commit)});
        CHECK(result.error.empty());
    }
}

TEST_CASE("hub: files of a list stay at their commit")
{
    hub_server hub;
    hub.push_after(2);
    auto const result = read_list({hub.file("a.safetensors"), hub.file("b.safetensors")});
    CHECK(result.error.empty());
    REQUIRE(result.found.shards.size() == 2);
    CHECK(result.found.shards[0].url == hub.file("a.safetensors", first_commit));
    CHECK(result.found.shards[1].commit == first_commit);
}

TEST_CASE("hub: a shard is fetched at the commit of its header only")
{
    hub_server hub;
    world in{any_transport(), {.max_flows = 5}};
    outcome result;
    run(in, result, [&]() -> asio::awaitable<void> {
        auto const executor = in.io->get_executor();
        auto const model = co_await ingest::async_read_checkpoint(executor, *in.session, hub.file("a.safetensors"),
                                                                  options_for_tests());
        hub.lie(second_commit);
        auto const layout = ingest::lay_out(model);
        result.bytes.assign(layout.size, ' ');
        co_await ingest::async_fetch_checkpoint(executor, *in.session, model, layout, span_of(result.bytes),
                                                options_for_tests());
    });
    CHECK(result.code == errc::object_changed);
    CHECK_THAT(result.error, ContainsSubstring(first_commit) && ContainsSubstring(second_commit));
}

TEST_CASE("hub: a file whose signature expires is asked for again at its commit")
{
    hub_server hub;
    hub.push_after(1);
    hub.expire();
    world in{any_transport(), {.max_flows = 5}};
    auto const result = fetch(in, hub.file("large"));
    CHECK(result.error == "");
    CHECK(result.bytes == content_of(50'000));
    CHECK(count_at(hub, first_commit) > 0);
}

TEST_CASE("hub: hf:// is one commit of all files")
{
    hub_server hub;
    set_variable const endpoint{"HF_ENDPOINT", hub.url()};
    hub.push_after(1);
    std::string revision = "main";
    std::string place = "hf://org/model";
    SECTION("of the main branch") {}
    SECTION("of a revision with slashes")
    {
        revision = "refs%2Fpr%2F1";
        place += "@refs/pr/1";
    }
    SECTION("of an index")
    {
        place += fmt::format("@main/{}", index_name);
    }
    CHECK(ingest::is_checkpoint(place));
    auto const result = read_at(place);
    CHECK(result.error.empty());
    REQUIRE(result.found.shards.size() == 2);
    CHECK(result.found.shards[0].url == fmt::format("hf://org/model@{}/a.safetensors", first_commit));
    CHECK(result.found.shards[1].etag == "\"1b.safetensors\"");
    CHECK(count_at(hub, "main") + count_at(hub, "refs%2Fpr%2F1") + count_at(hub, "revision") == 1);
}

TEST_CASE("hub: one file of hf://")
{
    hub_server hub;
    set_variable const endpoint{"HF_ENDPOINT", hub.url()};
    world in{any_transport(), {.max_flows = 5}};
    CHECK_FALSE(ingest::is_checkpoint("hf://org/model/a.safetensors"));
    auto const result = fetch(in, "hf://org/model/a.safetensors");
    CHECK(result.error.empty());
    CHECK(result.bytes == shard_of({"one"}));
    CHECK_THAT(
        fetch(in, "hf://org/model/none").error,
        ContainsSubstring("404") && ContainsSubstring("check the names of the model, the revision and the file"));
}

TEST_CASE("hub: the files of a model are listed at their commit")
{
    hub_server hub;
    set_variable const endpoint{"HF_ENDPOINT", hub.url()};
    auto const top = list("hf://org/model");
    CHECK(top.ended.error.empty());
    CHECK(top.found.directory == fmt::format("hf://org/model@{}/", first_commit));
    CHECK(top.names() == file_names{"a.safetensors", "b.safetensors", "config.json", std::string{index_name}});
    auto const all = list("hf://org/model", true);
    CHECK(all.names() ==
          file_names{"a.safetensors", "b.safetensors", "config.json", std::string{index_name}, "sub/x.json"});
    CHECK(list("hf://org/model@main/sub").names() == file_names{"x.json"});
    CHECK(list(fmt::format("hf://org/model@{}", second_commit)).found.directory ==
          fmt::format("hf://org/model@{}/", second_commit));
}

TEST_CASE("hub: a list that cannot be had says why")
{
    struct fault {
        std::string answer;
        std::vector<std::string> says;
        errc code = errc::http_status;
    };
    auto const faults =
        std::vector<fault>{{refusal("401 Unauthorized", R"({"error":"Invalid username or password."})"),
                            {"401", "password", "set HF_TOKEN"}},
                           {refusal("403 Forbidden", "<html>"), {"403", "accept the conditions"}},
                           {refusal("404 Not Found"), {"404", "check the names of the model, the revision"}},
                           {refusal("200 OK", R"({"sha":"main","siblings":[]})"), {"no \"sha\""}, errc::bad_response},
                           {refusal("200 OK", R"({"siblings":[]})"), {"no \"sha\""}, errc::bad_response},
                           {refusal("200 OK", "<html>"), {"does not describe a model"}, errc::bad_response},
                           {refusal("200 OK", fmt::format(R"({{"sha":"{}","siblings":[1]}})", first_commit)),
                            {"siblings"},
                            errc::bad_response},
                           {"HTTP/1.1 302 Found\r\nLocation: ?\r\nContent-Length: 0\r\n\r\n",
                            {"more than 10 redirects"},
                            errc::bad_redirect},
                           {refusal("503 Service Unavailable"), {"503", "3 attempts"}},
                           {"", {"3 attempts"}, errc::gave_up}};
    for (auto const& each : faults) {
        INFO(each.answer);
        http_server server{[&](http_request const&, http_reply& reply) {
            reply.send(each.answer);
            reply.close();
        }};
        set_variable const endpoint{"HF_ENDPOINT", server.url("")};
        auto const result = list("hf://org/model").ended;
        CHECK(result.code == each.code);
        CHECK_THAT(result.error, ContainsSubstring(server.url("/api/models/org/model/revision/main")));
        for (auto const& part : each.says)
            CHECK_THAT(result.error, ContainsSubstring(part));
    }
    set_variable const endpoint{"HF_ENDPOINT", "nowhere"};
    CHECK(list("hf://org/model").ended.code == errc::bad_url);
    CHECK(list("hf://datasets/org/set").ended.code == errc::bad_url);
    CHECK_THAT(list("http://host/model/").ended.error, ContainsSubstring("have no list"));
}

TEST_CASE("files of a directory on disk are listed by name")
{
    directory const files;
    static_cast<void>(files.write("b", "12345"));
    static_cast<void>(files.write("a b?#%", ""));
    std::filesystem::create_directory(files / "sub");
    static_cast<void>(files.write("sub/c", "1"));
    for (auto const& where : {files / "", "file://" + (files / "")}) {
        auto const top = list(where);
        CHECK(top.ended.error.empty());
        CHECK(top.found.directory == files / "");
        CHECK(top.names() == file_names{"a b?#%", "b"});
        CHECK(top.found.files[1].size == 5);
    }
    CHECK(list((files / "sub/").substr(0, (files / "sub").size())).found.directory == files / "sub/");
    CHECK(list(files / "", true).names() == file_names{"a b?#%", "b", "sub/c"});
    CHECK(list(files / "missing").ended.code == boost::system::errc::no_such_file_or_directory);
    CHECK(list(files / "b").ended.code == boost::system::errc::not_a_directory);
}

}  // namespace gpurx::test
