// SPDX-License-Identifier: Apache-2.0
//
// Objects into a GPU's memory: of HTTP, whose headers are read on the host and bodies never are, and of a file, through
// pinned memory.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/crc.hpp>
#include <gpurx/crc32c.hpp>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/ingest/buffer.hpp>
#include <gpurx/ingest/object.hpp>
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

}  // namespace

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
