// SPDX-License-Identifier: Apache-2.0
//
// The senders of a stream: listening, connecting, the connection of each source, and the end of a source that is gone.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <sstream>
#include <utility>

#include "../net/tcp.hpp"
#include "stream_state.hpp"

namespace gpurx::ingest::detail {

using asio::ip::tcp;
using namespace std::chrono_literals;

namespace {

[[noreturn]] void refuse_option(std::string why)
{
    throw system_error{
        make_error_code(boost::system::errc::invalid_argument),
        {.operation = "open tensor stream", .object = {}, .kernel_message = {}, .advice = std::move(why)}};
}

std::string text_of(tcp::endpoint const& peer)
{
    std::ostringstream text;
    text << peer;
    return text.str();
}

std::string name_of(std::optional<std::uint32_t> source, tcp::endpoint const& peer)
{
    if (!source)
        return fmt::format("from {}", text_of(peer));
    if (peer == tcp::endpoint{})
        return fmt::format("of source {}", *source);
    return fmt::format("of source {} at {}", *source, text_of(peer));
}

[[noreturn]] void refuse_source(std::string why)
{
    throw system_error{errc::wrong_source,
                       {.operation = "read frame", .object = {}, .kernel_message = {}, .advice = std::move(why)}};
}

// Another descriptor of the same connection. Throws system_error.
tcp::socket twin_of(tcp::socket& of, asio::any_io_executor const& on)
{
    auto const fail = [](error_code code) {
        throw system_error{code, {.operation = "adopt connection", .object = {}, .kernel_message = {}, .advice = {}}};
    };
    auto const descriptor = ::fcntl(of.native_handle(), F_DUPFD_CLOEXEC, 0);
    if (descriptor < 0)
        fail({errno, boost::system::system_category()});
    tcp::socket twin{on};
    error_code code;
    twin.assign(of.local_endpoint().protocol(), descriptor, code);
    if (code) {
        ::close(descriptor);
        fail(code);
    }
    return twin;
}

// What no sender is to blame for, and no other connection would cure.
bool is_our_own(error_code code)
{
    constexpr std::array own{gpurx::errc::no_cuda, gpurx::errc::bad_destination, gpurx::errc::wrong_gpu,
                             gpurx::errc::unusable_stream};
    return code.category() == cuda_category() || code == boost::system::errc::not_enough_memory ||
           std::ranges::any_of(own, [code](gpurx::errc each) { return code == each; });
}

}  // namespace

void stream_state::check_options() const
{
    constexpr std::uint64_t most_frame_size = std::uint64_t{4} << 30;
    auto const& of = options_;
    if (of.listen.empty() == of.connect.empty())
        refuse_option("set endpoints in either listen or connect");
    if (of.world_size == 0 || of.rank >= of.world_size)
        refuse_option(fmt::format("rank {} is not below world_size {}", of.rank, of.world_size));
    if (!of.listen.empty() && of.sources == 0)
        refuse_option("sources must be at least 1");
    if (of.batch_size == 0 || of.queue_depth == 0)
        refuse_option("batch_size and queue_depth must be at least 1");
    auto const count = of.connect.empty() ? of.sources : of.connect.size();
    if (of.shuffle > 0 && count > of.world_size && of.order != frame_order::rounds)
        refuse_option("only frame_order::rounds shuffles rows of several sources the same way in each run");
    constexpr std::size_t least_secret = 16;
    if (!of.secret.empty() && of.secret.size() < least_secret)
        refuse_option(fmt::format("a secret must have at least {} random bytes; this one has {}", least_secret,
                                  of.secret.size()));
    if (of.limits.frame_size > most_frame_size)
        refuse_option("limits.frame_size must be at most 4 GiB");
    if (of.tensors.empty())
        return;
    try {
        static_cast<void>(encode({.rows = 1, .tensors = of.tensors}));
    } catch (system_error const& error) {
        refuse_option(error.why().advice);
    }
}

void stream_state::find_sources()
{
    auto const all = options_.connect.empty() ? options_.sources : static_cast<std::uint32_t>(options_.connect.size());
    for (std::uint64_t number = options_.rank; number < all; number += options_.world_size)
        sources_.emplace_back(strand_, static_cast<std::uint32_t>(number));
    turns_.emplace(std::max<std::size_t>(sources_.size(), 1), options_.order == frame_order::rounds);
    if (!options_.position.sources.empty())
        go_on_at(options_.position);
}

void stream_state::go_on_at(stream_position const& where)
{
    if (sources_.empty())
        return;
    epoch_ = where.epoch;
    windows_ = where.window;
    batches_taken_ = where.batches;
    std::vector<bool> over;
    for (auto& each : sources_) {
        auto const found = std::ranges::find(where.sources, each.number, &source_position::source);
        if (found == where.sources.end())
            refuse_option(
                fmt::format("the position has no source {}: it is another stream's, or another rank's", each.number));
        each.placed = *found;
        each.progress = {found->frame, found->ended};
        each.acknowledged = found->frame;
        each.epoch_over = found->epoch_ended;
        each.ended = found->ended;
        each.confirmed = found->ended;
        over.push_back(found->ended || found->epoch_ended);
    }
    turns_->begin(std::move(over), first_turn());
}

// In rounds: of those that have had the fewest frames of this epoch, the first.
std::size_t stream_state::first_turn() const
{
    std::size_t first = 0;
    std::uint64_t fewest = ~std::uint64_t{0};
    for (std::size_t i = 0; i < sources_.size(); ++i) {
        auto const& at = sources_[i].placed;
        if (at.ended || at.epoch_ended || at.frame - at.epoch_frame >= fewest)
            continue;
        fewest = at.frame - at.epoch_frame;
        first = i;
    }
    return first;
}

void stream_state::listen_at(tcp::endpoint const& here)
{
    // What waits to be accepted holds as much of the session's memory as a flow that is received. (The kernel lets one
    // more wait than it is told.)
    constexpr std::size_t strangers = 4;
    auto const waiting = sources_.size() + strangers - 1;
    auto const backlog = static_cast<int>(std::min<std::size_t>(waiting, tcp::acceptor::max_listen_connections));
    auto const attempt = [&here](char const* operation, error_code code) {
        if (code)
            throw system_error{code,
                               {.operation = operation, .object = text_of(here), .kernel_message = {}, .advice = {}}};
    };
    error_code code;
    auto& acceptor = acceptors_.emplace_back(strand_);
    open_private(acceptor, here.protocol(), code);
    attempt("open socket for", code);
    attempt("open socket for", acceptor.set_option(tcp::acceptor::reuse_address{true}, code));
    attempt("bind to", acceptor.bind(here, code));
    session_->steer(acceptor);  // between bind and listen
    attempt("listen at", acceptor.listen(backlog, code));
    endpoints_.push_back(acceptor.local_endpoint());
}

void stream_state::begin()
{
    if (stopped_)
        return;
    for (auto& acceptor : acceptors_)
        asio::co_spawn(strand_, accept_from(acceptor), asio::detached);
    for (std::size_t i = 0; i < sources_.size(); ++i) {
        if (options_.start_timeout > 0ms && !sources_[i].ended)
            give_source_time(i, options_.start_timeout);
        if (!options_.connect.empty())
            asio::co_spawn(strand_, connect_to(i, options_.connect[sources_[i].number]), asio::detached);
    }
    end_if_complete();  // there may be no source
}

// ---- connections ----

template <class... Socket>
std::shared_ptr<connection> stream_state::make_connection(Socket... accepted)
{
    asio::any_io_executor const strand = asio::make_strand(executor_);
    std::scoped_lock const lock{session_mutex_};
    if (session_ == nullptr)
        return nullptr;
    auto made = std::make_shared<connection>(strand, receiver{strand, *session_, std::move(accepted)...});
    connections_.insert(made);
    return made;
}

asio::awaitable<void> stream_state::accept_from(tcp::acceptor& acceptor)
{
    auto const self = shared_from_this();
    asio::steady_timer pause{strand_};
    while (!stopped_) {
        auto [code, accepted] = co_await acceptor.async_accept(outcome);
        if (stopped_)
            co_return;
        if (!code) {
            make_private(accepted);
            co_await adopt(std::move(accepted));
            continue;
        }
        // No descriptor left, most likely: others may give theirs back.
        report({.source = {},
                .peer = {},
                .code = code,
                .why = {.operation = "accept connection", .object = {}, .kernel_message = {}, .advice = {}}});
        pause.expires_after(100ms);
        co_await pause.async_wait(outcome);
    }
}

// Who has no place takes that of a connection of which nobody knows what it is: probes and the like must not keep out
// a source.
asio::awaitable<void> stream_state::adopt(tcp::socket accepted)
{
    error_code gone;
    auto const peer = accepted.remote_endpoint(gone);
    while (!gone && !stopped_) {
        ending refusal;
        if (auto const made = try_to_adopt(accepted, peer, refusal)) {
            asio::co_spawn(made->strand, receive_frames(shared_from_this(), made), asio::detached);
            co_return;
        }
        auto const unknown = longest_unknown();
        if (refusal.code != gpurx::errc::too_many_flows || !unknown) {
            if (!refusal.code)
                co_return;  // the stream is closed
            note_stranger(peer, refusal.code.message());
            report({.source = {}, .peer = peer, .code = refusal.code, .why = std::move(refusal.why)});
            co_return;
        }
        co_await make_place(unknown);
    }
}

// Leaves `accepted` as it is, which a receiver does not.
std::shared_ptr<connection> stream_state::try_to_adopt(tcp::socket& accepted, tcp::endpoint const& peer,
                                                       ending& refusal)
try {
    auto made = make_connection(twin_of(accepted, strand_));
    if (!made)
        return nullptr;
    made->peer = peer;
    made->number = ++accepted_;
    watch_peer(made->rx.native_handle());
    std::scoped_lock const lock{told_mutex_};
    ++stats_.connections;
    return made;
} catch (system_error const& error) {
    refusal = {error.code(), error.why()};
    return nullptr;
}

std::shared_ptr<connection> stream_state::longest_unknown() const
{
    std::shared_ptr<connection> longest;
    for (auto const& each : connections_) {
        if (!each->source && !each->makes_place && (!longest || each->number < longest->number))
            longest = each;
    }
    return longest;
}

asio::awaitable<void> stream_state::make_place(std::shared_ptr<connection> who)
{
    who->makes_place = true;
    close_soon(who);
    while (!stopped_ && connections_.contains(who))
        co_await changed_.async_wait(outcome);
}

void stream_state::note_stranger(tcp::endpoint const& peer, std::string const& why)
{
    ++strangers_;
    last_stranger_ = fmt::format("{}: {}", name_of(std::nullopt, peer), why);
}

std::string stream_state::who_else_came() const
{
    std::string text;
    if (strangers_ > 0)
        text += fmt::format("; connections of other peers: {}, the last {}", strangers_, last_stranger_);
    if (auto const silent = std::ranges::count_if(connections_, [](auto const& each) { return !each->source; }))
        text += fmt::format("; open connections without a source so far: {}", silent);
    return text;
}

asio::awaitable<error_code> stream_state::connect_once(std::size_t index, tcp::endpoint there)
{
    auto& its = sources_[index];
    auto const made = make_connection();
    if (!made)
        co_return asio::error::operation_aborted;
    made->peer = there;
    made->source = its.number;
    auto const code = co_await asio::co_spawn(made->strand, connect(made, there), asio::use_awaitable);
    if (code || stopped_ || its.ended) {
        connections_.erase(made);
        co_return code ? code : error_code{asio::error::operation_aborted};
    }
    its.now = made;
    its.last_peer = there;
    its.absence.cancel();
    {
        std::scoped_lock const lock{told_mutex_};
        ++stats_.connections;
    }
    co_await asio::co_spawn(made->strand, receive_frames(shared_from_this(), made), asio::use_awaitable);
    co_return error_code{};
}

asio::awaitable<void> stream_state::connect_to(std::size_t index, tcp::endpoint there)
{
    constexpr auto shortest = 50ms;
    constexpr std::chrono::milliseconds longest = 2s;
    auto const self = shared_from_this();
    auto& its = sources_[index];
    std::chrono::milliseconds pause = shortest;
    while (!stopped_ && !its.ended) {
        error_code code;
        try {
            code = co_await connect_once(index, there);
        } catch (boost::system::system_error const& error) {
            code = error.code();
        }
        if (stopped_ || its.ended)
            co_return;
        if (code)
            its.last_trouble = code.message();
        pause = code ? std::min(2 * pause, longest) : shortest;
        its.retry.expires_after(pause);
        co_await its.retry.async_wait(outcome);
    }
}

void stream_state::close_soon(std::shared_ptr<connection> const& which)
{
    asio::post(which->strand, [which] { which->end(); });
}

// ---- sources ----

std::size_t stream_state::index_of(std::uint32_t number) const
{
    auto const found = std::ranges::lower_bound(sources_, number, {}, &source::number);
    if (found == sources_.end() || found->number != number)
        refuse_source(fmt::format(
            "source {} does not belong to rank {} of {}: there are fewer sources, or another process receives it",
            number, options_.rank, options_.world_size));
    return static_cast<std::size_t>(found - sources_.begin());
}

void stream_state::introduce(std::shared_ptr<connection> const& who, frame_head const& head)
{
    if (who->source) {
        if (*who->source != head.source)
            refuse_frame(fmt::format("frame {} belongs to source {}", head.sequence, head.source));
        return;
    }
    auto& its = sources_[index_of(head.source)];
    if (its.failed)
        refuse_frame(fmt::format("source {} has failed before, and is not accepted again", head.source));
    if (head.begins && (its.now || its.progress.expected() > 0))
        refuse_second(its);
    let_speak(who, its);
}

void stream_state::introduce(std::shared_ptr<connection> const& who, hello const& said)
{
    if (who->source && *who->source != said.source)
        refuse_source(fmt::format("it announces source {}", said.source));
    auto& its = sources_[index_of(said.source)];
    switch (judge(*who, said)) {
        case greeting::has_failed:
            refuse_frame(fmt::format("source {} has failed before, and is not accepted again", said.source));
        case greeting::other_sender:
            refuse_second(its);
        default:
            break;
    }
    its.placed.sender = said.sender;
    let_speak(who, its);
}

greeting stream_state::judge(connection const& who, hello const& said) const
{
    auto const found = std::ranges::find(sources_, said.source, &source::number);
    if (found == sources_.end() || (who.source && *who.source != said.source))
        return greeting::no_source;
    if (found->failed)
        return greeting::has_failed;
    // Where we connected, the source's connection is this one from the begin.
    auto const has_another = found->now && found->now.get() != &who;
    auto const has_sent = has_another || found->progress.expected() > 0;
    auto const is_same_one = found->placed.sender == said.sender;
    return has_sent && !is_same_one && !said.resumes ? greeting::other_sender : greeting::taken;
}

void stream_state::let_speak(std::shared_ptr<connection> const& who, source& its)
{
    if (its.now && its.now != who)
        close_soon(its.now);  // its sender has come again, and the old connection does not know yet that it is dead
    its.now = who;
    its.last_peer = who->peer;
    its.absence.cancel();
    who->source = its.number;
    changed();
}

void stream_state::refuse_second(source const& its) const
{
    refuse_source(
        fmt::format("source {} already came from {}, which has sent {} frames: give each sender its own number; a "
                    "restarted sender must resume (in Python: resume=True)",
                    its.number, text_of(its.last_peer), its.progress.expected()));
}

asio::awaitable<stream_state::meeting> stream_state::meet(std::shared_ptr<connection> who, hello const& said)
{
    if (stopped_)
        throw system_error{asio::error::operation_aborted, {}};
    meeting result{};
    result.answer.says = judge(*who, said);
    try {
        introduce(who, said);
        auto const& its = sources_[index_of(said.source)];
        result.answer.expected = its.progress.expected();
        result.answer.acknowledged = its.acknowledged;
        result.has_ended = its.progress.last_taken();
    } catch (system_error const& error) {
        result.refusal = {error.code(), error.why()};
    }
    co_return result;
}

asio::awaitable<void> stream_state::leave(std::shared_ptr<connection> who, ending how)
{
    connections_.erase(who);
    changed();
    how.why.object = name_of(who->source, who->peer);
    if (stopped_)
        co_return;
    if (is_our_own(how.code)) {
        fail(how.code, std::move(how.why));
        co_return;
    }
    if (!who->source) {
        if (who->makes_place)
            how.why.advice = "it had not yet announced its source, and another connection needed its flow";
        note_stranger(who->peer, !who->has_spoken         ? "it sent nothing"
                                 : how.why.advice.empty() ? how.code.message()
                                                          : how.why.advice);
        if (who->has_spoken)
            report({.source = {}, .peer = who->peer, .code = how.code, .why = std::move(how.why)});
        co_return;
    }
    auto const index = index_of(*who->source);
    auto& its = sources_[index];
    if (its.now != who)
        co_return;
    its.now.reset();
    if (its.ended && (!how.code || options_.reconnect_timeout == 0ms))
        confirm(index);
    else if (its.ended && !its.confirmed)
        give_source_time(index, options_.reconnect_timeout);
    if (its.ended)
        co_return;
    // Who keeps frames until they are acknowledged sends this one again.
    auto const is_damaged = who->greeted && how.code == errc::wrong_checksum;
    if (is_damaged) {
        std::scoped_lock const lock{told_mutex_};
        ++stats_.damaged;
    }
    if (how.code.category() == ingest_category() && !is_damaged)
        end_source(index, how.code, std::move(how.why));
    else {
        its.last_trouble = who->is_stuck || is_damaged ? how.why.advice : how.code.message();
        // Who was connected to, and is stuck before the first byte, would be so again.
        auto const may_come = !who->is_stuck || who->has_spoken;
        if (may_come && options_.reconnect_timeout > 0ms)
            give_source_time(index, options_.reconnect_timeout);
        else
            give_up(index);
    }
}

void stream_state::give_source_time(std::size_t index, std::chrono::milliseconds limit)
{
    auto& timer = sources_[index].absence;
    timer.expires_after(limit);
    timer.async_wait([self = shared_from_this(), index](error_code cancelled) {
        // It may have come, or gone again, since the timer expired.
        if (!cancelled && self->sources_[index].absence.expiry() <= asio::steady_timer::clock_type::now())
            self->give_up(index);
    });
}

void stream_state::give_up(std::size_t index)
{
    auto const& its = sources_[index];
    if (stopped_ || its.now)
        return;
    if (its.ended)
        return confirm(index);
    auto why = its.last_trouble.empty() ? "no connection came" + who_else_came()
                                        : fmt::format("after {} frames: {}", its.progress.expected(), its.last_trouble);
    end_source(index, errc::stream_cut,
               {.operation = "receive frames",
                .object = name_of(its.number, its.last_peer),
                .kernel_message = {},
                .advice = std::move(why)});
}

void stream_state::end_source(std::size_t index, error_code code, diagnostics why)
{
    auto& its = sources_[index];
    its.ended = true;
    its.absence.cancel();
    its.retry.cancel();
    turns_->end(index);
    if (code) {
        its.failed = true;
        its.confirmed = true;
        report({.source = its.number, .peer = its.last_peer, .code = code, .why = std::move(why)});
        for (auto const& each : connections_) {
            if (each->source == its.number)
                close_soon(each);
        }
    }
    changed();
    end_if_complete();
}

}  // namespace gpurx::ingest::detail
