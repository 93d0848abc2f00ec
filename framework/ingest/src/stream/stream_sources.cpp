// SPDX-License-Identifier: Apache-2.0
//
// Who sends: listening, connecting, which connection speaks for which source, and what becomes of a
// source that is gone.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <sstream>
#include <utility>

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
        refuse_option("either listen or connect has to name endpoints");
    if (of.world_size == 0 || of.rank >= of.world_size)
        refuse_option(fmt::format("rank {} is none of a world of {}", of.rank, of.world_size));
    if (!of.listen.empty() && of.sources == 0)
        refuse_option("there have to be sources");
    if (of.batch_size == 0 || of.queue_depth == 0)
        refuse_option("batch_size and queue_depth have to be at least 1");
    if (of.limits.frame_size > most_frame_size)
        refuse_option("limits.frame_size can be 4 GiB at most");
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
    attempt("open socket for", acceptor.open(here.protocol(), code));
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
        if (options_.start_timeout > 0ms)
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
            adopt(std::move(accepted));
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

void stream_state::adopt(tcp::socket accepted)
{
    error_code gone;
    auto const peer = accepted.remote_endpoint(gone);
    if (gone)
        return;
    try {
        auto const made = make_connection(std::move(accepted));
        if (!made)
            return;
        made->peer = peer;
        watch_peer(made->rx);
        {
            std::scoped_lock const lock{told_mutex_};
            ++stats_.connections;
        }
        asio::co_spawn(made->strand, receive_frames(shared_from_this(), made), asio::detached);
    } catch (system_error const& error) {
        report({.source = {}, .peer = peer, .code = error.code(), .why = error.why()});
    }
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
    asio::post(which->strand, [which] { which->rx.close(); });
}

// ---- sources ----

std::size_t stream_state::index_of(std::uint32_t number) const
{
    auto const found = std::ranges::lower_bound(sources_, number, {}, &source::number);
    if (found == sources_.end() || found->number != number)
        refuse_frame(fmt::format("source {} is none of those of rank {} of {}: they are fewer, or another process's",
                                 number, options_.rank, options_.world_size));
    return static_cast<std::size_t>(found - sources_.begin());
}

void stream_state::introduce(std::shared_ptr<connection> const& who, frame_head const& head)
{
    if (who->source) {
        if (*who->source != head.source)
            refuse_frame(fmt::format("frame {} is one of source {}", head.sequence, head.source));
        return;
    }
    auto& its = sources_[index_of(head.source)];
    if (its.failed)
        refuse_frame(fmt::format("source {} has failed before, and is not taken again", head.source));
    if (its.now)
        close_soon(its.now);  // its sender has come again, and the old connection does not know yet that it is dead
    its.now = who;
    its.last_peer = who->peer;
    its.absence.cancel();
    who->source = head.source;
}

asio::awaitable<void> stream_state::leave(std::shared_ptr<connection> who, ending how)
{
    connections_.erase(who);
    how.why.object = name_of(who->source, who->peer);
    if (stopped_)
        co_return;
    if (is_our_own(how.code)) {
        fail(how.code, std::move(how.why));
        co_return;
    }
    if (!who->source) {
        if (who->has_spoken)
            report({.source = {}, .peer = who->peer, .code = how.code, .why = std::move(how.why)});
        co_return;
    }
    auto const index = index_of(*who->source);
    auto& its = sources_[index];
    if (its.now != who)
        co_return;
    its.now.reset();
    if (its.ended)
        co_return;
    if (how.code.category() == ingest_category())
        end_source(index, how.code, std::move(how.why));
    else {
        its.last_trouble = how.code.message();
        if (options_.reconnect_timeout > 0ms)
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
    if (stopped_ || its.ended || its.now)
        return;
    auto why = its.last_trouble.empty() ? std::string{"no connection came"}
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
