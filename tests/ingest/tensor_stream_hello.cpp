// SPDX-License-Identifier: Apache-2.0
//
// Senders of the protocol's version 2: who they are, what they are told, and where they go on.
#include <catch2/generators/catch_generators.hpp>
#include <string>

#include "bed.hpp"
#include "stream/hello.hpp"

namespace gpurx::ingest::test {

using namespace detail;

namespace {

constexpr char secret_of_both[] = "known to both of them";

template <std::size_t size>
std::array<std::byte, size> read_from(bed& in, sender& who)
{
    REQUIRE(in.soon([&] { return who.socket().available() >= size; }));
    std::array<std::byte, size> bytes{};
    asio::read(who.socket(), asio::buffer(bytes));
    return bytes;
}

welcome greet(bed& in, sender& who, hello const& said)
{
    who.send(encode(said));
    return parse_welcome(read_from<welcome_size>(in, who));
}

hello hello_of(std::uint32_t source, std::uint32_t number)
{
    return {.source = source, .sender = number, .has_secret = false, .resumes = false, .random = {}};
}

// As a sender that has `secret`; fails the test if the stream does not show that it has the same.
welcome greet_with(bed& in, sender& who, std::string const& secret)
{
    auto said = hello_of(0, 7);
    said.has_secret = true;
    said.random = make_nonce();
    who.send(encode(said));
    auto const asked = parse_challenge(read_from<challenge_size>(in, who));
    CHECK(asked.random != nonce{});
    who.send(prove_sender(secret, said, asked));
    auto const answer = parse_welcome(read_from<welcome_size>(in, who));
    if (answer.says == greeting::taken)
        CHECK(are_equal(answer.proven, prove_receiver(secret, said, asked, answer)));
    return answer;
}

frame rows_4(std::uint64_t sequence)
{
    return {.sequence = sequence, .first_row = 4 * sequence, .rows = 4, .crc = true};
}

// The last frame, which has no rows: all before it are acknowledged, and it is.
void end_stream(bed& in, sender& who, std::uint64_t sequence)
{
    who.send({.sequence = sequence, .last = true});
    while (in.ack_of(who) != sequence)
        ;
    who.send(encode_ack(sequence + 1));
}

// Nothing comes for a while.
bool is_told_nothing(bed& in, sender& who)
{
    in.run_for(50ms);
    return who.socket().available() == 0;
}

}  // namespace

TEST_CASE("a sender with a hello gets acknowledgements without requests, and its goodbye ends the stream at once")
{
    bed in{listening({.batch_size = 4, .queue_depth = 4})};
    sender from{in.where()};
    CHECK(greet(in, from, hello_of(0, 7)) == welcome{});
    for (std::uint64_t i = 0; i < 3; ++i) {
        from.send(rows_4(i));
        CHECK(in.ack_of(from) == i);
    }
    end_stream(in, from, 3);
    CHECK(in.rest() == rows_from(0, 0, 12));
    CHECK(in.stream->errors().empty());
}

TEST_CASE("a sender that reconnects gets the number of its next frame, and no row is lost or doubled")
{
    bed in{listening({.batch_size = 4, .queue_depth = 4})};
    {
        sender first{in.where()};
        CHECK(greet(in, first, hello_of(0, 7)).expected == 0);
        first.send(rows_4(0));
        first.send(rows_4(1));
        CHECK(in.ack_of(first) == 0);
        CHECK(in.ack_of(first) == 1);
        auto const cut = rows_4(2).bytes();
        first.send(std::span{cut}.first(cut.size() - 1));
        first.reset();
    }
    sender again{in.where()};
    auto const answer = greet(in, again, hello_of(0, 7));
    CHECK(answer.says == greeting::taken);
    CHECK(answer.expected == 2);
    CHECK(answer.acknowledged == 2);
    again.send(rows_4(2));
    end_stream(in, again, 3);
    CHECK(in.rest() == rows_from(0, 0, 12));
    CHECK(in.stream->stats().duplicates == 0);
    CHECK(in.stream->errors().empty());
}

TEST_CASE("a second sender of a number is refused unless it resumes")
{
    bed in{listening({.batch_size = 4})};
    sender first{in.where()};
    CHECK(greet(in, first, hello_of(0, 7)).says == greeting::taken);
    first.send(rows_4(0));
    CHECK(in.ack_of(first) == 0);
    sender second{in.where()};
    CHECK(greet(in, second, hello_of(0, 8)).says == greeting::other_sender);
    CHECK(in.refuses(second));
    sender nobody{in.where()};
    CHECK(greet(in, nobody, hello_of(1, 8)).says == greeting::no_source);
    auto restarted = hello_of(0, 9);
    restarted.resumes = true;
    sender third{in.where()};
    CHECK(greet(in, third, restarted).expected == 1);
    CHECK(in.refuses(first));
    third.send(rows_4(1));
    end_stream(in, third, 2);
    CHECK(in.rest() == rows_from(0, 0, 8));
    CHECK(errors_of(in, 0).empty());
}

TEST_CASE("a frame is acknowledged as taken once a batch with its last row is")
{
    bed in{listening({.batch_size = 6, .queue_depth = 4, .acknowledge = acknowledge_when::taken})};
    sender from{in.where()};
    CHECK(greet(in, from, hello_of(0, 7)).says == greeting::taken);
    for (std::uint64_t i = 0; i < 3; ++i)
        from.send(rows_4(i));
    CHECK(is_told_nothing(in, from));
    CHECK(in.next_rows() == rows_from(0, 0, 6));
    CHECK(in.ack_of(from) == 0);
    CHECK(is_told_nothing(in, from));
    CHECK(in.next_rows() == rows_from(0, 6, 6));
    CHECK(in.ack_of(from) == 2);
}

TEST_CASE("a frame is acknowledged as saved once the program saves it, and another stream goes on after it")
{
    stream_position saved;
    {
        bed in{listening({.batch_size = 6, .queue_depth = 4, .acknowledge = acknowledge_when::saved})};
        sender from{in.where()};
        CHECK(greet(in, from, hello_of(0, 7)).says == greeting::taken);
        for (std::uint64_t i = 0; i < 3; ++i)
            from.send(rows_4(i));
        auto const result = in.next();
        REQUIRE(result->code == error_code{});
        CHECK(is_told_nothing(in, from));
        saved = result->got.position();
        in.stream->acknowledge(saved);
        CHECK(in.ack_of(from) == 0);
    }
    // Row 4 and 5 of frame 1 were in the first batch.
    bed in{listening({.batch_size = 6, .position = saved})};
    sender from{in.where()};
    auto const answer = greet(in, from, hello_of(0, 7));
    CHECK(answer.expected == 1);
    CHECK(answer.acknowledged == 1);
    from.send(rows_4(1));
    from.send(rows_4(2));
    end_stream(in, from, 3);
    CHECK(in.rest() == rows_from(0, 6, 6));
}

TEST_CASE("a frame that was damaged on its way is sent again through another connection")
{
    bed in{listening({.batch_size = 4})};
    sender first{in.where()};
    CHECK(greet(in, first, hello_of(0, 7)).says == greeting::taken);
    auto damaged = rows_4(0).bytes();
    damaged.back() ^= std::byte{1};
    first.send(damaged);
    CHECK(in.refuses(first));
    sender again{in.where()};
    CHECK(greet(in, again, hello_of(0, 7)).expected == 0);
    again.send(rows_4(0));
    end_stream(in, again, 1);
    CHECK(in.rest() == rows_from(0, 0, 4));
    CHECK(in.stream->stats().damaged == 1);
    CHECK(in.stream->errors().empty());
}

TEST_CASE("with a secret both ends prove it, and other peers are refused")
{
    bed in{listening({.batch_size = 4, .secret = secret_of_both})};
    sender wrong{in.where()};
    CHECK(greet_with(in, wrong, "some other secret of his").says == greeting::wrong_secret);
    CHECK(in.refuses(wrong));
    sender none{in.where()};
    CHECK(greet(in, none, hello_of(0, 7)).says == greeting::secret_needed);
    CHECK(in.refuses(none));
    sender old{in.where()};
    old.send(rows_4(0));
    CHECK(in.refuses(old));
    REQUIRE(in.soon([&] { return errors_of(in, std::nullopt).size() == 3; }));
    for (auto const& each : errors_of(in, std::nullopt))
        CHECK(each.code == errc::wrong_secret);

    sender right{in.where()};
    CHECK(greet_with(in, right, secret_of_both).says == greeting::taken);
    right.send(rows_4(0));
    end_stream(in, right, 1);
    CHECK(in.rest() == rows_from(0, 0, 4));
}

TEST_CASE("a sender with a secret learns that the stream has none")
{
    bed in{listening()};
    auto said = hello_of(0, 7);
    said.has_secret = true;
    said.random = make_nonce();
    sender from{in.where()};
    CHECK(greet(in, from, said).says == greeting::no_secret_here);
    CHECK(in.refuses(from));
}

TEST_CASE("a source that listens sends the same hello as one that connects")
{
    asio::io_context io{1};
    tcp::acceptor acceptor{io, {asio::ip::address_v4::loopback(), 0}};
    bed in{{.connect = {acceptor.local_endpoint()}, .batch_size = 4, .queue_depth = 4}};
    sender first;
    in.accept(acceptor, first);
    CHECK(greet(in, first, hello_of(0, 7)).says == greeting::taken);
    first.send(rows_4(0));
    CHECK(in.ack_of(first) == 0);
    first.reset();
    sender again;
    in.accept(acceptor, again);
    CHECK(greet(in, again, hello_of(0, 7)).expected == 1);
    again.send(rows_4(1));
    end_stream(in, again, 2);
    CHECK(in.rest() == rows_from(0, 0, 8));
    CHECK(in.stream->errors().empty());
}

TEST_CASE("an answer from another source than the connected one is reported")
{
    asio::io_context io{1};
    tcp::acceptor acceptor{io, {asio::ip::address_v4::loopback(), 0}};
    tcp::acceptor other{io, {asio::ip::address_v4::loopback(), 0}};
    bed in{{.connect = {acceptor.local_endpoint(), other.local_endpoint()}, .batch_size = 4}};
    sender first;
    in.accept(acceptor, first);
    CHECK(greet(in, first, hello_of(1, 7)).says == greeting::no_source);
    CHECK(in.refuses(first));
    REQUIRE(in.soon([&] { return errors_of(in, 0).size() == 1; }));
    auto const errors = errors_of(in, 0);
    CHECK(errors[0].code == errc::wrong_source);
    CHECK(errors[0].why.advice == "it announces source 1");
    sender second;
    in.accept(other, second);
    CHECK(greet(in, second, hello_of(1, 8)).says == greeting::taken);
}

}  // namespace gpurx::ingest::test
