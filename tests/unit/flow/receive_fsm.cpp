// SPDX-License-Identifier: Apache-2.0
#include "flow/stream_fsm.hpp"

#include <boost/system/errc.hpp>

#include "machine_script.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

auto make = [] { return detail::receive_fsm{}; };

}  // namespace

TEST_CASE("receive: the kernel is asked first")
{
    play({{"something is there", {{connected, {}, action(what::receive, plenty)}, {carrying(10), {}, done()}}},
          {"nothing is there at first",
           {{connected, {}, action(what::receive, plenty)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)},
            {carrying(10), {}, done()}}},
          {"woken for nothing, twice",
           {{connected, {}, action(what::receive, plenty)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)},
            {connected, failed(error::would_block), action(what::wait_readable)},
            {connected, {}, action(what::receive, plenty)},
            {carrying(1), {}, done()}}}},
         make);
}

TEST_CASE("receive: what an earlier batch left comes first")
{
    auto at_the_limit = carrying(7);
    at_the_limit.loan_budget = 0;
    auto at_the_end = carrying(7);
    at_the_end.over = error::eof;
    play({{"bytes are carried", {{carrying(7), {}, done()}}},
          {"and the loan limit is reached: what a read left is no loan yet",
           {{at_the_limit, {}, action(what::wait_budget)}, {carrying(7), {}, done()}}},
          {"and the stream is over", {{at_the_end, {}, done()}}}},
         make);
}

TEST_CASE("receive: back-pressure")
{
    play(
        {{"no more than the budget", {{with_loan_budget(5), {}, action(what::receive, 5)}, {carrying(5), {}, done()}}},
         {"at the limit it waits for a loan to return",
          {{with_loan_budget(0), {}, action(what::wait_budget)},
           {with_loan_budget(3), {}, action(what::receive, 3)},
           {carrying(3), {}, done()}}},
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
            {carrying(9), {}, done()}}},
          {"what is carried needs none", {{rest, {}, done()}}},
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
               {{connected, {}, action(what::receive, plenty)}, {carrying(10), failed({}, type), done()}}},
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
