// SPDX-License-Identifier: Apache-2.0
//
// What the tests of tensor streams stand on: senders whose every row says who sent it and which row it is, over
// loopback, and a stream that receives them with transport copy.
#pragma once

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <gpurx/crc32c.hpp>
#include <gpurx/gather.hpp>
#include <gpurx/ingest/tensor_stream.hpp>
#include <gpurx/session.hpp>

#include "fake_clock.hpp"
#include "stream/frame.hpp"

namespace gpurx::ingest::test {

using asio::ip::tcp;
using detail::frame_ack_size;
using detail::frame_head;
using detail::parse_ack;
using gpurx::test::fake_clock;
using namespace std::chrono_literals;

// Row `number` of source `source`: x is three floats, y one integer.
struct row {
    std::uint32_t source = 0;
    std::uint64_t number = 0;

    [[nodiscard]] std::array<float, 3> x() const
    {
        return {static_cast<float>(source), static_cast<float>(number), static_cast<float>(number) / 2};
    }
    [[nodiscard]] std::int64_t y() const { return static_cast<std::int64_t>(source * 1'000'000 + number); }
    friend bool operator==(row const&, row const&) = default;
};

inline std::vector<tensor_spec> row_tensors()
{
    return {{"x", dtype::f32, {3}}, {"y", dtype::i64, {}}};
}

inline void append(std::vector<std::byte>& bytes, auto const& value)
{
    auto const raw = std::as_bytes(std::span{&value, 1});
    bytes.insert(bytes.end(), raw.begin(), raw.end());
}

struct frame {
    std::uint32_t source = 0;
    std::uint64_t sequence = 0;
    std::uint64_t first_row = 0;
    std::uint64_t rows = 0;
    bool last = false;
    bool ack = false;
    bool crc = false;
    bool begins = false;

    [[nodiscard]] std::vector<std::byte> payload() const
    {
        std::vector<std::byte> bytes;
        for (std::uint64_t i = 0; i < rows; ++i)
            append(bytes, row{source, first_row + i}.x());
        for (std::uint64_t i = 0; i < rows; ++i)
            append(bytes, row{source, first_row + i}.y());
        return bytes;
    }
    [[nodiscard]] frame_head head() const
    {
        return {.source = source,
                .sequence = sequence,
                .rows = rows,
                .wants_ack = ack,
                .is_last = last,
                .begins = begins,
                .has_crc = crc,
                .payload_crc = crc ? crc32c(payload()) : 0,
                .tensors = rows > 0 ? row_tensors() : std::vector<tensor_spec>{}};
    }
    [[nodiscard]] std::vector<std::byte> bytes() const
    {
        auto all = encode(head());
        auto const body = payload();
        all.insert(all.end(), body.begin(), body.end());
        return all;
    }
};

// A sender: blocking, on the test's thread.
class sender {
  public:
    // Not connected.
    sender() = default;
    explicit sender(tcp::endpoint const& to)
    {
        socket_.connect(to);
        socket_.set_option(tcp::no_delay{true});
    }
    void send(std::span<std::byte const> bytes) { asio::write(socket_, asio::buffer(bytes.data(), bytes.size())); }
    void send(frame const& what) { send(what.bytes()); }
    [[nodiscard]] std::uint64_t read_ack()
    {
        std::array<std::byte, frame_ack_size> ack{};
        asio::read(socket_, asio::buffer(ack));
        return parse_ack(ack);
    }
    // Once something has come: an acknowledgement, or the end of the connection.
    [[nodiscard]] error_code try_read()
    {
        std::byte byte{};
        error_code code;
        socket_.non_blocking(true);
        socket_.read_some(asio::buffer(&byte, 1), code);
        socket_.non_blocking(false);
        return code;
    }
    void reset()
    {
        socket_.set_option(asio::socket_base::linger{true, 0});
        socket_.close();
    }
    void close() { socket_.close(); }
    [[nodiscard]] tcp::socket& socket() { return socket_; }

  private:
    asio::io_context io_{1};
    tcp::socket socket_{io_};
};

// What async_next completed with.
struct next_result {
    bool done = false;
    error_code code;
    batch got;
};

// Brought to the host, once what is on `stream` has run.
template <class T>
std::vector<T> values_of(memory_span bytes, cuda_stream_ref stream)
{
    std::vector<T> values(bytes.size() / sizeof(T));
    fragment const all{bytes.address(), bytes.size(), bytes.kind()};
    gather({&all, 1}, {memory_kind::host, reinterpret_cast<std::uintptr_t>(values.data()), bytes.size()}, stream);
    return values;
}

// The rows of a batch; fails the test if a row's tensors do not belong together.
inline std::vector<row> rows_of(batch const& from, cuda_stream_ref stream = {})
{
    REQUIRE(from["x"].shape == std::vector<std::uint64_t>{from.rows(), 3});
    REQUIRE(from["y"].shape == std::vector<std::uint64_t>{from.rows()});
    auto const x = values_of<float>(from["x"].bytes, stream);
    auto const y = values_of<std::int64_t>(from["y"].bytes, stream);
    REQUIRE(x.size() == 3 * from.rows());
    REQUIRE(y.size() == from.rows());
    std::vector<row> rows;
    for (std::size_t i = 0; i < from.rows(); ++i) {
        row const each{static_cast<std::uint32_t>(x[3 * i]), static_cast<std::uint64_t>(x[3 * i + 1])};
        REQUIRE((std::ranges::equal(each.x(), std::span{x}.subspan(3 * i, 3)) && y[i] == each.y()));
        rows.push_back(each);
    }
    return rows;
}

inline std::vector<row> rows_from(std::uint32_t source, std::uint64_t first, std::uint64_t count)
{
    std::vector<row> rows;
    for (std::uint64_t i = 0; i < count; ++i)
        rows.push_back({source, first + i});
    return rows;
}

inline tensor_stream_options listening(tensor_stream_options options = {})
{
    options.listen = {{asio::ip::address_v4::loopback(), 0}};
    return options;
}

class bed {
  public:
    explicit bed(tensor_stream_options options, unsigned max_flows = 8)
        : bed{std::move(options), max_flows, device_memory::on_host(8 << 20)}
    {}
    bed(tensor_stream_options options, unsigned max_flows, device_memory memory)
        : consumer{options.stream},
          session{{.transport = transport::copy, .max_flows = max_flows}, std::move(memory)},
          stream{std::in_place, io, session, std::move(options)}
    {
        if (fake_clock::is_linked())
            clock_.emplace();
    }

    [[nodiscard]] tcp::endpoint where() const { return stream->local_endpoints().at(0); }

    // Runs handlers until `ready`; fails the test if that does not come.
    template <class Ready>
    void run_until(Ready ready)
    {
        if (clock_) {
            auto const is_ready = clock_->run_until(io, ready);
            REQUIRE(is_ready);
            return;
        }
        auto const deadline = std::chrono::steady_clock::now() + 50s;
        io.restart();
        while (!ready()) {
            auto const ran = io.run_one_until(deadline);
            if (ran == 0 && !ready()) {
                REQUIRE(std::chrono::steady_clock::now() < deadline);
                REQUIRE_FALSE(io.stopped());  // nothing pending, and not ready
            }
        }
    }
    void run_for(std::chrono::milliseconds time)
    {
        if (clock_)
            return clock_->run_for(io, time);
        io.restart();
        io.run_for(time);
    }
    // For what no handler of ours tells: a socket's state, nothing left to run. False if that does not come.
    template <class Condition>
    [[nodiscard]] bool soon(Condition holds)
    {
        if (clock_)
            return clock_->run_until(io, holds);
        for (auto const end = std::chrono::steady_clock::now() + 50s; std::chrono::steady_clock::now() < end;) {
            if (holds())
                return true;
            run_for(1ms);
        }
        return holds();
    }
    // Whether the connection of `who` is ended here; acknowledgements before that are read over.
    [[nodiscard]] bool refuses(sender& who)
    {
        return soon([&] {
            auto const code = who.try_read();
            return code == asio::error::eof || code == asio::error::connection_reset;
        });
    }
    [[nodiscard]] std::uint64_t ack_of(sender& who)
    {
        REQUIRE(soon([&] { return who.socket().available() >= frame_ack_size; }));
        return who.read_ack();
    }
    // Who connects to `acceptor`.
    void accept(tcp::acceptor& acceptor, sender& who)
    {
        acceptor.non_blocking(true);
        REQUIRE(soon([&] {
            error_code code;
            acceptor.accept(who.socket(), code);
            return !code;
        }));
        who.socket().non_blocking(false);
    }

    [[nodiscard]] std::shared_ptr<next_result> start_next()
    {
        auto result = std::make_shared<next_result>();
        stream->async_next([result](error_code code, batch got) {
            result->done = true;
            result->code = code;
            result->got = std::move(got);
        });
        return result;
    }
    // The next batch, or why there is none.
    [[nodiscard]] std::shared_ptr<next_result> next()
    {
        auto result = start_next();
        run_until([&] { return result->done; });
        return result;
    }
    // A batch has to come.
    [[nodiscard]] std::vector<row> next_rows()
    {
        auto const result = next();
        REQUIRE(result->code == error_code{});
        return rows_of(result->got, consumer);
    }
    // All rows until the end of the stream.
    [[nodiscard]] std::vector<row> rest()
    {
        std::vector<row> all;
        for (;;) {
            auto const result = next();
            if (result->code == asio::error::eof)
                return all;
            REQUIRE(result->code == error_code{});
            auto const rows = rows_of(result->got, consumer);
            all.insert(all.end(), rows.begin(), rows.end());
        }
    }

    cuda_stream_ref consumer;
    rx_session session;
    asio::io_context io{1};
    std::optional<tensor_stream> stream;

  private:
    // Of programs whose clock can stand still: time passes only while everybody waits for it.
    std::optional<fake_clock> clock_;
};

// One source's errors, or those of nobody in particular.
inline std::vector<source_error> errors_of(bed const& in, std::optional<std::uint32_t> source)
{
    auto all = in.stream->errors();
    std::erase_if(all, [&](source_error const& each) { return each.source != source; });
    return all;
}

}  // namespace gpurx::ingest::test
