// SPDX-License-Identifier: Apache-2.0
#include "flow/stream_fsm.hpp"

#include <boost/system/errc.hpp>

#include "machine_script.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

using detail::receive_fsm;

auto make = [] { return receive_fsm{1, detail::unbounded}; };

// Completes, and lends so many of the bytes that are carried.
stream_action lend(std::size_t bytes)
{
    return done({}, bytes);
}

stream_facts gathered(std::size_t bytes, std::size_t charge, std::size_t loan_budget = plenty)
{
    auto now = carrying(bytes);
    now.gathered = charge;
    now.loan_budget = loan_budget;
    return now;
}

}  // namespace

TEST_CASE("receive: the kernel is asked first")
{
    play({{"something is there", {{connected, {}, action(what::receive, plenty)}, {carrying(10), {}, lend(10)}}},
          {"nothing is there at first",
           {{connected, {}, action(what::receive, plenty)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)},
            {carrying(10), {}, lend(10)}}},
          {"woken for nothing, twice",
           {{connected, {}, action(what::receive, plenty)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)},
            {carrying(1), {}, lend(1)}}}},
         make);
}

TEST_CASE("receive: the rest of an earlier batch comes first")
{
    auto at_the_limit = carrying(7);
    at_the_limit.loan_budget = 0;
    auto at_the_end = carrying(7);
    at_the_end.over = error::eof;
    play({{"bytes are carried", {{carrying(7), {}, lend(7)}}},
          {"and the loan limit is reached: what a read left is no loan yet",
           {{at_the_limit, {}, action(what::wait_budget)}, {carrying(7), {}, lend(7)}}},
          {"and the stream is over", {{at_the_end, {}, lend(7)}}}},
         make);
}

TEST_CASE("receive: back-pressure")
{
    play(
        {{"no more than the budget", {{with_loan_budget(5), {}, action(what::receive, 5)}, {carrying(5), {}, lend(5)}}},
         {"at the limit it waits for a loan to return",
          {{with_loan_budget(0), {}, action(what::wait_budget)},
           {with_loan_budget(3), {}, action(what::receive, 3)},
           {carrying(3), {}, lend(3)}}},
         {"a loan returned and was lent again",
          {{with_loan_budget(0), {}, action(what::wait_budget)}, {with_loan_budget(0), {}, action(what::wait_budget)}}},
         {"no page is free",
          {{connected, {}, action(what::receive, plenty)},
           {connected, failed(error::no_buffer_space), action(what::wait_pages)},
           {connected, {}, action(what::receive, plenty)},
           {connected, failed(error::would_block), action(what::wait_readable)}}},
         {"the budget went while waiting for the socket",
          {{connected, {}, action(what::receive, plenty)},
           {connected, failed(error::would_block), action(what::wait_readable)},
           {with_loan_budget(0), {}, action(what::wait_budget)}}}},
        make);
}

TEST_CASE("receive: a socket that was drained is waited for before it is asked")
{
    auto rest = carrying(7);
    rest.drained = true;
    auto full = drained();
    full.loan_budget = 0;
    auto ended = over(error::eof);
    ended.drained = true;
    play({{"first the wait",
           {{drained(), {}, action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)},
            {carrying(9), {}, lend(9)}}},
          {"what is carried needs none", {{rest, {}, lend(7)}}},
          {"loans come first",
           {{full, {}, action(what::wait_budget)},
            {drained(), {}, action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)}}},
          {"nor has the end of the stream to be waited for", {{ended, {}, done(error::eof)}}},
          {"cancelled",
           {{drained(), {}, action(what::wait_readable)},
            {connected, failed(error::operation_aborted, cancel::total), done(error::operation_aborted)}}}},
         make);
}

TEST_CASE("receive: the end of the stream")
{
    std::vector<error_code> const ends{error::eof, error::connection_reset, errc::memory_locked_up,
                                       errc::foreign_memory, errc::mixed_fragments};
    for (auto const& end : ends) {
        INFO(end.message());
        play({{"met now", {{connected, {}, action(what::receive, plenty)}, {over(end), failed(error::eof), done(end)}}},
              {"met after a wait",
               {{connected, {}, action(what::receive, plenty)},
                {connected, failed(error::would_block), action(what::wait_readable)},
                {connected, {}, action(what::receive, plenty)},
                {over(end), failed(error::eof), done(end)}}},
              {"met before", {{over(end), {}, done(end)}}}},
             make);
    }
}

TEST_CASE("receive: without a connection")
{
    play({{"never connected, or closed", {{stream_facts{}, {}, done(error::not_connected)}}}}, make);
}

TEST_CASE("receive: closed while waiting")
{
    for (auto const wait : {what::wait_readable, what::wait_pages}) {
        auto const lack = wait == what::wait_readable ? error_code{error::would_block} : error::no_buffer_space;
        play({{"",
               {{connected, {}, action(what::receive, plenty)},
                {connected, failed(lack), action(wait)},
                {stream_facts{}, failed(error::operation_aborted), done(error::operation_aborted)}}}},
             make);
    }
    play({{"at the loan limit, and the close came just after the wake-up",
           {{with_loan_budget(0), {}, action(what::wait_budget)},
            {stream_facts{}, {}, done(error::operation_aborted)}}}},
         make);
}

TEST_CASE("receive: cancellation ends a wait, of each type")
{
    for (auto const type : {cancel::terminal, cancel::partial, cancel::total}) {
        play({{"waiting for the socket",
               {{connected, {}, action(what::receive, plenty)},
                {connected, failed(error::would_block), action(what::wait_readable)},
                {connected, failed(error::operation_aborted, type), done(error::operation_aborted)}}},
              {"waiting for a loan",
               {{with_loan_budget(0), {}, action(what::wait_budget)},
                {with_loan_budget(9), failed(error::operation_aborted, type), done(error::operation_aborted)}}},
              {"waiting for a page",
               {{connected, {}, action(what::receive, plenty)},
                {connected, failed(error::no_buffer_space), action(what::wait_pages)},
                {connected, failed(error::operation_aborted, type), done(error::operation_aborted)}}},
              {"the socket became readable at the same time: nothing was taken from it yet",
               {{connected, {}, action(what::receive, plenty)},
                {connected, failed(error::would_block), action(what::wait_readable)},
                {connected, failed({}, type), done(error::operation_aborted)}}}},
             make);
    }
}

TEST_CASE("receive: a success is never turned into an abort")
{
    for (auto const type : {cancel::terminal, cancel::partial, cancel::total, cancel::all})
        play({{"cancelled while the kernel was asked",
               {{connected, {}, action(what::receive, plenty)}, {carrying(10), failed({}, type), lend(10)}}},
              {"an end is not turned into one either",
               {{connected, {}, action(what::receive, plenty)},
                {over(error::eof), failed(error::eof, type), done(error::eof)}}}},
             make);
}

TEST_CASE("receive: a wait that fails by itself is reported")
{
    error_code const no_descriptors = make_error_code(boost::system::errc::too_many_files_open);
    play({{"",
           {{connected, {}, action(what::receive, plenty)},
            {connected, failed(error::no_buffer_space), action(what::wait_pages)},
            {connected, failed(no_descriptors), done(no_descriptors)}}}},
         make);
}

TEST_CASE("receive: no byte beyond the requested size")
{
    auto const at_most_ten = [] { return receive_fsm{1, 10}; };
    auto lent = carrying(25);
    lent.carried_lent = true;
    lent.loan_budget = 0;
    play({{"the socket has more", {{connected, {}, action(what::receive, 10)}, {carrying(10), {}, lend(10)}}},
          {"the budget is smaller", {{with_loan_budget(4), {}, action(what::receive, 4)}, {carrying(4), {}, lend(4)}}},
          {"more is carried", {{carrying(25), {}, lend(10)}}},
          {"less is carried: what is there is enough", {{carrying(3), {}, lend(3)}}},
          {"what is carried counts as a loan already", {{lent, {}, lend(10)}}}},
         at_most_ten);
    play({{"nothing is asked for", {{connected, {}, lend(0)}}}, {"of nobody", {{stream_facts{}, {}, lend(0)}}}}, [] {
        return receive_fsm{1, 0};
    });
}

TEST_CASE("receive exactly: batch after batch")
{
    auto ended = carrying(60);
    ended.over = error::eof;
    auto waits = carrying(60);
    waits.drained = true;
    play({{"one is enough", {{connected, {}, action(what::receive, 100)}, {carrying(100), {}, lend(100)}}},
          {"all of it is carried", {{carrying(130), {}, lend(100)}}},
          {"several",
           {{carrying(10), {}, action(what::receive, 90)},
            {gathered(60, 50), {}, action(what::receive, 40)},
            {gathered(100, 90), {}, lend(100)}}},
          {"the socket has no more now",
           {{carrying(60), {}, action(what::receive, 40)},
            {carrying(60), failed(error::would_block), action(what::wait_readable)},
            {carrying(60), {}, action(what::receive, 40)}}},
          {"nor had it any the last time", {{waits, {}, action(what::wait_readable)}}},
          {"the stream ends before",
           {{carrying(60), {}, action(what::receive, 40)}, {ended, failed(error::eof), done(error::eof)}}},
          {"it has ended", {{ended, {}, done(error::eof)}}},
          {"cancelled, with some of it there",
           {{waits, {}, action(what::wait_readable)},
            {waits, failed(error::operation_aborted, cancel::total), done(error::operation_aborted)}}}},
         [] {
             return receive_fsm{100, 100};
         });
}

TEST_CASE("receive exactly: the loan limit")
{
    auto const hundred = [] { return receive_fsm{100, 100}; };
    play({{"pages of what was received for it count",
           {{gathered(10, 40, 70), {}, action(what::receive, 30)},
            {gathered(40, 70, 70), {}, action(what::wait_budget, 70)},
            {gathered(40, 70, 120), {}, action(what::receive, 50)}}},
          {"nothing else is on loan: nothing could come back",
           {{gathered(40, plenty), {}, done(errc::beyond_loan_limit)}}}},
         hundred);
    play({{"more than ever", {{connected, {}, done(errc::beyond_loan_limit)}}}}, [] {
        return receive_fsm{plenty + 1, plenty + 1};
    });
}

TEST_CASE("receive exactly: other handlers get a turn")
{
    constexpr auto size = 2 * detail::bytes_in_turn;
    constexpr auto turn = detail::bytes_in_turn;
    auto const facts = [](std::size_t carried) {
        auto now = carrying(carried);
        now.loan_limit = now.loan_budget = size;
        return now;
    };
    play({{"",
           {{facts(0), {}, action(what::receive, size)},
            {facts(turn), {}, action(what::yield)},
            {facts(turn), {}, action(what::receive, turn)},
            {facts(size), {}, lend(size)}}}},
         [] {
             return receive_fsm{size, size};
         });
}

TEST_CASE("the end of a stream, told from what is lacking now")
{
    struct scenario {
        error_code met;
        bool locked_up;
        error_code end;
    };
    std::vector<scenario> const scenarios{
        {{}, false, {}},
        {{}, true, {}},
        {error::would_block, false, {}},
        {error::would_block, true, {}},
        {error::no_buffer_space, false, {}},
        {error::invalid_argument, false, {}},
        {error::fault, false, {}},
        {error::fault, true, {}},
        {error::eof, false, error::eof},
        {error::eof, true, errc::memory_locked_up},
        {error::connection_reset, false, error::connection_reset},
        {error::connection_reset, true, errc::memory_locked_up},
        {errc::foreign_memory, false, errc::foreign_memory},
    };
    for (auto const& [met, locked_up, end] : scenarios) {
        INFO(met.message() << (locked_up ? ", locked up" : ""));
        CHECK(detail::end_of_stream(met, locked_up) == end);
    }
}

}  // namespace gpurx::test
