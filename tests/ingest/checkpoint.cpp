// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints in several files: on a disk, and on a server.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <condition_variable>
#include <gpurx/ingest/checkpoint.hpp>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint_bed.hpp"

namespace gpurx::test {

namespace {

using Catch::Matchers::ContainsSubstring;

// Two shards of three tensors. What is said of them when they are asked for again, once their headers have been read.
class shard_server {
  public:
    struct later {
        std::string etag = "\"one\"";
        std::string fields = {};
        std::chrono::milliseconds pause{0};
        std::size_t from = 3;  // requests
    };

    explicit shard_server(later again) : again_{std::move(again)} {}

    [[nodiscard]] std::string url() const { return server_.url("/m/index.json"); }
    // Of either shard: both are asked for at a time.
    [[nodiscard]] bool has_a_shard(std::string_view error) const
    {
        return error.find(server_.url("/m/a")) != error.npos || error.find(server_.url("/m/b")) != error.npos;
    }
    [[nodiscard]] std::size_t requests() const { return server_.requests().size(); }

  private:
    void answer(http_request const& request, http_reply& reply) const
    {
        static std::map<std::string, std::string> const files{
            {"/m/index.json", index_of({{"three", "b"}, {"one", "a"}, {"two", "a"}})},
            {"/m/a", shard_of({"one", "two"})},
            {"/m/b", shard_of({"three"})}};
        http_content content{files.at(request.target)};
        if (request.number >= again_.from) {
            fake_clock::sleep_for(again_.pause);
            content.etag = again_.etag;
            content.fields = again_.fields;
        }
        content.serve(request, reply);
    }

    later const again_;
    http_server server_{[this](http_request const& request, http_reply& reply) { answer(request, reply); }};
};

// What is left of a model once its headers have been read is loaded.
outcome load_all(std::string const& where, ingest::fetch_options const& options = options_for_tests(),
                 std::size_t shards = SIZE_MAX)
{
    world in{any_transport(), {.max_flows = 9}};
    outcome result;
    auto patient = options_for_tests();
    patient.timeout = 20s;
    patient.crc32c = options.crc32c;
    patient.s3 = options.s3;
    run(in, result, [&]() -> asio::awaitable<void> {
        auto const executor = in.io->get_executor();
        auto model = co_await ingest::async_read_checkpoint(executor, *in.session, where, patient);
        auto const layout = ingest::lay_out(model);
        model.shards.resize(std::min(shards, model.shards.size()));
        result.bytes.assign(layout.size, ' ');
        result.stats = co_await ingest::async_fetch_checkpoint(executor, *in.session, model, layout,
                                                               span_of(result.bytes), options);
    });
    return result;
}

}  // namespace

TEST_CASE("a checkpoint in several files is read by its index, from a disk")
{
    directory const files;
    auto const a = files.write("a.safetensors", shard_of({"one", "two"}));
    auto const b = files.write("b.safetensors", shard_of({"three"}));
    auto const index =
        files.write("model.safetensors.index.json",
                    index_of({{"three", "b.safetensors"}, {"one", "a.safetensors"}, {"two", "a.safetensors"}}));
    for (auto const& where : {index, "file://" + index, files / ""}) {
        INFO(where);
        auto const result = read_at(where);
        REQUIRE(result.error.empty());
        REQUIRE(result.found.shards.size() == 2);
        CHECK(result.found.shards[0].url.ends_with(b));
        CHECK(result.found.shards[1].url.ends_with(a));
        CHECK(result.found.shards[1].size == std::filesystem::file_size(a));
        CHECK(result.found.shards[1].tensors[1].name == "two");
        CHECK(result.found.shard_of("three") == result.found.shards.data());
        CHECK(result.found.shard_of("four") == nullptr);
    }
}

TEST_CASE("a directory without an index is read in the order of its files' names")
{
    directory const files;
    auto const b = files.write("b.safetensors", shard_of({"three"}));
    auto const a = files.write("a.safetensors", shard_of({"one", "two"}));
    static_cast<void>(files.write("notes.txt", "no tensors"));
    auto const result = read_at(files / "");
    CHECK(result.error.empty());
    REQUIRE(result.found.shards.size() == 2);
    CHECK(result.found.shards[0].url == a);
    auto const one = read_at(b);
    CHECK(one.error.empty());
    CHECK(one.found.shard_of("three") != nullptr);
    static_cast<void>(files.write("x.safetensors.index.json", "{}"));
    static_cast<void>(files.write("y.safetensors.index.json", "{}"));
    CHECK_THAT(read_at(files / "").error, ContainsSubstring("several indices"));
    directory const empty;
    CHECK_THAT(read_at(empty / "").error, ContainsSubstring("no .safetensors file"));
}

TEST_CASE("a checkpoint is read from a server, the shards beside the index")
{
    std::map<std::string, http_content> const served{
        {"/m/index.json", {index_of({{"one", "a 1.safetensors"}, {"two", "b.safetensors"}})}},
        {"/m/a%201.safetensors", {shard_of({"one"})}},
        {"/m/b.safetensors", {shard_of({"two"})}}};
    http_server server{[&](http_request const& request, http_reply& reply) {
        auto const found = served.find(request.target.substr(0, request.target.find('?')));
        if (found == served.end())
            reply.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        else
            found->second.serve(request, reply);
    }};
    auto const result = read_at(server.url("/m/index.json?version=3"));
    CHECK(result.error.empty());
    REQUIRE(result.found.shards.size() == 2);
    CHECK(result.found.shards[0].url == server.url("/m/a%201.safetensors"));
    CHECK(result.found.shards[1].tensors.front().name == "two");
}

TEST_CASE("shards that do not fit each other, or their index, are errors by name")
{
    directory const files;
    auto const a = files.write("a", shard_of({"one", "two"}));
    auto const b = files.write("b", shard_of({"two", "three"}));
    auto const c = files.write("c", shard_of({"four"}));
    auto const twice = read_list({a, b});
    CHECK(twice.code == ingest::errc::bad_safetensors);
    CHECK_THAT(twice.error, ContainsSubstring(b) && ContainsSubstring("\"two\" is in " + a));
    struct fault {
        std::string index;
        std::string says;
    };
    std::vector<fault> const faults{
        {index_of({{"one", "a"}, {"two", "a"}, {"five", "c"}, {"four", "c"}}), "\"five\" is not in " + c},
        {index_of({{"one", "a"}, {"two", "c"}, {"four", "c"}}), "\"two\" is not in " + c},
        {index_of({{"one", "../a"}}), "not a name in its directory"},
        {index_of({{"one", "/etc/passwd"}}), "not a name in its directory"},
        {index_of({{"one", "http://host/a"}}), "not a name in its directory"},
        {index_of({{"one", "a"}, {"one", "c"}}), "\"one\" twice"},
        {index_of({{"one", "missing"}}), files / "missing"},
        {index_of({}), "no \"weight_map\""},
        {R"({"weight_map":{"one":1}})", "strings"},
        {"[]", "no \"weight_map\""},
        {"{", "not JSON"}};
    for (auto const& each : faults) {
        INFO(each.index);
        CHECK_THAT(read_at(files.write("index.json", each.index)).error, ContainsSubstring(each.says));
    }
    // What the index lacks is loaded, too.
    auto const more = read_at(files.write("index.json", index_of({{"one", "a"}, {"four", "c"}})));
    CHECK(more.error.empty());
    CHECK(more.found.shard_of("two") != nullptr);
    auto const broken = read_list({c, files.write("broken", "12345678")});
    CHECK_THAT(broken.error, ContainsSubstring(files / "broken"));
}

TEST_CASE("all tensors of a checkpoint are brought into one block")
{
    shard_server const at{{}};
    auto const served = load_all(at.url());
    CHECK(served.error.empty());
    CHECK(served.bytes == fmt::format("thre{0:252}one {0:252}two ", ""));
    CHECK(served.stats.requests == 2);
    CHECK(at.requests() == 5);

    directory const files;
    static_cast<void>(files.write("a.safetensors", shard_of({"one"})));
    static_cast<void>(files.write("b.safetensors", shard_of({})));
    static_cast<void>(files.write("c.safetensors", shard_of({"two"})));
    auto const read = load_all(files / "");
    CHECK(read.error.empty());
    CHECK(read.bytes == fmt::format("one {0:252}two ", ""));
}

TEST_CASE("small shards are fetched at a time, and no more flows are used than the options have")
{
    auto const flows = GENERATE(1U, 3U, 8U);
    auto const is_s3 = GENERATE(false, true);
    constexpr std::string_view names = "abcdefgh";
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, unsigned> asked;
    unsigned open = 0;
    unsigned most_open = 0;
    std::map<std::string, std::string> files;
    std::vector<std::pair<std::string, std::string>> tensors;
    for (auto const name : names) {
        tensors.emplace_back(std::string(4, name), std::string(1, name));
        files[fmt::format("/bucket/{}", name)] = shard_of({tensors.back().first});
    }
    files["/bucket/index.json"] = index_of(tensors);
    http_server server{[&](http_request const& request, http_reply& reply) {
        {
            std::unique_lock lock{mutex};
            if (++asked[request.target] == 2) {  // the first time for its header
                most_open = std::max(most_open, ++open);
                changed.notify_all();
                // Answers when as many wait as there are flows, or the last of them is left.
                changed.wait_for(lock, 50s, [&] { return most_open >= flows; });
            }
        }
        http_content{files.at(request.target)}.serve(request, reply);
        std::scoped_lock const lock{mutex};
        open -= asked[request.target] == 2 ? 1 : 0;
    }};
    auto options = options_for_tests();
    options.flows = flows;
    options.timeout = 60s;
    options.crc32c = ingest::fetch_options::checksum::none;  // no HEAD
    options.s3.endpoint = server.url("");
    options.s3.anonymous = true;
    auto const served = load_all(is_s3 ? "s3://bucket/index.json" : server.url("/bucket/index.json"), options);
    CHECK(served.error.empty());
    for (std::size_t i = 0; i < names.size(); ++i)
        CHECK(served.bytes.substr(256 * i, 4) == tensors[i].first);
    CHECK(most_open == flows);
}

TEST_CASE("a changed file of a checkpoint, or one that differs from its index, is an error by name")
{
    shard_server const changed{{.etag = "\"another\""}};
    auto const other = load_all(changed.url());
    CHECK(other.code == ingest::errc::object_changed);
    CHECK(changed.has_a_shard(other.error));

    shard_server const lying{{.fields = "x-amz-checksum-crc32c: AAAAAA==\r\nx-amz-checksum-type: FULL_OBJECT\r\n"}};
    auto const wrong = load_all(lying.url());
    CHECK(wrong.code == ingest::errc::wrong_checksum);
    CHECK(lying.has_a_shard(wrong.error));
}

TEST_CASE("invalid options for a checkpoint are refused before the first request")
{
    shard_server const at{{}};
    auto mirrored = options_for_tests();
    mirrored.mirrors = {at.url()};
    CHECK_THROWS_AS(load_all(at.url(), mirrored), std::invalid_argument);
    CHECK_THROWS_AS(read([&](world& in) {
                        return ingest::async_read_checkpoint(in.io->get_executor(), *in.session, at.url(), mirrored);
                    }),
                    std::invalid_argument);
    CHECK(at.requests() == 3);
    // A layout of more tensors than there are.
    CHECK_THROWS_AS(load_all(at.url(), options_for_tests(), 1), std::invalid_argument);
    CHECK(at.requests() == 6);
}

TEST_CASE("a deadline is one of all files of a checkpoint")
{
    shard_server const at{{.pause = 700ms}};
    auto options = options_for_tests();
    options.flows = 1;  // one file after the other
    options.timeout = 20s;
    options.deadline = 1000ms;
    auto const result = load_all(at.url(), options);
    CHECK(result.code == ingest::errc::gave_up);
    CHECK_THAT(result.error, ContainsSubstring("deadline"));
}

TEST_CASE("a deadline is one of the index and all headers")
{
    auto options = options_for_tests();
    options.flows = 1;
    options.timeout = 20s;
    auto const from = GENERATE(0U, 1U);  // the index is slow, too, or the headers alone
    options.deadline = from == 0 ? 1800ms : 1000ms;
    shard_server const at{{.pause = 700ms, .from = from}};
    auto const result = read([&](world& in) {
        return ingest::async_read_checkpoint(in.io->get_executor(), *in.session, at.url(), options);
    });
    CHECK(result.code == ingest::errc::gave_up);
    CHECK_THAT(result.error, ContainsSubstring("deadline"));
}

}  // namespace gpurx::test
