// SPDX-License-Identifier: Apache-2.0
//
// Objects into a GPU's memory: of HTTP, whose headers are read on the host and bodies never are. Those of https and of
// files come through pinned memory.
#include <fmt/format.h>
#include <array>
#include <atomic>
#include <cstring>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/crc.hpp>
#include <functional>
#include <gpurx/crc32c.hpp>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/ingest/buffer.hpp>
#include <gpurx/ingest/checkpoint.hpp>
#include <gpurx/ingest/object.hpp>
#include <latch>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "../../ingest/file_bed.hpp"
#include "../../ingest/http_bed.hpp"
#include "fake_world.hpp"
#include "net/wire.hpp"

namespace gpurx::test {

namespace {

using ingest::placement;

struct copy_on_gpu : clean_driver, world {
    copy_on_gpu() : world{transport::copy, {}, memory_on_gpu()} {}
};

std::string base64_crc_of(std::string const& bytes)
{
    boost::crc_optimal<32, 0x1edc6f41, 0xffffffff, 0xffffffff, true, true> sum;
    sum.process_bytes(bytes.data(), bytes.size());
    std::uint64_t const bits = std::uint64_t{sum.checksum()} << 4;
    std::string text;
    for (int shift = 30; shift >= 0; shift -= 6)
        text += "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[bits >> shift & 63];
    return text + "==";
}

template <class Work>
void run(world& in, Work work)
{
    std::optional<std::exception_ptr> ended;
    asio::co_spawn(*in.io, std::move(work), [&](std::exception_ptr failure) { ended = failure; });
    in.run_until([&] { return ended.has_value(); });
    if (*ended)
        std::rethrow_exception(*ended);
}

// Some of it to the host, some to the GPU, with a cut between; checked by the server's checksum and by its bytes.
void load(world& in)
{
    constexpr std::size_t front_size = 1'234;
    http_content object{content_of(200'001)};
    object.fields =
        "x-amz-checksum-type: FULL_OBJECT\r\nx-amz-checksum-crc32c: " + base64_crc_of(object.bytes) + "\r\n";
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.number == 5) {
            reply.send(object.header(request));
            reply.send(object.body(request).substr(0, 3'333));
            reply.reset();
        } else {
            object.serve(request, reply);
        }
    }};
    auto const stream = cuda_stream::on(0);
    auto const landing = ingest::buffer::on_gpu(0, object.bytes.size() - front_size);
    std::string front(front_size, ' ');
    ingest::object file{
        in.io->get_executor(), *in.session, server.url(), {.flows = 3, .chunk_size = 20'000, .stream = stream}};
    auto const launches = fake_cuda::calls("cuLaunchKernel");
    auto const pageable = fake_cuda::pageable_copies();
    run(in, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        co_await file.async_read_front(host_span{std::span{front}});
        placement const rest{front_size, landing.span()};
        co_await file.async_fetch({&rest, 1});
    });
    CHECK(fake_cuda::calls("cuLaunchKernel") > launches);
    CHECK(fake_cuda::pageable_copies() == pageable);  // bytes that came with a header, too
    CHECK(file.crc32c() == file.announced_crc32c());
    CHECK(front == object.bytes.substr(0, front_size));
    CHECK(is_pattern(read_bytes(gpu_or_skip(), landing.span().address(), landing.size()), front_size));
}

constexpr std::size_t flows = 4;
constexpr std::size_t chunk_size = 20'000;
constexpr std::size_t object_size = 20 * chunk_size;

// Streams that a function was called on since.
class used_streams {
  public:
    explicit used_streams(char const* function) : function_{function}, before_{fake_cuda::calls_on_streams(function)} {}

    [[nodiscard]] std::set<CUstream> all() const
    {
        std::set<CUstream> used;
        for (auto const& [stream, calls] : fake_cuda::calls_on_streams(function_)) {
            auto const known = before_.find(stream);
            if (known == before_.end() || known->second < calls)
                used.insert(stream);
        }
        return used;
    }

  private:
    char const* function_;
    std::map<CUstream, std::size_t> before_;
};

bool is_idle(cuda_stream_ref stream)
{
    detail::cuda::context_scope const scope{gpu_or_skip()};
    return gpu_or_skip().calls().cuStreamQuery(stream.get()) == CUDA_SUCCESS;
}

// A server that answers later requests once each connection has sent one.
class server_of_flows {
  public:
    using handler = std::function<void(http_request const&, http_reply&)>;

    server_of_flows() : server_of_flows{[this](auto const& to, auto& reply) { object_.serve(to, reply); }} {}
    explicit server_of_flows(handler answer)
        : server_{[this, answer = std::move(answer)](http_request const& request, http_reply& reply) {
              if (request.number == 0)
                  return object_.serve(request, reply);
              if (!met_.at(request.connection).exchange(true))
                  all_there_.arrive_and_wait();
              answer(request, reply);
          }}
    {}
    [[nodiscard]] std::string url() const { return server_.url(); }
    [[nodiscard]] http_content const& object() const { return object_; }

  private:
    http_content object_{content_of(object_size)};
    std::latch all_there_{flows};
    std::array<std::atomic<bool>, 2 * flows> met_{};
    http_server server_;
};

asio::awaitable<void> load(world& in, std::string url, cuda_stream_ref stream, memory_span to)
{
    ingest::object file{in.io->get_executor(),
                        *in.session,
                        url,
                        {.flows = flows,
                         .chunk_size = chunk_size,
                         .attempts = 1,
                         .crc32c = ingest::fetch_options::checksum::none,
                         .stream = stream}};
    co_await file.async_open();
    placement const all{0, to};
    co_await file.async_fetch({&all, 1});
}

// Loads an object, and returns the streams of its flows.
std::set<CUstream> streams_of_load(world& in, cuda_stream_ref stream, memory_span to)
{
    server_of_flows const server;
    used_streams const used{"cuMemcpyHtoDAsync"};
    run(in, [&] { return load(in, server.url(), stream, to); });
    auto streams = used.all();
    CHECK(streams.size() == flows);
    CHECK_FALSE(streams.contains(stream.get()));
    return streams;
}

}  // namespace

TEST_CASE("flows of an object copy on a stream each, and the object's stream waits for all of them")
{
    copy_on_gpu in;
    auto const stream = cuda_stream::on(0);
    auto const landing = ingest::buffer::on_gpu(0, object_size);
    auto const streams = streams_of_load(in, stream, landing.span());
    REQUIRE(soon([&] { return is_idle(stream); }));
    auto const made = fake_cuda::calls("cuStreamCreate");
    for (auto* const each : streams)
        fake_cuda::hold(each);
    CHECK(streams_of_load(in, stream, landing.span()) == streams);
    CHECK(fake_cuda::calls("cuStreamCreate") == made);
    for (auto* const each : streams) {
        CHECK_FALSE(is_idle(stream));
        fake_cuda::let_go(each);
    }
    CHECK(soon([&] { return is_idle(stream); }));
    CHECK(is_pattern(read_bytes(gpu_or_skip(), landing.span().address(), landing.size()), 0));
}

TEST_CASE("the stream of an object that cannot be loaded waits for what its flows have enqueued")
{
    copy_on_gpu in;
    auto const stream = cuda_stream::on(0);
    auto const landing = ingest::buffer::on_gpu(0, object_size);
    auto const streams = streams_of_load(in, stream, landing.span());
    REQUIRE(soon([&] { return is_idle(stream); }));
    for (auto* const each : streams)
        fake_cuda::hold(each);
    used_streams const used{"cuMemcpyHtoDAsync"};
    server_of_flows const server{[&](http_request const& request, http_reply& reply) {
        if (request.connection != 1)
            return server.object().serve(request, reply);
        static_cast<void>(soon([&] { return !used.all().empty(); }));
        http_content{server.object().bytes, "\"another\""}.serve(request, reply);
    }};
    CHECK_THROWS_AS(run(in, [&] { return load(in, server.url(), stream, landing.span()); }), system_error);
    // Memory that is freed in the order of this stream is not written afterwards.
    CHECK_FALSE(is_idle(stream));
    for (auto* const each : streams)
        fake_cuda::let_go(each);
    CHECK(soon([&] { return is_idle(stream); }));
}

TEST_CASE("an object's stream may end before the program's io_context, while the object is loaded")
{
    copy_on_gpu in;
    auto stream = cuda_stream::on(0);
    auto landing = ingest::buffer::on_gpu(0, object_size);
    std::latch end{1};
    used_streams const used{"cuMemcpyHtoDAsync"};
    server_of_flows const server{[&](http_request const& request, http_reply& reply) {
        if (request.connection == 1)
            return end.wait();
        server.object().serve(request, reply);
    }};
    asio::co_spawn(*in.io, load(in, server.url(), stream, landing.span()), asio::detached);
    in.run_until([&] { return used.all().size() == flows - 1; });
    stream = {};
    in.io.reset();
    for (auto* const each : used.all())
        CHECK(fake_cuda::queued(each) == 0);
    landing = {};
    end.count_down();
}

TEST_CASE("flows of a file copy on a stream each, and read on while their last bytes cross")
{
    copy_on_gpu in;
    directory const files;
    auto const path = files.write("file", content_of(object_size));
    auto const stream = cuda_stream::on(0);
    auto const landing = ingest::buffer::on_gpu(0, object_size);
    ingest::object file{
        in.io->get_executor(), *in.session, path, {.flows = flows, .chunk_size = chunk_size, .stream = stream}};
    fake_cuda::hold_all();
    used_streams const used{"cuLaunchKernel"};
    bool done = false;
    asio::co_spawn(
        *in.io,
        [&]() -> asio::awaitable<void> {
            co_await file.async_open();
            placement const all{0, landing.span()};
            co_await file.async_fetch({&all, 1});
        },
        [&](std::exception_ptr failure) { done = failure == nullptr; });
    // The first piece of each flow is on its way, and the second is read.
    in.run_until([&] { return used.all().size() == flows && file.stats().requests == 2 * flows; });
    CHECK_FALSE(used.all().contains(stream.get()));
    fake_cuda::let_go_all();
    in.run_until([&] { return done; });
    CHECK(is_idle(stream));
    CHECK(is_pattern(read_bytes(gpu_or_skip(), landing.span().address(), landing.size()), 0));
}

TEST_CASE("small shards in files are loaded at a time, as many as there are flows")
{
    copy_on_gpu in;
    directory const files;
    constexpr std::size_t shards = 8;
    ingest::checkpoint model;
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < shards; ++i) {
        auto const header = fmt::format(R"({{"t{}":{{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}}})", i);
        auto text = std::string{static_cast<char>(header.size())} + std::string(7, '\0') + header;
        paths.push_back(files.write(fmt::format("{}.safetensors", i), text + fmt::format("tensor {}", i)));
    }
    auto const stream = cuda_stream::on(0);
    ingest::fetch_options const options{.flows = flows, .stream = stream};
    auto const landing = ingest::buffer::on_gpu(0, shards * 256);
    bool done = false;
    used_streams const used{"cuLaunchKernel"};
    auto const launches = [before = fake_cuda::calls("cuLaunchKernel")] {
        return fake_cuda::calls("cuLaunchKernel") - before;
    };
    asio::co_spawn(
        *in.io,
        [&]() -> asio::awaitable<void> {
            auto const executor = in.io->get_executor();
            model = co_await ingest::async_read_shards(executor, *in.session, paths, options);
            fake_cuda::hold(stream.get());
            co_await ingest::async_fetch_checkpoint(executor, *in.session, model, ingest::lay_out(model),
                                                    landing.span(), options);
        },
        [&](std::exception_ptr failure) { done = failure == nullptr; });
    in.run_until([&] { return launches() == flows; });
    CHECK(used.all() == std::set<CUstream>{stream.get()});  // each has one chunk
    in.settle();
    CHECK(launches() == flows);
    fake_cuda::let_go(stream.get());
    in.run_until([&] { return done; });
    CHECK(launches() == shards);
    auto const bytes = read_bytes(gpu_or_skip(), landing.span().address(), landing.size());
    CHECK(std::memcmp(bytes.data() + 256 * (shards - 1), "tensor 7", 8) == 0);
}

TEST_CASE("an object comes into a GPU's memory through transport copy")
{
    copy_on_gpu in;
    load(in);
}

TEST_CASE("an object comes into a GPU's memory through transport devmem")
{
    nic_into_gpu in;
    load(in);
}

namespace {

// A server of https, and an object of its on the way into a GPU's memory.
struct https_into_gpu {
    https_into_gpu(world& in, std::size_t size, std::size_t first)
        : object{std::string(size, ' ')}, landing{ingest::buffer::on_gpu(0, size)}
    {
        fill_with_pattern(std::as_writable_bytes(std::span{object.bytes}), first);
        ingest::fetch_options options{.flows = 2, .chunk_size = 3 << 20, .stream = stream};
        options.tls.ca_file = ca.path();
        file.emplace(in.io->get_executor(), *in.session, server.url(), options);
    }

    void fetch(world& in)
    {
        run(in, [this]() -> asio::awaitable<void> {
            co_await file->async_open();
            placement const all{0, landing.span()};
            co_await file->async_fetch({&all, 1});
        });
    }

    http_content object;
    certificate_authority authority;
    file_with ca{authority.pem()};
    http_server server{[this](http_request const& request, http_reply& reply) { object.serve(request, reply); },
                       tls_manner{.own = authority.issue()}};
    cuda_stream stream = cuda_stream::on(0);
    ingest::buffer landing;
    std::optional<ingest::object> file;
};

bool has_passed(world& in, cuda_stream const& stream)
{
    run(in, [&]() -> asio::awaitable<void> { co_await async_wait(in.io->get_executor(), stream); });
    return true;
}

}  // namespace

TEST_CASE("an object of https comes into a GPU's memory through pinned memory")
{
    copy_on_gpu in;
    // Each chunk of pinned memory is used again.
    https_into_gpu load{in, 2'500'001, 7};
    auto const pageable = fake_cuda::pageable_copies();
    load.fetch(in);
    CHECK(fake_cuda::pageable_copies() == pageable);
    CHECK(has_passed(in, load.stream));
    CHECK(is_pattern(read_bytes(gpu_or_skip(), load.landing.span().address(), load.landing.size()), 7));
}

TEST_CASE("pinned memory of a connection of https that has ended stays until the GPU has read it")
{
    copy_on_gpu in;
    https_into_gpu first{in, 600'000, 0};
    https_into_gpu second{in, 600'000, 77};
    fake_cuda::hold(first.stream.get());
    first.fetch(in);
    first.file.reset();
    second.fetch(in);
    second.file.reset();
    CHECK(has_passed(in, second.stream));
    fake_cuda::let_go(first.stream.get());
    CHECK(has_passed(in, first.stream));
    in.settle();
    for (auto const* each : {&first, &second})
        CHECK(is_pattern(read_bytes(gpu_or_skip(), each->landing.span().address(), each->landing.size()),
                         each == &first ? 0 : 77));
}

TEST_CASE("a load of https that is cancelled while a GPU reads its pinned memory ends, and frees nothing that is read")
{
    copy_on_gpu in;
    https_into_gpu load{in, 2'500'001, 0};
    fake_cuda::hold(load.stream.get());
    asio::cancellation_signal cancel;
    std::optional<std::exception_ptr> ended;
    auto const work = [&]() -> asio::awaitable<void> {
        co_await load.file->async_open();
        placement const all{0, load.landing.span()};
        co_await load.file->async_fetch({&all, 1});
    };
    asio::co_spawn(*in.io, work,
                   asio::bind_cancellation_slot(cancel.slot(), [&](std::exception_ptr failure) { ended = failure; }));
    // Both chunks are under way.
    in.run_until([&] { return fake_cuda::queued(load.stream.get()) >= 2; });
    in.settle();
    CHECK_FALSE(ended.has_value());
    cancel.emit(asio::cancellation_type::terminal);
    in.run_until([&] { return ended.has_value(); });
    CHECK(*ended != nullptr);
    load.file.reset();
    fake_cuda::let_go(load.stream.get());
    CHECK(has_passed(in, load.stream));
    in.settle();
}

TEST_CASE("a file comes into a GPU's memory, and some of it to the host")
{
    clean_driver const clean;
    world in{transport::copy, {}, memory_on_gpu()};
    directory const files;
    auto const bytes = content_of(300'001);
    auto const path = files.write("file", bytes);
    constexpr std::size_t front_size = 1'234;
    constexpr std::size_t on_host_size = 50'000;
    auto const stream = cuda_stream::on(0);
    auto const landing = ingest::buffer::on_gpu(0, bytes.size() - front_size - on_host_size);
    std::string front(front_size, ' ');
    std::string on_host(on_host_size, ' ');
    outcome result;
    ingest::object file{
        in.io->get_executor(),
        *in.session,
        path,
        {.flows = 3, .chunk_size = 20'000, .crc32c = ingest::fetch_options::checksum::always, .stream = stream}};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        co_await file.async_read_front(host_span{std::span{front}});
        std::array const places{ingest::placement{front_size, span_of(on_host)},
                                ingest::placement{front_size + on_host_size, landing.span()}};
        co_await file.async_fetch(places);
    });
    CHECK(result.error.empty());
    CHECK(front == bytes.substr(0, front_size));
    CHECK(on_host == bytes.substr(front_size, on_host_size));
    CHECK(is_pattern(read_bytes(gpu_or_skip(), landing.span().address(), landing.size()), front_size + on_host_size));
    CHECK(file.crc32c() == crc32c(std::as_bytes(std::span{bytes})));
}

TEST_CASE("bytes that a read into a GPU leaves in its socket count as arrived, and are not at hand")
{
    copy_on_gpu in;
    constexpr std::size_t size = 1 << 20;
    gpu_test_stream stream{gpu_or_skip()};
    gpu_bytes const tensor{gpu_or_skip(), size};
    auto const wire = ingest::detail::make_flow_wire(in.io->get_executor(), *in.session);
    bool done = false;
    std::vector<asio::ip::tcp::endpoint> const server{in.acceptor.local_endpoint()};
    auto const read = [&]() -> asio::awaitable<void> {
        // Not in the macro, which has the expression twice: g++ 12 awaits both.
        auto const refused = co_await wire->async_connect(server);
        CHECK_FALSE(refused);
        auto const [code, placed] = co_await wire->async_read(tensor.span(), stream.ref());
        CHECK_FALSE(code);
        CHECK(placed == size);
        done = true;
    };
    asio::co_spawn(*in.io, read, asio::detached);
    in.settle();
    auto peer = in.acceptor.accept();
    asio::write(peer, asio::buffer(pattern(0, 1000)));
    in.settle();
    CHECK(wire->arrived() == 1000);
    CHECK_FALSE(wire->at_hand());
    {
        std::jthread const feeder{[&] { asio::write(peer, asio::buffer(pattern(1000, size - 1000))); }};
        in.run_until([&] { return done; });
    }
    CHECK(wire->arrived() == size);
    stream.finish();
    CHECK(is_pattern(tensor.read(), 0));
}

}  // namespace gpurx::test
