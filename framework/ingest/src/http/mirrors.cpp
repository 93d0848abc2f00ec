// SPDX-License-Identifier: Apache-2.0
#include "mirrors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <gpurx/ingest/error.hpp>
#include <optional>
#include <utility>

#include "../net/retry.hpp"

namespace gpurx::ingest::detail {

namespace {

// Of a mirror, to find out whether it has the same: nobody has asked for more of it yet.
constexpr std::uint64_t size_of_probe = 1;

// What one server does, another may do better.
bool is_of_one_server(error_code code)
{
    if (code.category() == ingest_category())
        return code != errc::mirrors_differ && code != errc::object_changed && code != errc::wrong_checksum;
    return code.category() == asio::error::get_netdb_category();
}

// That of the URL as it was given is the first.
std::vector<mirror_place> places_of(std::string_view text, fetch_options const& options)
{
    std::vector<mirror_place> places;
    auto const add = [&](std::string_view url) {
        places.push_back({std::string{url}, {}});
        if (!s3::is_location(url))
            return;
        for (auto const& each : options.s3.more_endpoints)
            places.push_back({std::string{url}, each});
    };
    add(text);
    for (auto const& each : options.mirrors)
        add(each);
    return places;
}

std::vector<std::shared_ptr<mirror>> mirrors_at(std::vector<mirror_place> const& places, transfer_context& context)
{
    std::vector<std::shared_ptr<mirror>> all;
    for (auto const& each : places) {
        auto const* const first = all.empty() ? nullptr : &all.front()->from.where();
        all.push_back(std::make_shared<mirror>(all.size(), each, context, first));
    }
    return all;
}

// Of an object that is found anew, in words; empty: it is the same. It may come from another machine, of which each is
// to have the same ETag, or date where there is none.
std::string what_is_new(opened_object const& before, opened_object const& now)
{
    if (before.object.size != now.object.size)
        return fmt::format("its size was {}, and is {}", before.object.size, now.object.size);
    if (before.object.etag != now.object.etag)
        return fmt::format("its ETag was {}, and is {}", before.object.etag, now.object.etag);
    if (before.object.etag.empty() && before.object.last_modified != now.object.last_modified)
        return fmt::format("its date was {}, and is {}", before.object.last_modified, now.object.last_modified);
    return before.serves_ranges && !now.serves_ranges ? "its server no longer serves ranges" : "";
}

}  // namespace

mirrors::mirrors(std::string_view text, transfer_context& context)
    : context_{context},
      places_{places_of(text, context.options)},
      all_{mirrors_at(places_, context)},
      first_{all_.front()},
      secrets_for_{first_->from.where()},
      shares_{places_.size()}
{}

// ---- the first ----

asio::awaitable<void> mirrors::async_open(lane& by)
{
    auto const limit = context_.options.attempts;
    retries attempts{by.executor(), limit, context_.deadline};
    retries unanswered{by.executor(), std::min(limit, attempts_unanswered), context_.deadline};
    for (;;) {
        std::optional<passing_error> failure;
        for (auto& each : all_) {
            if (!each->failure.empty())
                continue;
            try {
                by.serve(each, check_of(*each));
                each->opened = co_await by.async_open(context_.options.chunk_size);
                each->is_open = true;
                first_ = each;
                shares_.began(first_->index);
                co_return;
            } catch (system_error const& error) {
                by.drop();
                failure = passing(error, by);
                ++context_.counters.retries;
            }
        }
        co_await (failure->code() == errc::http_status ? attempts : unanswered).async_pause(*failure);
    }
}

// ---- the others ----

// Nobody else opens the mirror for as long as this lives.
class mirrors::opening_turn {
  public:
    opening_turn(mirrors& of, mirror& what) noexcept : of_{of}, what_{what} {}
    opening_turn(opening_turn const&) = delete;
    opening_turn& operator=(opening_turn const&) = delete;
    ~opening_turn()
    {
        std::scoped_lock const lock{of_.mutex_};
        of_.shares_.hold(what_.index, false);
    }

  private:
    mirrors& of_;
    mirror& what_;
};

// Whether its mirror is open. If it is not, nobody else gets that until this lane has opened it.
bool mirrors::assign(lane& to)
{
    std::scoped_lock const lock{mutex_};
    auto const chosen = shares_.choose();
    if (!chosen)
        throw passing_error{errc::gave_up, words_for(first_->from.where(), "its other mirrors are being tried")};
    if (to.at() != nullptr)
        shares_.ended(to.at()->index);
    auto const& next = all_[*chosen];
    to.serve(next, check_of(*next));
    shares_.began(next->index);
    if (!next->is_open)
        shares_.hold(next->index, true);
    return next->is_open;
}

asio::awaitable<void> mirrors::async_connect(lane& by)
{
    if (!assign(by))
        co_await open(by, *by.at());
    if (by.on() == nullptr)
        co_await by.async_connect();
}

speed_check mirrors::check_of(mirror const& what)
{
    if (!are_several())
        return {};
    return [this, index = what.index](double speed) {
        std::scoped_lock const lock{mutex_};
        auto const outrun = shares_.is_outrun(index, speed);
        if (outrun)
            shares_.measured(index, speed);
        return outrun;
    };
}

// The lane stays connected if the answer to the first request has been no longer than that asked for.
asio::awaitable<void> mirrors::open(lane& by, mirror& what)
try {
    opening_turn const turn{*this, what};
    what.opened = co_await by.async_open(size_of_probe);
    if (auto const changed = what.renewed_at ? what_is_new(first_->opened, what.opened) : std::string{};
        !changed.empty())
        fail(errc::object_changed, what.from.where(), changed);
    auto const differs = what.renewed_at ? std::string{} : what_differs(first_->opened, what.opened);
    if (!differs.empty())
        fail(errc::mirrors_differ, what.from.where(), fmt::format("{} ({})", differs, first_->from.where().display));
    auto const probe = by.requests.front();
    if (probe.last || probe.answer.size() > size_of_probe)
        by.drop();
    else
        co_await by.on()->async_skip(probe.answer.size());
    by.requests.clear();
    std::scoped_lock const lock{mutex_};
    what.is_open = true;
} catch (...) {
    by.drop();
    throw;
}

void mirrors::leave(lane& by)
{
    if (by.at() == nullptr)
        return;
    std::scoped_lock const lock{mutex_};
    shares_.ended(by.at()->index);
    by.serve_none();
}

// ---- how they do ----

bool mirrors::renew(mirror& refused)
{
    std::scoped_lock const lock{mutex_};
    auto& place = all_[refused.index];
    // Another lane has been quicker.
    if (place.get() != &refused)
        return true;
    if (refused.renewed_at && !context_.is_progress(refused.bytes - *refused.renewed_at))
        return false;
    auto at = places_[refused.index];
    at.url = url_at_commit(at.url, refused.from.commit());
    auto fresh = std::make_shared<mirror>(refused.index, at, context_, refused.index == 0 ? nullptr : &secrets_for_);
    fresh->bytes = refused.bytes.load();
    fresh->renewed_at = refused.bytes;
    place = std::move(fresh);
    return true;
}

passing_error mirrors::passing(system_error const& failure, lane const& of)
{
    if (of.at() != nullptr)
        of.at()->from.doubt();
    if (of.at() != nullptr && dynamic_cast<later_refusal const*>(&failure) != nullptr && renew(*of.at()))
        return {failure.code(), failure.why()};
    if (of.at() == nullptr || !are_several())
        return detail::passing(failure, first_->from.where());
    auto& at = *of.at();
    std::scoped_lock const lock{mutex_};
    // The session has no room, whatever the server.
    if (failure.code() != gpurx::errc::too_many_flows)
        shares_.failed(at.index);
    if (is_of_one_server(failure.code()) && failure.code() != errc::gave_up &&
        dynamic_cast<passing_error const*>(&failure) == nullptr) {
        exclude(at, failure);
        return {failure.code(), words_for(at.from.where(), at.failure)};
    }
    return detail::passing(failure, at.from.where());
}

// Throws what has happened, where no other is left.
void mirrors::exclude(mirror& what, system_error const& failure)
{
    if (shares_.left() == 1) {
        auto why = failure.why();
        why.operation = "fetch";
        why.object = what.from.where().display;
        why.advice += words_of_others(what);
        throw system_error{failure.code(), why};
    }
    what.failure = failure.why().advice.empty() ? failure.code().message() : failure.why().advice;
    shares_.exclude(what.index);
}

std::string mirrors::words_of_others(mirror const& than) const
{
    std::string words;
    for (auto const& each : all_) {
        if (each.get() != &than)
            words += fmt::format("; {}: {}", each->from.where().display, each->failure);
    }
    return words;
}

bool mirrors::has_sound() const
{
    std::scoped_lock const lock{mutex_};
    return are_several() && shares_.has_sound();
}

void mirrors::progressed(lane const& of, double speed)
{
    if (!are_several())
        return;
    std::scoped_lock const lock{mutex_};
    shares_.progressed(of.at()->index);
    shares_.measured(of.at()->index, speed);
}

std::vector<mirror_stats> mirrors::stats() const
{
    std::scoped_lock const lock{mutex_};
    std::vector<mirror_stats> found;
    for (auto const& each : all_)
        found.push_back({.url = each->from.given(), .bytes_placed = each->bytes, .failure = each->failure});
    return found;
}

}  // namespace gpurx::ingest::detail
