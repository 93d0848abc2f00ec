// SPDX-License-Identifier: Apache-2.0
//
// Who asks for metrics well, badly, slowly, and far too often.
#include "scrapes.hpp"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "descriptors.hpp"
#include "eventually.hpp"

using namespace gpurx;
using namespace gpurx::gpurxd;
using namespace std::chrono_literals;
using asio::ip::tcp;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

namespace {

class answering {
  public:
    explicit answering(scrape_limits limits = {}, std::size_t page_size = 100)
    {
        tcp::acceptor door{io_, {asio::ip::address_v4::loopback(), 0}};
        here_ = door.local_endpoint();
        std::vector<detail::unique_fd> doors;
        doors.emplace_back(door.release());
        scrapes_ = std::make_unique<scrapes>(
            io_, std::move(doors),
            [this, page_size] {
                ++pages;
                return std::string(page_size, 'm') + "\n";
            },
            limits);
        thread_ = std::thread{[this] { io_.run(); }};
    }
    answering(answering const&) = delete;
    answering& operator=(answering const&) = delete;
    ~answering()
    {
        io_.stop();
        thread_.join();
    }
    [[nodiscard]] tcp::socket connected()
    {
        tcp::socket socket{client_};
        socket.connect(here_);
        return socket;
    }
    // All that is answered until the end.
    [[nodiscard]] std::string ask(std::string_view request)
    {
        auto socket = connected();
        error_code code;
        asio::write(socket, asio::buffer(request), code);
        return rest_of(socket);
    }
    [[nodiscard]] static std::string rest_of(tcp::socket& socket)
    {
        std::string all;
        error_code code;
        asio::read(socket, asio::dynamic_buffer(all), code);
        return all;
    }
    std::atomic<int> pages{0};

  private:
    asio::io_context io_{1};
    asio::io_context client_;
    tcp::socket first_{client_};  // the context opens what it needs now, and later sockets nothing but themselves
    tcp::endpoint here_;
    std::unique_ptr<scrapes> scrapes_;
    std::thread thread_;
};

constexpr char good_request[] = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";

}  // namespace

TEST_CASE("a scrape is answered with the page, and ends")
{
    answering at;
    auto const text = at.ask(good_request);
    CHECK_THAT(text, StartsWith("HTTP/1.1 200 OK\r\n"));
    CHECK_THAT(text, ContainsSubstring("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    CHECK_THAT(text, ContainsSubstring("Content-Length: 101\r\n"));
    CHECK_THAT(text, ContainsSubstring("\r\n\r\nmmm"));
    CHECK_THAT(at.ask("GET /metrics?name[]=x HTTP/1.0\r\n\r\n"), ContainsSubstring(" 200 OK"));
    auto const head = at.ask("HEAD /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    CHECK_THAT(head, ContainsSubstring("Content-Length: 101\r\n"));
    CHECK(head.ends_with("\r\n\r\n"));
}

TEST_CASE("what is no scrape is refused by name")
{
    answering at;
    CHECK_THAT(at.ask("GET / HTTP/1.1\r\nHost: here\r\n\r\n"), ContainsSubstring(" 404 "));
    CHECK_THAT(at.ask("POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n"), ContainsSubstring(" 405 "));
    CHECK_THAT(at.ask("GET /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), ContainsSubstring(" 400 "));
    CHECK_THAT(at.ask("not a request at all\r\n\r\n"), ContainsSubstring(" 400 "));
    CHECK_THAT(at.ask(fmt::format("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", std::string(100'000, 'h'))),
               ContainsSubstring(" 400 "));
    CHECK(at.pages == 0);
}

TEST_CASE("who asks slowly is answered by the end of the connection")
{
    answering at{{.lifetime = 300ms}};
    auto const begin = std::chrono::steady_clock::now();
    auto slow = at.connected();
    for (auto const each : std::string_view{good_request}.substr(0, 10)) {
        error_code hung_up;  // by then, perhaps
        asio::write(slow, asio::buffer(&each, 1), hung_up);
        std::this_thread::sleep_for(5ms);
    }
    CHECK(answering::rest_of(slow).empty());
    CHECK(std::chrono::steady_clock::now() - begin >= 300ms);
    CHECK(at.pages == 0);
}

TEST_CASE("who does not read what it asked for is not waited for")
{
    answering at{{.lifetime = 300ms}, 64U << 20};
    auto const before = test::open_descriptors();
    auto greedy = at.connected();
    asio::write(greedy, asio::buffer(good_request, sizeof good_request - 1));
    greedy.wait(tcp::socket::wait_read);  // so the other end is open
    REQUIRE(test::eventually([&] { return test::open_descriptors() == before + 1; }));
    CHECK(answering::rest_of(greedy).size() < 64U << 20);
    CHECK_THAT(at.ask(good_request), StartsWith("HTTP/1.1 200"));
}

TEST_CASE("those who ask for nothing make room for one who does")
{
    answering at{{.lifetime = 1h}};
    std::vector<tcp::socket> idle;
    for (int i = 0; i < 100; ++i)
        idle.push_back(at.connected());
    CHECK_THAT(at.ask(good_request), StartsWith("HTTP/1.1 200"));
    // The oldest has been closed, without a word, and long before its time.
    CHECK(answering::rest_of(idle.front()).empty());
}

TEST_CASE("who asks all the time gets the page of this second")
{
    answering at{{.age = 1h}};
    for (int i = 0; i < 200; ++i)
        CHECK_THAT(at.ask(good_request), StartsWith("HTTP/1.1 200"));
    CHECK(at.pages == 1);
}
