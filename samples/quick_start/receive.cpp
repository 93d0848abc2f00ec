// SPDX-License-Identifier: Apache-2.0
#include <gpurx/gpurx.hpp>

#include <boost/asio/use_future.hpp>
#include <cstdio>

namespace asio = boost::asio;

int main(int argc, char** argv)
{
    auto memory = gpurx::device_memory::on_host(16 << 20);  // the NIC writes here; on_gpu(0, 16 << 20) with a GPU
    gpurx::rx_session session{{}, memory};                  // {.interface = "eth1"} receives by devmem TCP
    std::puts(session.explain().c_str());                   // names the transport in use, and the reason

    asio::io_context context;
    gpurx::receiver flow{context, session};
    auto receive = [&]() -> asio::awaitable<void> {
        co_await flow.async_connect({asio::ip::make_address(argc > 1 ? argv[1] : "127.0.0.1"), 9000});
        gpurx::rx_buffer loan = co_await flow.async_receive();  // bytes in the pages that the NIC filled
        std::printf("%zu bytes in %zu fragments\n", loan.size(), loan.fragments().size());
    };  // ~rx_buffer returns the pages to the NIC
    auto received = asio::co_spawn(context, receive(), asio::use_future);
    context.run();
    received.get();  // throws the reason of a failure
}
