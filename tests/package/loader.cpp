// SPDX-License-Identifier: Apache-2.0
//
// What a user's first loader would be: tensors of a file on a server, through the installed library.
#include <boost/asio.hpp>
#include <cstdio>
#include <exception>
#include <gpurx/gpurx.hpp>
#include <gpurx/ingest/buffer.hpp>
#include <gpurx/ingest/safetensors.hpp>

namespace asio = boost::asio;
namespace ingest = gpurx::ingest;

namespace {

asio::awaitable<void> load(gpurx::rx_session& session, char const* url)
{
    ingest::object file{co_await asio::this_coro::executor, session, url};
    co_await file.async_open();
    auto const header = co_await ingest::async_read_safetensors_header(file);
    auto const layout = ingest::lay_out(header.tensors);
    auto const block = ingest::buffer::on_host(layout.size);
    auto const places = ingest::placements_of(header.tensors, layout, block.span());
    co_await file.async_fetch(places);
    for (auto const& tensor : header.tensors)
        std::puts(tensor.name.c_str());
}

}  // namespace

int main(int argc, char** argv)
try {
    if (argc != 2)
        return 2;
    gpurx::rx_session session{{}, gpurx::device_memory::on_host(8U << 20U)};
    asio::io_context io;
    asio::co_spawn(io, load(session, argv[1]), [](std::exception_ptr error) {
        if (error)
            std::rethrow_exception(error);
    });
    io.run();
} catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
