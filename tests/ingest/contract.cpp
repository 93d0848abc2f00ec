// SPDX-License-Identifier: Apache-2.0
//
// What async_next and the lifetimes promise, whatever arrives.
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <thread>

#include "bed.hpp"

namespace gpurx::ingest::test {

namespace {

tensor_stream_options small()
{
    return listening({.batch_size = 4});
}

}  // namespace

TEST_CASE("async_next never completes inside the initiating function")
{
    bed in{small()};
    sender from{in.where()};
    from.send({.rows = 4, .last = true});
    in.run_for(20ms);
    auto const ready = in.start_next();
    CHECK_FALSE(ready->done);
    in.run_until([&] { return ready->done; });
    CHECK(ready->got.rows() == 4);
    auto const end = in.start_next();
    CHECK_FALSE(end->done);
    in.run_until([&] { return end->done; });
    CHECK(end->code == asio::error::eof);
}

TEST_CASE("the handler runs on its associated executor")
{
    bed in{small()};
    sender from{in.where()};
    auto const is_ready = GENERATE(true, false);
    if (is_ready) {
        from.send({.rows = 4});
        in.run_for(20ms);
    }
    asio::io_context other{1};
    bool called = false;
    in.stream->async_next(asio::bind_executor(other, [&](error_code code, batch got) {
        CHECK(other.get_executor().running_in_this_thread());
        CHECK_FALSE(code);
        CHECK(got.rows() == 4);
        called = true;
    }));
    in.run_for(20ms);
    if (!is_ready)
        from.send({.rows = 4});
    CHECK(in.soon([&] {
        other.restart();
        other.poll();
        return called;
    }));
}

TEST_CASE("a cancelled async_next takes no batch, and a batch that is there is delivered all the same")
{
    auto const type =
        GENERATE(asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total);
    bed in{small()};
    sender from{in.where()};
    asio::cancellation_signal signal;
    auto result = std::make_shared<next_result>();
    auto const note = [result](error_code code, batch got) { *result = {true, code, std::move(got)}; };
    in.stream->async_next(asio::bind_cancellation_slot(signal.slot(), note));
    in.run_for(10ms);
    CHECK_FALSE(result->done);
    SECTION("nothing was there")
    {
        signal.emit(type);
        CHECK_FALSE(result->done);
        in.run_until([&] { return result->done; });
        CHECK(result->code == asio::error::operation_aborted);
        CHECK(result->got.empty());
        from.send({.rows = 4});
        CHECK(in.next_rows() == rows_from(0, 0, 4));
    }
    SECTION("it came before")
    {
        from.send({.rows = 4});
        while (in.stream->stats().rows == 0)
            in.io.run_one();
        signal.emit(type);
        in.run_until([&] { return result->done; });
        CHECK_FALSE(result->code);
        CHECK(rows_of(result->got) == rows_from(0, 0, 4));
    }
}

TEST_CASE("several operations may wait, and each batch goes to one of them")
{
    bed in{small()};
    sender from{in.where()};
    auto const a = in.start_next();
    auto const b = in.start_next();
    in.run_for(5ms);
    from.send({.rows = 4});
    in.run_until([&] { return a->done || b->done; });
    in.run_for(5ms);
    CHECK(a->done != b->done);
    from.send({.sequence = 1, .first_row = 4, .rows = 4, .last = true});
    in.run_until([&] { return a->done && b->done; });
    CHECK(a->got.rows() + b->got.rows() == 8);
}

TEST_CASE("closing, destroying and assigning end what is pending with operation_aborted")
{
    auto const how = GENERATE(0, 1, 2);
    bed in{small()};
    sender from{in.where()};
    from.send({.rows = 3});
    auto const pending = in.start_next();
    in.run_for(10ms);
    REQUIRE_FALSE(pending->done);
    tensor_stream other{in.io, in.session, small()};
    if (how == 0)
        in.stream->close();
    else if (how == 1)
        in.stream.reset();
    else
        *in.stream = std::move(other);
    CHECK_FALSE(pending->done);
    in.run_until([&] { return pending->done; });
    CHECK(pending->code == asio::error::operation_aborted);
    CHECK(in.refuses(from));
    if (how == 0) {
        CHECK(in.next()->code == asio::error::operation_aborted);
        other.close();
        CHECK(in.soon([&] { return in.io.stopped(); }));  // nothing of either is left
    }
}

TEST_CASE("the session may go once the stream is closed, and batches outlive everything")
{
    batch kept;
    sender* from = nullptr;
    std::optional<sender> holder;
    {
        auto session = std::make_unique<rx_session>(rx_session_options{.transport = transport::copy, .max_flows = 4},
                                                    device_memory::on_host(8 << 20));
        asio::io_context io{1};
        tensor_stream stream{io, *session, small()};
        holder.emplace(stream.local_endpoints()[0]);
        from = &*holder;
        from->send({.rows = 8});
        stream.async_next([&](error_code, batch got) { kept = std::move(got); });
        while (kept.empty())
            io.run_one();
        stream.close();
        session.reset();
        io.run_for(10ms);
    }
    CHECK(rows_of(kept) == rows_from(0, 0, 4));
    std::jthread{[&] { kept = {}; }};
}

TEST_CASE("an io_context may be destroyed with everything under way")
{
    rx_session session{{.transport = transport::copy, .max_flows = 8}, device_memory::on_host(8 << 20)};
    std::vector<std::unique_ptr<sender>> senders;
    batch kept;
    {
        asio::io_context io{1};
        auto options = small();
        options.sources = 3;
        options.queue_depth = 1;
        auto const consume = [&](tensor_stream stream) -> asio::awaitable<void> {
            for (int i = 0; i < 3; ++i)
                senders.push_back(std::make_unique<sender>(stream.local_endpoints()[0]));
            senders[0]->send({.rows = 40});              // waits for room
            senders[1]->send({.source = 1, .rows = 4});  // waits for its turn
            auto const bytes = frame{.source = 2, .rows = 4}.bytes();
            senders[2]->send(std::span{bytes}.first(100));  // has not come
            kept = co_await stream.async_next();
            asio::steady_timer never{io, asio::steady_timer::time_point::max()};
            co_await never.async_wait(asio::use_awaitable);
        };
        asio::co_spawn(io, consume(tensor_stream{io, session, options}), asio::detached);
        while (kept.empty())
            io.run_one();
        io.run_for(20ms);
        CHECK_FALSE(io.stopped());
    }
    CHECK(kept.rows() == 4);
}

TEST_CASE("the stream ends with nothing left to run")
{
    bed in{small()};
    {
        sender from{in.where()};
        from.send({.rows = 4, .last = true});
        CHECK(in.rest() == rows_from(0, 0, 4));
    }
    CHECK(in.soon([&] { return in.io.stopped(); }));
    CHECK_THROWS(sender{in.where()});  // nobody listens any more
}

TEST_CASE("a batch is moved, and gives its memory back once")
{
    bed in{small()};
    sender from{in.where()};
    from.send({.rows = 8, .last = true});
    auto first = std::move(in.next()->got);
    auto second = std::move(first);
    CHECK(first.empty());  // NOLINT(bugprone-use-after-move)
    CHECK(first.tensors().empty());
    CHECK(rows_of(second) == rows_from(0, 0, 4));
    second = std::move(in.next()->got);
    CHECK(rows_of(second) == rows_from(0, 4, 4));
    second.release_after({});
    CHECK(second.empty());
    CHECK(second.find("x") == nullptr);
    second.release_after({});
    CHECK(in.next()->code == asio::error::eof);
}

TEST_CASE("options that contradict themselves are refused, with the reason")
{
    asio::io_context io{1};
    rx_session session{{.transport = transport::copy}, device_memory::on_host(8 << 20)};
    tcp::endpoint const any{asio::ip::address_v4::loopback(), 0};
    auto const refusal = [&](tensor_stream_options options) {
        try {
            tensor_stream const made{io, session, std::move(options)};
        } catch (system_error const& error) {
            CHECK(error.code() == boost::system::errc::invalid_argument);
            return error.why().advice;
        }
        return std::string{"nothing"};
    };
    CHECK(refusal({}) == "set endpoints in either listen or connect");
    CHECK(refusal({.listen = {any}, .connect = {any}}) == "set endpoints in either listen or connect");
    CHECK(refusal({.listen = {any}, .sources = 0}) == "sources must be at least 1");
    CHECK(refusal({.listen = {any}, .rank = 2, .world_size = 2}) == "rank 2 is not below world_size 2");
    CHECK(refusal({.listen = {any}, .world_size = 0}) == "rank 0 is not below world_size 0");
    CHECK(refusal({.listen = {any}, .batch_size = 0}) == "batch_size and queue_depth must be at least 1");
    CHECK(refusal({.listen = {any}, .queue_depth = 0}) == "batch_size and queue_depth must be at least 1");
    CHECK(refusal({.listen = {any}, .limits = {.frame_size = 5ULL << 30}}) ==
          "limits.frame_size must be at most 4 GiB");
    CHECK(refusal({.listen = {any}, .tensors = {{"", dtype::u8, {}}}}) != "nothing");
    CHECK(refusal({.listen = {any}}) == "nothing");
}

TEST_CASE("an endpoint that cannot listen is an error")
{
    asio::io_context io{1};
    rx_session session{{.transport = transport::copy}, device_memory::on_host(8 << 20)};
    tcp::acceptor const taken{io, {asio::ip::address_v4::loopback(), 0}};
    try {
        tensor_stream const made{io, session, {.listen = {taken.local_endpoint()}}};
        FAIL("it listens");
    } catch (system_error const& error) {
        CHECK(error.code() == boost::system::errc::address_in_use);
        CHECK(error.why().object == "127.0.0.1:" + std::to_string(taken.local_endpoint().port()));
    }
}

}  // namespace gpurx::ingest::test
