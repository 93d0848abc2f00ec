// SPDX-License-Identifier: Apache-2.0
//
// object into a GPU's memory, from a file: through pinned memory.
#include <gpurx/crc32c.hpp>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/ingest/buffer.hpp>

#include "../../ingest/file_bed.hpp"
#include "fake_world.hpp"

namespace gpurx::test {

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

}  // namespace gpurx::test
