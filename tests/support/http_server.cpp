// SPDX-License-Identifier: Apache-2.0
#include "http_server.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>

namespace gpurx::test {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

asio::ssl::context context_of(tls_manner const& manner)
{
    asio::ssl::context context{asio::ssl::context::tls_server};
    if (manner.only_old) {
        SSL_CTX_set_cipher_list(context.native_handle(), "DEFAULT@SECLEVEL=0");
        SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_VERSION);
        SSL_CTX_set_max_proto_version(context.native_handle(), TLS1_1_VERSION);
    }
    context.use_certificate_chain(asio::buffer(manner.own.certificate));
    context.use_private_key(asio::buffer(manner.own.key), asio::ssl::context::pem);
    if (!manner.clients_from.empty()) {
        context.add_certificate_authority(asio::buffer(manner.clients_from));
        context.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
    }
    return context;
}

// A port that no server of this process has had: clients remember by the address what a host can do.
tcp::acceptor listening(asio::io_context& io, tcp::endpoint const& at)
{
    static std::mutex mutex;
    static std::set<std::uint16_t> known;
    std::scoped_lock const lock{mutex};
    for (;;) {
        tcp::acceptor made{io, at};
        if (known.insert(made.local_endpoint().port()).second || at.port() != 0)
            return made;
    }
}

}  // namespace

void http_reply::send(std::string_view bytes)
{
    write_(bytes);
}

void http_reply::send_raw(std::string_view bytes)
{
    boost::system::error_code gone;
    asio::write(socket_, asio::buffer(bytes.data(), bytes.size()), gone);
}

void http_reply::send_slowly(std::string_view bytes)
{
    for (auto const& byte : bytes)
        send({&byte, 1});
}

namespace {

// Until one of the two ends.
void copy(tcp::socket& from, tcp::socket& to)
{
    boost::system::error_code ended;
    std::string bytes(64 << 10, '\0');
    while (!ended) {
        auto const size = from.read_some(asio::buffer(bytes), ended);
        boost::system::error_code gone;
        asio::write(to, asio::buffer(bytes.data(), size), gone);
    }
    to.shutdown(tcp::socket::shutdown_both, ended);
    from.shutdown(tcp::socket::shutdown_both, ended);
}

}  // namespace

void http_reply::tunnel_to(std::uint16_t port)
{
    asio::io_context io{1};
    tcp::socket other{io};
    other.connect({asio::ip::address_v4::loopback(), port});
    other.set_option(tcp::no_delay{true});
    send("HTTP/1.1 200 Connection established\r\n\r\n");
    std::jthread const back{[&] { copy(other, socket_); }};
    copy(socket_, other);
}

void http_reply::close()
{
    boost::system::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
}

void http_reply::reset()
{
    boost::system::error_code ignored;
    socket_.set_option(asio::socket_base::linger{true, 0}, ignored);
    socket_.close(ignored);
}

bool http_reply::another_waits() const
{
    boost::system::error_code ignored;
    return !pending_.empty() || socket_.available(ignored) > 0;
}

http_server::http_server(handler answer, std::optional<tls_manner> tls, tcp::endpoint const& at)
    : answer_{std::move(answer)}, tls_{std::move(tls)}, acceptor_{listening(io_, at)}, thread_{[this] { accept(); }}
{}

http_server::~http_server()
{
    ending_ = true;
    ::shutdown(acceptor_.native_handle(), SHUT_RDWR);
    {
        std::scoped_lock const lock{mutex_};
        for (auto const& [number, descriptor] : open_)
            ::shutdown(descriptor, SHUT_RDWR);
    }
    thread_.join();
}

std::string http_server::url(std::string_view path, std::string_view host) const
{
    return fmt::format("{}://{}:{}{}", tls_ ? "https" : "http", host, port(), path);
}

std::vector<http_request> http_server::requests() const
{
    std::scoped_lock const lock{mutex_};
    return requests_;
}

void http_server::accept()
{
    std::vector<std::jthread> threads;
    while (!ending_) {
        boost::system::error_code code;
        auto socket = acceptor_.accept(code);
        if (code)
            continue;
        socket.set_option(tcp::no_delay{true}, code);
        threads.emplace_back([this, number = connections_++, owned = std::move(socket)]() mutable {
            {
                std::scoped_lock const lock{mutex_};
                open_[number] = owned.native_handle();
                if (ending_)
                    ::shutdown(owned.native_handle(), SHUT_RDWR);
            }
            serve(owned, number);
            std::scoped_lock const lock{mutex_};
            open_.erase(number);
            boost::system::error_code ignored;
            owned.close(ignored);
        });
    }
}

void http_server::serve(tcp::socket& socket, unsigned connection)
{
    if (tls_)
        serve_tls(socket, connection);
    else
        converse(socket, socket, connection);
}

void http_server::serve_tls(tcp::socket& socket, unsigned connection)
{
    if (tls_->stalls) {
        boost::system::error_code closed;
        std::array<char, 1000> bytes{};
        while (!closed)
            socket.read_some(asio::buffer(bytes), closed);
        return;
    }
    if (auto const bytes = tls_->spoils ? tls_->spoils(connection) : std::string{}; !bytes.empty()) {
        // Its hello first: a close would reset what is not read.
        boost::system::error_code ignored;
        std::array<char, 4000> hello{};
        socket.read_some(asio::buffer(hello), ignored);
        asio::write(socket, asio::buffer(bytes), ignored);
        return;
    }
    auto context = context_of(*tls_);
    asio::ssl::stream<tcp::socket&> stream{socket, context};
    boost::system::error_code failed;
    stream.handshake(asio::ssl::stream_base::server, failed);
    if (!failed)
        converse(stream, socket, connection);
}

template <class Stream>
void http_server::converse(Stream& stream, tcp::socket& socket, unsigned connection)
{
    auto const write = [&stream](std::string_view bytes) {
        boost::system::error_code gone;
        asio::write(stream, asio::buffer(bytes.data(), bytes.size()), gone);
    };
    std::string pending;
    for (;;) {
        boost::system::error_code code;
        auto const size = asio::read_until(stream, asio::dynamic_buffer(pending), "\r\n\r\n", code);
        if (code)
            return;
        auto const request = note(pending.substr(0, size), connection);
        pending.erase(0, size);
        http_reply reply{socket, write, pending};
        answer_(request, reply);
        if (!socket.is_open())
            return;
    }
}

http_request http_server::note(std::string text, unsigned connection)
{
    http_request request{.target = {}, .text = std::move(text), .range = {}, .connection = connection};
    auto const begin = request.text.find(' ') + 1;
    request.target = request.text.substr(begin, request.text.find(' ', begin) - begin);
    constexpr std::string_view field = "Range: bytes=";
    if (auto const at = request.text.find(field); at != std::string::npos) {
        char* rest = nullptr;
        auto const first = std::strtoull(request.text.c_str() + at + field.size(), &rest, 10);
        request.range = std::pair{std::uint64_t{first}, std::uint64_t{std::strtoull(rest + 1, nullptr, 10)}};
    }
    std::scoped_lock const lock{mutex_};
    request.number = static_cast<unsigned>(requests_.size());
    requests_.push_back(request);
    return request;
}

std::string http_content::header(http_request const& to) const
{
    auto const common = fmt::format("ETag: {}\r\n{}Content-Length: {}\r\n\r\n", etag, fields, body(to).size());
    if (!to.range)
        return "HTTP/1.1 200 OK\r\n" + common;
    if (to.range->first >= bytes.size())
        return fmt::format("HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */{}\r\n", bytes.size()) +
               common;
    return fmt::format("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{}\r\n", to.range->first,
                       std::min<std::uint64_t>(to.range->second, bytes.size() - 1), bytes.size()) +
           common;
}

std::string_view http_content::body(http_request const& to) const
{
    if (!to.range)
        return bytes;
    auto const first = std::min<std::uint64_t>(to.range->first, bytes.size());
    return std::string_view{bytes}.substr(first, to.range->second - to.range->first + 1);
}

}  // namespace gpurx::test
