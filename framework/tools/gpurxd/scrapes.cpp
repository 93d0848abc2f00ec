// SPDX-License-Identifier: Apache-2.0
#include "scrapes.hpp"

#include <sys/socket.h>

#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_static_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/span_body.hpp>
#include <boost/beast/http/write.hpp>
#include <utility>

namespace gpurx::gpurxd {

namespace http = boost::beast::http;

namespace {

using stream_socket = asio::generic::stream_protocol::socket;
using page_source = std::function<std::shared_ptr<std::string const>()>;

constexpr std::size_t most_of_a_request = 4096;
constexpr std::size_t most_drained = 65536;

struct answer {
    http::status status = http::status::ok;
    std::shared_ptr<std::string const> text;
};

answer sentence(http::status status, char const* text)
{
    return {status, std::make_shared<std::string const>(text)};
}

answer answer_to(http::request<http::empty_body> const& request, page_source const& page)
{
    if (request.method() != http::verb::get && request.method() != http::verb::head)
        return sentence(http::status::method_not_allowed, "GET /metrics\n");
    auto const target = request.target().substr(0, request.target().find('?'));
    if (target != "/metrics")
        return sentence(http::status::not_found, "There is /metrics\n");
    return {http::status::ok, page()};
}

}  // namespace

// One connection. It holds itself as long as something of it is under way.
class scrape : public std::enable_shared_from_this<scrape> {
  public:
    scrape(stream_socket socket, page_source page, scrape_limits const& limits)
        : socket_{std::move(socket)}, timer_{socket_.get_executor(), limits.lifetime}, page_{std::move(page)}
    {
        parser_.header_limit(static_cast<std::uint32_t>(limits.request_bytes));
        parser_.body_limit(std::uint64_t{0});
    }

    void begin()
    {
        timer_.async_wait([self = weak_from_this()](error_code code) {
            auto const here = self.lock();
            if (!code && here)
                here->close();
        });
        http::async_read(socket_, buffer_, parser_,
                         [self = shared_from_this()](error_code code, std::size_t) { self->reply(code); });
    }
    void close()
    {
        error_code ignored;
        socket_.close(ignored);
    }

  private:
    void reply(error_code code)
    {
        if (code == http::error::end_of_stream || !socket_.is_open())
            return;
        auto const what = code ? sentence(http::status::bad_request, "GET /metrics, in a short request\n")
                               : answer_to(parser_.get(), page_);
        text_ = what.text;
        response_.result(what.status);
        response_.version(11);
        response_.keep_alive(false);
        response_.set(http::field::content_type, what.status == http::status::ok
                                                     ? "text/plain; version=0.0.4; charset=utf-8"
                                                     : "text/plain; charset=utf-8");
        if (what.status == http::status::method_not_allowed)
            response_.set(http::field::allow, "GET, HEAD");
        response_.content_length(text_->size());
        if (code || parser_.get().method() != http::verb::head)
            response_.body() = {text_->data(), text_->size()};
        http::async_write(socket_, response_, [self = shared_from_this()](error_code, std::size_t) { self->finish(); });
    }
    // Its end is read before the socket is closed: else what came after the request would reset the connection, and
    // the answer might be lost.
    void finish()
    {
        error_code ignored;
        socket_.shutdown(stream_socket::shutdown_send, ignored);
        buffer_.clear();
        drain();
    }
    void drain()
    {
        socket_.async_read_some(buffer_.prepare(most_of_a_request),
                                [self = shared_from_this()](error_code code, std::size_t size) {
                                    self->drained_ += size;
                                    if (!code && self->drained_ < most_drained)
                                        self->drain();
                                });
    }

    stream_socket socket_;
    asio::steady_timer timer_;
    page_source page_;
    std::size_t drained_ = 0;
    boost::beast::flat_static_buffer<2 * most_of_a_request> buffer_;
    http::request_parser<http::empty_body> parser_;
    std::shared_ptr<std::string const> text_;
    http::response<http::span_body<char const>> response_;
};

scrapes::scrapes(asio::io_context& io, std::vector<detail::unique_fd> listening, std::function<std::string()> page,
                 scrape_limits limits)
    : io_{io}, page_{std::move(page)}, limits_{limits}
{
    for (auto& socket : listening) {
        doors_.push_back(std::make_unique<asio::posix::stream_descriptor>(io, socket.release()));
        doors_.back()->non_blocking(true);
        wait_at(*doors_.back());
    }
}

scrapes::~scrapes() = default;

void scrapes::wait_at(asio::posix::stream_descriptor& door)
{
    door.async_wait(asio::posix::stream_descriptor::wait_read, [this, &door](error_code code) {
        if (code)
            return;
        take(door.native_handle());
        wait_at(door);
    });
}

void scrapes::take(int door)
{
    detail::unique_fd connection{::accept4(door, nullptr, nullptr, SOCK_CLOEXEC)};
    if (!connection)
        return;
    std::erase_if(open_, [](auto const& one) { return one.expired(); });
    while (open_.size() >= limits_.connections) {
        if (auto const oldest = open_.front().lock())
            oldest->close();
        open_.pop_front();
    }
    int family = 0;
    socklen_t size = sizeof family;
    ::getsockopt(connection.get(), SOL_SOCKET, SO_DOMAIN, &family, &size);
    error_code code;
    stream_socket socket{io_};
    if (socket.assign({family, 0}, connection.get(), code))
        return;
    static_cast<void>(connection.release());
    auto const one = std::make_shared<scrape>(
        std::move(socket), [this] { return page_now(); }, limits_);
    open_.push_back(one);
    one->begin();
}

std::shared_ptr<std::string const> scrapes::page_now()
{
    auto const now = std::chrono::steady_clock::now();
    if (last_page_ == nullptr || now - last_page_time_ >= limits_.age) {
        last_page_ = std::make_shared<std::string const>(page_());
        last_page_time_ = now;
    }
    return last_page_;
}

}  // namespace gpurx::gpurxd
