// SPDX-License-Identifier: Apache-2.0
#include "flow/stream_fsm.hpp"

#include <algorithm>
#include <random>

#include "machine_script.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;
using detail::read_fsm;
using way = read_fsm::way;

auto copying(std::size_t size)
{
    return [size] { return read_fsm{size, way::place}; };
}
auto in_place(std::size_t size)
{
    return [size] { return read_fsm{size, way::in_place}; };
}

}  // namespace

TEST_CASE("read: batch after batch until the destination is full")
{
    play({{"all of it is in the first batch",
           {{connected, {}, action(what::receive, plenty)},
            {carrying(100), {}, action(what::place, 100)},
            {connected, placed(100), done({}, 100)}}},
          {"the first batch has more",
           {{connected, {}, action(what::receive, plenty)},
            {carrying(500), {}, action(what::place, 100)},
            {carrying(400), placed(100), done({}, 100)}}},
          {"three batches, and a wait",
           {{connected, {}, action(what::receive, plenty)},
            {carrying(30), {}, action(what::place, 100)},
            {connected, placed(30), action(what::receive, plenty)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)},
            {carrying(30), {}, action(what::place, 70)},
            {connected, placed(30), action(what::receive, plenty)},
            {carrying(60), {}, action(what::place, 40)},
            {carrying(20), placed(40), done({}, 100)}}}},
         copying(100));
}

TEST_CASE("read: the rest of an earlier batch comes first")
{
    play(
        {{"enough of it", {{carrying(300), {}, action(what::place, 100)}, {carrying(200), placed(100), done({}, 100)}}},
         {"not enough",
          {{carrying(60), {}, action(what::place, 100)},
           {connected, placed(60), action(what::receive, plenty)},
           {carrying(40), {}, action(what::place, 40)},
           {connected, placed(40), done({}, 100)}}}},
        copying(100));
    play({{"not enough, then in place",
           {{carrying(60), {}, action(what::place, 100)},
            {connected, placed(60), action(what::receive_in_place, 40)},
            {connected, placed(40), done({}, 100)}}}},
         in_place(100));
}

TEST_CASE("read: in place")
{
    play({{"at once", {{connected, {}, action(what::receive_in_place, 100)}, {connected, placed(100), done({}, 100)}}},
          {"in pieces",
           {{connected, {}, action(what::receive_in_place, 100)},
            {connected, placed(1), action(what::receive_in_place, 99)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {connected, {}, action(what::receive_in_place, 99)},
            {connected, placed(99), done({}, 100)}}},
          {"the loan limit does not matter",
           {{with_loan_budget(0), {}, action(what::receive_in_place, 100)},
            {with_loan_budget(0), placed(100), done({}, 100)}}}},
         in_place(100));
}

TEST_CASE("read: a batch is as large as what reads may still take, and a program's loans do not matter")
{
    play({{"more than is missing", {{with_read_budget(250), {}, action(what::receive, 250)}}},
          {"less than is missing",
           {{with_read_budget(64), {}, action(what::receive, 64)},
            {with_read_budget(64), failed(error::would_block), action(what::wait_readable)},
            {with_read_budget(30), {}, action(what::receive, 30)}}},
          {"every loan is out", {{with_loan_budget(0), {}, action(what::receive, plenty)}}}},
         copying(100));
}

TEST_CASE("read: with all of its share waiting for streams it waits for them, too")
{
    auto rest = carrying(40);
    rest.read_budget = 0;
    auto gone = stream_facts{};
    play({{"until one has passed",
           {{with_read_budget(0), {}, action(what::wait_streams)},
            {with_read_budget(0), {}, action(what::wait_streams)},
            {with_read_budget(50), {}, action(what::receive, 50)}}},
          {"what is carried goes first",
           {{rest, {}, action(what::place, 100)},
            {with_read_budget(0), placed(40), action(what::wait_streams)},
            {with_read_budget(64), {}, action(what::receive, 64)}}},
          {"at the end of the stream there is nothing to wait for",
           {{[] {
                 auto now = over(error::eof);
                 now.read_budget = 0;
                 return now;
             }(),
             {},
             done(error::eof)}}},
          {"cancelled",
           {{with_read_budget(0), {}, action(what::wait_streams)},
            {with_read_budget(0), failed({}, cancel::total), done(error::operation_aborted)}}},
          {"closed",
           {{with_read_budget(0), {}, action(what::wait_streams)},
            {gone, failed(error::operation_aborted), done(error::operation_aborted)}}}},
         copying(100));
}

TEST_CASE("read: a stream that has too much to do is waited for, and nothing is received for it")
{
    std::vector<script> const scripts{
        {"from the start", {{with_full_stream(), {}, action(what::wait_streams)}}},
        {"what is carried waits as well",
         {{carrying(40), {}, action(what::place, 100)},
          {with_full_stream(carrying(20)), placed(20), action(what::wait_streams)},
          {with_full_stream(carrying(20)), {}, action(what::wait_streams)},
          {carrying(20), {}, action(what::place, 80)}}},
        {"before a socket that was drained", {{with_full_stream(drained()), {}, action(what::wait_streams)}}},
        {"at the end of the stream there is nothing to wait for",
         {{with_full_stream(over(error::eof)), {}, done(error::eof)}}},
        {"cancelled",
         {{with_full_stream(), {}, action(what::wait_streams)},
          {with_full_stream(), failed({}, cancel::total), done(error::operation_aborted)}}}};
    play(scripts, copying(100));
    play({{"in place", {{with_full_stream(), {}, action(what::wait_streams)}}}}, in_place(100));
}

TEST_CASE("read: a socket that was drained is waited for before it is asked")
{
    auto rest = carrying(40);
    rest.drained = true;
    play({{"after what is carried",
           {{rest, {}, action(what::place, 100)},
            {drained(), placed(40), action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)},
            {carrying(60), {}, action(what::place, 60)},
            {drained(), placed(60), done({}, 100)}}}},
         copying(100));
    play({{"in place",
           {{connected, {}, action(what::receive_in_place, 100)},
            {drained(), placed(30), action(what::wait_readable)},
            {connected, {}, action(what::receive_in_place, 70)},
            {drained(), placed(70), done({}, 100)}}}},
         in_place(100));
}

TEST_CASE("read: a size of 0 succeeds, whatever else")
{
    for (auto const to : {way::place, way::in_place})
        play({{"connected", {{connected, {}, done()}}},
              {"not connected", {{stream_facts{}, {}, done()}}},
              {"at the end", {{over(error::eof), {}, done()}}}},
             [to] {
                 return read_fsm{0, to, errc::bad_destination};
             });
}

TEST_CASE("read: a destination out of reach is refused before anything happens")
{
    play({{"", {{connected, {}, done(errc::bad_destination)}}},
          {"with bytes there", {{carrying(100), {}, done(errc::bad_destination)}}}},
         [] {
             return read_fsm{100, way::place, errc::bad_destination};
         });
}

TEST_CASE("read: the end of the stream reports the bytes that were placed")
{
    play({{"at once",
           {{connected, {}, action(what::receive, plenty)}, {over(error::eof), failed(error::eof), done(error::eof)}}},
          {"in the middle",
           {{connected, {}, action(what::receive, plenty)},
            {carrying(30), {}, action(what::place, 100)},
            {connected, placed(30), action(what::receive, plenty)},
            {over(error::eof), failed(error::eof), done(error::eof, 30)}}},
          {"known before, with bytes left",
           {{[] {
                 auto now = carrying(30);
                 now.over = error::eof;
                 return now;
             }(),
             {},
             action(what::place, 100)},
            {over(error::eof), placed(30), done(error::eof, 30)}}},
          {"known before, and nothing left", {{over(errc::foreign_memory), {}, done(errc::foreign_memory)}}},
          {"locked up",
           {{connected, {}, action(what::receive, plenty)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)},
            {over(errc::memory_locked_up), failed(error::eof), done(errc::memory_locked_up)}}}},
         copying(100));
    play({{"in place, in the middle",
           {{connected, {}, action(what::receive_in_place, 100)},
            {connected, placed(99), action(what::receive_in_place, 1)},
            {over(error::eof), failed(error::eof), done(error::eof, 99)}}}},
         in_place(100));
}

TEST_CASE("read: just enough before the end is a success")
{
    auto last = carrying(100);
    last.over = error::eof;
    play({{"", {{last, {}, action(what::place, 100)}, {over(error::eof), placed(100), done({}, 100)}}}}, copying(100));
}

TEST_CASE("read: without a connection, and closed while waiting")
{
    play({{"never connected", {{stream_facts{}, {}, done(error::not_connected)}}},
          {"closed in a wait",
           {{connected, {}, action(what::receive, plenty)},
            {carrying(30), {}, action(what::place, 100)},
            {connected, placed(30), action(what::receive, plenty)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {stream_facts{}, failed(error::operation_aborted), done(error::operation_aborted, 30)}}}},
         copying(100));
}

TEST_CASE("read: no page is free")
{
    play({{"",
           {{connected, {}, action(what::receive, plenty)},
            {connected, failed(error::no_buffer_space), action(what::wait_pages)},
            {connected, {}, action(what::receive, plenty)}}}},
         copying(100));
}

TEST_CASE("read: cancellation before the first byte, of each type")
{
    for (auto const type : {cancel::terminal, cancel::partial, cancel::total})
        play({{"the wait was ended",
               {{connected, {}, action(what::receive, plenty)},
                {connected, failed(error::would_block), action(what::wait_readable)},
                {connected, failed(error::operation_aborted, type), done(error::operation_aborted)}}},
              {"it ended by itself at the same time",
               {{connected, {}, action(what::receive, plenty)},
                {connected, failed(error::would_block), action(what::wait_readable)},
                {connected, failed({}, type), done(error::operation_aborted)}}}},
             copying(100));
}

TEST_CASE("read: cancellation after the first byte tells how many were placed; total comes too late")
{
    auto const started = [](exchange last, std::vector<exchange> more = {}) {
        std::vector<exchange> steps{{connected, {}, action(what::receive, plenty)},
                                    {carrying(30), {}, action(what::place, 100)},
                                    {connected, placed(30), action(what::receive, plenty)},
                                    {connected, failed(error::would_block), action(what::wait_readable)},
                                    std::move(last)};
        steps.insert(steps.end(), more.begin(), more.end());
        return steps;
    };
    for (auto const type : {cancel::terminal, cancel::partial, cancel::all})
        play({{"", started({connected, failed(error::operation_aborted, type), done(error::operation_aborted, 30)})}},
             copying(100));
    play({{"total: the wait was ended, and is taken up again",
           started({connected, failed(error::operation_aborted, cancel::total), action(what::receive, plenty)},
                   {{connected, failed(error::would_block, cancel::total), action(what::wait_readable)},
                    {connected, failed({}, cancel::total), action(what::receive, plenty)},
                    {carrying(70), failed({}, cancel::total), action(what::place, 70)},
                    {connected, placed(70), done({}, 100)}})},
          {"total, and then a stronger one",
           started({connected, failed(error::operation_aborted, cancel::total), action(what::receive, plenty)},
                   {{connected, failed(error::would_block, cancel::total), action(what::wait_readable)},
                    {connected, failed(error::operation_aborted, cancel::total | cancel::partial),
                     done(error::operation_aborted, 30)}})}},
         copying(100));
}

TEST_CASE("read: an unrequested abort is reported, not retried for ever")
{
    play({{"",
           {{connected, {}, action(what::receive, plenty)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {connected, failed(error::operation_aborted), done(error::operation_aborted)}}}},
         copying(100));
}

TEST_CASE("read: a success is never turned into an abort")
{
    for (auto const type : {cancel::terminal, cancel::partial, cancel::total})
        play({{"the last batch",
               {{connected, {}, action(what::receive, plenty)},
                {carrying(100), failed({}, type), action(what::place, 100)},
                {connected, {.code = {}, .bytes = 100, .cancelled = type}, done({}, 100)}}}},
             copying(100));
}

TEST_CASE("read: where loans are bounded it takes little beyond its own from the socket")
{
    auto bounded = connected;
    bounded.read_ahead = 64;
    play({{"a header", {{bounded, {}, action(what::receive, 64)}}}}, copying(10));
    play({{"more than that", {{bounded, {}, action(what::receive, 100)}}}}, copying(100));
    bounded.read_budget = 50;
    play({{"no more than the budget", {{bounded, {}, action(what::receive, 50)}}}}, copying(100));
}

TEST_CASE("read: other handlers get a turn however fast the sender is")
{
    constexpr auto half = detail::bytes_in_turn / 2;
    play({{"copying",
           {{connected, {}, action(what::receive, plenty)},
            {carrying(half), {}, action(what::place, 5 * half)},
            {connected, placed(half), action(what::receive, plenty)},
            {carrying(half), {}, action(what::place, 4 * half)},
            {connected, placed(half), action(what::yield)},
            {connected, {}, action(what::receive, plenty)},
            {carrying(half), {}, action(what::place, 3 * half)},
            {connected, placed(half), action(what::receive, plenty)}}},
          {"cancelled at the turn",
           {{carrying(2 * half), {}, action(what::place, 5 * half)},
            {connected, placed(2 * half), action(what::yield)},
            {connected, failed({}, cancel::partial), done(error::operation_aborted, 2 * half)}}},
          {"closed at the turn",
           {{carrying(2 * half), {}, action(what::place, 5 * half)},
            {connected, placed(2 * half), action(what::yield)},
            {stream_facts{}, {}, done(error::operation_aborted, 2 * half)}}}},
         copying(5 * half));
    play({{"in place",
           {{connected, {}, action(what::receive_in_place, 5 * half)},
            {connected, placed(2 * half), action(what::yield)},
            {connected, {}, action(what::receive_in_place, 3 * half)}}}},
         in_place(5 * half));
    play({{"not for the last byte",
           {{carrying(2 * half), {}, action(what::place, 2 * half)},
            {connected, placed(2 * half), done({}, 2 * half)}}}},
         copying(2 * half));
}

// Plays kernel and receiver at random and checks what must hold for every schedule.
TEST_CASE("read: whatever happens, exactly the bytes asked for are placed, or an error tells how many")
{
    std::mt19937 random{7};
    for (int round = 0; round < 2000; ++round) {
        std::size_t const size = random() % 1000;
        std::size_t stream = random() % 1500;  // bytes that will ever arrive
        bool const by_place = random() % 2 == 0;
        read_fsm machine{size, by_place ? way::place : way::in_place};
        auto now = carrying(std::min<std::size_t>(stream, random() % 3 == 0 ? random() % 200 : 0));
        stream -= now.carried;
        auto const all = stream + now.carried;
        stream_result last;
        std::size_t total = 0;
        auto next = machine.resume(now, last);
        for (int step = 0; next.kind != what::done; ++step) {
            REQUIRE(step < 10000);
            last = {};
            bool const from_socket = next.kind == what::receive || next.kind == what::receive_in_place;
            if (next.kind == what::place) {
                REQUIRE(now.carried > 0);
                last.bytes = std::min(next.bytes, now.carried);
                now.carried -= last.bytes;
            } else if (from_socket && random() % 3 == 0) {
                last.code = error::would_block;
            } else if (from_socket && stream == 0) {
                last.code = error::eof;
                now.over = error::eof;
            } else if (from_socket) {
                auto const count = 1 + random() % std::min(next.bytes, stream);
                stream -= count;
                (next.kind == what::receive ? now.carried : last.bytes) += count;
            }
            total += last.bytes;
            REQUIRE(total <= size);
            next = machine.resume(now, last);
        }
        CHECK(next.bytes == total);
        CHECK(next.bytes == std::min(size, all));
        CHECK(next.code == (all < size ? error_code{error::eof} : error_code{}));
    }
}

}  // namespace gpurx::test
