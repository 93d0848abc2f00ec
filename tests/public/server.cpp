// SPDX-License-Identifier: Apache-2.0
//
// A server made of public headers alone:  server [INTERFACE]. Four threads run it; each connection has a strand. The
// first line of a connection says what follows. Threads of this program are the clients: on loopback, or in the lab's
// namespace "peer" at the other end of INTERFACE. The program fails if a byte is wrong. It fails if the transport is
// not devmem with INTERFACE, and not copy without.
#include <fcntl.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <gpurx/gpurx.hpp>
#include <iostream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using namespace std::chrono_literals;

namespace {

constexpr std::string_view ok = "ok\n";
constexpr std::string_view late = "late\n";
using frame_head = std::array<std::uint64_t, 2>;  // the size of the body, and its CRC32C; size 0: the last one

void check(bool right, char const* what)
{
    if (!right)
        throw std::runtime_error{what};
}

std::span<std::byte const> bytes_of(std::string_view text)
{
    return std::as_bytes(std::span{text});
}

// ---- the server ----

struct connection {
    gpurx::receiver rx;
    std::string ahead{};  // read with the line, and not consumed yet

    std::string take(std::size_t at_most)
    {
        auto const first = ahead.substr(0, at_most);
        ahead.erase(0, first.size());
        return first;
    }
};

std::uint32_t crc_of(gpurx::rx_buffer loan, std::uint32_t before)
{
    loan.acquire();
    for (auto const& piece : loan.fragments())
        before = gpurx::crc32c({reinterpret_cast<std::byte const*>(piece.address), piece.size}, before);
    return before;
}

asio::awaitable<void> read(connection& from, std::span<std::byte> to)
{
    auto const first = from.take(to.size());
    std::memcpy(to.data(), first.data(), first.size());
    co_await gpurx::async_read(from.rx, gpurx::host_span{to.subspan(first.size())});
}

asio::awaitable<void> serve_read(connection& from, std::size_t size, std::uint32_t crc)
{
    std::vector<std::byte> block(size);
    co_await read(from, block);
    check(gpurx::crc32c(block) == crc, "a read is not what was sent");
}

// The client pauses in the middle until this tells it of a time-out.
asio::awaitable<void> serve_loan(connection& from, std::size_t size, std::uint32_t crc)
{
    auto const first = from.take(size);
    auto left = size - first.size();
    auto received = gpurx::crc32c(bytes_of(first));
    for (bool told = false; left > 0;) {
        asio::steady_timer timer{from.rx.get_executor(), 20ms};
        auto [order, error, loan, expired] =
            co_await asio::experimental::make_parallel_group(from.rx.async_receive(left, asio::deferred),
                                                             timer.async_wait(asio::deferred))
                .async_wait(asio::experimental::wait_for_one{}, asio::use_awaitable);
        if (error && error != asio::error::operation_aborted)
            throw gpurx::system_error{error, from.rx.why()};
        if (error && !std::exchange(told, true))
            co_await asio::async_write(from.rx, asio::buffer(late), asio::use_awaitable);
        left -= loan.size();
        received = crc_of(std::move(loan), received);
    }
    check(received == crc, "loans are not what was sent");
}

asio::awaitable<void> serve_frames(connection& from)
{
    for (;;) {
        frame_head head{};
        co_await read(from, std::as_writable_bytes(std::span{head}));
        if (head[0] == 0)
            co_return;
        auto const first = from.take(head[0]);
        auto body = co_await from.rx.async_receive_exactly(head[0] - first.size());
        check(crc_of(std::move(body), gpurx::crc32c(bytes_of(first))) == head[1], "a frame is not what was sent");
    }
}

// The target of a POST is the CRC32C of its body.
asio::awaitable<void> serve_http(connection& from)
{
    beast::flat_buffer buffer;
    buffer.commit(asio::buffer_copy(buffer.prepare(from.ahead.size()), asio::buffer(from.ahead)));
    http::request<http::string_body> request;
    co_await http::async_read(from.rx, buffer, request, asio::use_awaitable);
    if (request.method() == http::verb::post)
        check("/" + std::to_string(gpurx::crc32c(bytes_of(request.body()))) == request.target(),
              "a POST is not what was sent");
    http::response<http::string_body> answer{http::status::ok, request.version(), ok};
    answer.prepare_payload();
    co_await http::async_write(from.rx, answer, asio::use_awaitable);
}

asio::awaitable<void> serve(gpurx::receiver rx)
{
    connection from{std::move(rx)};
    auto const size =
        co_await asio::async_read_until(from.rx, asio::dynamic_buffer(from.ahead), '\n', asio::use_awaitable);
    if (from.ahead.starts_with("GET ") || from.ahead.starts_with("POST ")) {
        co_await serve_http(from);
        co_return;
    }
    std::istringstream line{from.take(size)};
    std::string command;
    std::size_t bytes = 0;
    std::uint32_t crc = 0;
    line >> command >> bytes >> crc;
    if (command == "read")
        co_await serve_read(from, bytes, crc);
    else if (command == "loan")
        co_await serve_loan(from, bytes, crc);
    else if (command == "frames")
        co_await serve_frames(from);
    else
        throw std::runtime_error{"unknown command " + command};
    co_await asio::async_write(from.rx, asio::buffer(ok), asio::use_awaitable);
}

void report(std::exception_ptr failure)
try {
    if (failure)
        std::rethrow_exception(failure);
} catch (std::exception const& thrown) {
    std::cerr << "server: " << thrown.what() << '\n';
}

// Until the acceptor is closed.
asio::awaitable<void> accept(gpurx::acceptor& acceptor, gpurx::rx_session& session, asio::io_context& io)
{
    for (;;) {
        gpurx::receiver rx{asio::make_strand(io), session};
        auto const [error] = co_await acceptor.async_accept(rx, asio::as_tuple(asio::use_awaitable));
        if (error == asio::error::operation_aborted)
            co_return;
        if (error)
            throw gpurx::system_error{error, acceptor.why()};
        auto const strand = rx.get_executor();
        asio::co_spawn(strand, serve(std::move(rx)), report);
    }
}

// ---- its clients ----

std::string made(std::size_t size, unsigned seed)
{
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i)
        bytes[i] = static_cast<char>((i * 7 + seed + i / 251) % 253);
    return bytes;
}

std::string command(char const* name, std::string_view body)
{
    return name + (" " + std::to_string(body.size())) + " " + std::to_string(gpurx::crc32c(bytes_of(body))) + "\n";
}

void expect(tcp::socket& socket, std::string_view answer)
{
    std::string got(answer.size(), '\0');
    asio::read(socket, asio::buffer(got));
    check(got == answer, "the server did not say what it should");
}

void send_to_read(tcp::socket& socket)
{
    auto const body = made(1'000'003, 1);
    asio::write(socket, asio::buffer(command("read", body) + body));
    expect(socket, ok);
}

void send_to_loan(tcp::socket& socket)
{
    auto const body = made(500'001, 2);
    asio::write(socket, asio::buffer(command("loan", body) + body.substr(0, 200'000)));
    expect(socket, late);
    asio::write(socket, asio::buffer(body.substr(200'000)));
    expect(socket, ok);
}

void send_frames(tcp::socket& socket)
{
    std::string all = "frames\n";
    for (std::size_t i = 1; i <= 61; ++i) {
        auto const body = i == 61 ? std::string{} : made(i * 997, 3);
        frame_head const head{body.size(), gpurx::crc32c(bytes_of(body))};
        all.append(reinterpret_cast<char const*>(head.data()), sizeof head).append(body);
    }
    asio::write(socket, asio::buffer(all));
    expect(socket, ok);
}

void request(tcp::socket& socket, http::verb verb, std::string body)
{
    auto const target = verb == http::verb::get ? "/" : "/" + std::to_string(gpurx::crc32c(bytes_of(body)));
    http::request<http::string_body> request{verb, target, 11, std::move(body)};
    request.prepare_payload();
    http::write(socket, request);
    beast::flat_buffer buffer;
    http::response<http::string_body> answer;
    http::read(socket, buffer, answer);
    check(answer.result() == http::status::ok && answer.body() == ok, "the server did not answer a request");
}

void enter_peer_namespace()
{
    int const where = ::open("/run/netns/peer", O_RDONLY | O_CLOEXEC);
    if (where < 0 || ::setns(where, CLONE_NEWNET) != 0)
        throw std::system_error{errno, std::generic_category(), "enter /run/netns/peer"};
}

// All at the same time, each in a thread.
void run_clients(tcp::endpoint const& server, bool in_peer)
{
    std::vector<std::future<void>> clients;
    auto const start = [&](std::function<void(tcp::socket&)> client) {
        clients.push_back(std::async(std::launch::async, [=] {
            if (in_peer)
                enter_peer_namespace();
            asio::io_context io;
            tcp::socket socket{io};
            socket.connect(server);
            client(socket);
        }));
    };
    for (int i = 0; i < 2; ++i) {
        start(send_to_read);
        start(send_to_loan);
        start(send_frames);
        start([](auto& socket) { request(socket, http::verb::get, {}); });
        start([](auto& socket) { request(socket, http::verb::post, made(70'000, 4)); });
    }
    for (auto& client : clients)
        client.get();
}

void run(std::string const& interface)
{
    bool const in_lab = !interface.empty();
    gpurx::rx_session session{{.interface = interface}, gpurx::device_memory::on_host(32 << 20)};
    std::cout << "transport " << to_string(session.transport()) << std::endl;
    check(session.transport() == (in_lab ? gpurx::transport::devmem : gpurx::transport::copy), "the wrong transport");

    asio::io_context io{4};
    gpurx::acceptor acceptor{
        asio::make_strand(io), session, {asio::ip::make_address(in_lab ? "10.77.0.1" : "127.0.0.1"), 0}};
    auto const here = acceptor.local_endpoint();
    asio::co_spawn(acceptor.get_executor(), accept(acceptor, session, io), report);
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&io] { io.run(); });

    auto const stop = [&] { asio::post(acceptor.get_executor(), [&] { acceptor.close(); }); };
    try {
        run_clients(here, in_lab);
    } catch (...) {
        stop();
        throw;
    }
    stop();
    threads.clear();
    auto const seen = session.stats();
    std::cout << seen.bytes() << " bytes, " << seen.device_bytes << " of them in device memory" << std::endl;
    check((seen.device_bytes > 0) == in_lab, "the bytes did not come by that transport");
}

}  // namespace

int main(int argc, char** argv)
try {
    run(argc > 1 ? argv[1] : "");
    std::cout << "ok" << std::endl;
    return 0;
} catch (std::exception const& failure) {
    std::cerr << "error: " << failure.what() << '\n';
    return 1;
}
