// SPDX-License-Identifier: Apache-2.0
#include "sender_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>
#include <gpurx/crc32c.hpp>
#include <new>
#include <utility>

namespace gpurx::ingest::detail {

namespace {

using namespace std::chrono_literals;

// Between two attempts to connect to a receiver that is not there yet: twice as long each time, up to the most.
constexpr std::chrono::milliseconds first_retry = 50ms;
constexpr std::chrono::milliseconds longest_retry = 2s;
constexpr std::size_t least_secret = 16;

// What another attempt may do better.
bool is_not_yet(error_code code)
{
    return code == asio::error::connection_refused || code == asio::error::connection_reset ||
           code == asio::error::host_unreachable || code == asio::error::network_unreachable ||
           code == asio::error::timed_out || code == asio::error::host_not_found_try_again;
}

std::string seconds(std::chrono::milliseconds time)
{
    return fmt::format("{:g} s", std::chrono::duration<double>{time}.count());
}

std::uint32_t random_number()
{
    auto const bytes = make_nonce();
    std::uint32_t number = 0;
    std::memcpy(&number, bytes.data(), sizeof number);
    return std::max<std::uint32_t>(number, 1);
}

tensor_sender_options checked(tensor_sender_options options)
{
    if (!options.secret.empty() && options.secret.size() < least_secret)
        throw system_error{make_error_code(boost::system::errc::invalid_argument),
                           {.operation = "make",
                            .object = "tensor sender",
                            .kernel_message = {},
                            .advice = fmt::format("secret must have at least {} bytes", least_secret)}};
    return options;
}

char const* words(greeting says)
{
    switch (says) {
        case greeting::taken:
            break;
        case greeting::secret_needed:
            return "it requires a secret, and this sender has none";
        case greeting::no_secret_here:
            return "it has no secret, and this sender has one";
        case greeting::wrong_secret:
            return "it has another secret";
        case greeting::no_source:
            return "it receives no source of this number: it has fewer sources, or another rank receives this one";
        case greeting::other_sender:
            return "another sender of this number has sent to it: give each sender its own number; a restarted sender "
                   "must resume";
        case greeting::has_failed:
            return "this source has failed there before; errors() of its stream has the reason";
    }
    return "it gives no reason";
}

errc code_of(greeting says)
{
    switch (says) {
        case greeting::no_source:
        case greeting::other_sender:
            return errc::wrong_source;
        case greeting::has_failed:
            return errc::stream_cut;
        default:
            return errc::wrong_secret;
    }
}

}  // namespace

sender_state::sender_state(asio::any_io_executor executor, tensor_sender_options options)
    : executor_{std::move(executor)},
      options_{checked(std::move(options))},
      sender_{random_number()},
      link_{executor_, options_},
      pause_{executor_}
{}

std::uint64_t sender_state::acknowledged() noexcept
{
    // An operation reads itself, and may wait for what would be read here.
    if (!is_busy_ && link_.is_greeted) {
        try {
            read_acknowledgements();
        } catch (...) {  // NOLINT(bugprone-empty-catch): the next operation makes another connection
        }
    }
    return acknowledged_;
}

// ---- operations ----

asio::awaitable<error_code> sender_state::serve(sending what, std::shared_ptr<kept_frame> frame)
{
    struct turn {
        sender_state& of;
        ~turn() { of.end_turn(); }
    };
    auto const self = shared_from_this();
    turn const own{*this};
    has_kept_ = false;
    error_code code;
    try {
        co_await perform(what, std::move(frame));
    } catch (system_error const& error) {
        code = note(error.code(), error.why());
    } catch (boost::system::system_error const& error) {
        auto const why = ended_.value_or(described(error.code(), {}));
        code = note(why.code(), why.why());
    } catch (std::bad_alloc const&) {
        code = note(asio::error::no_memory, {});
    }
    // Half a greeting is none.
    if (code && !link_.is_greeted)
        drop_connection();
    co_return code;
}

error_code sender_state::note(error_code code, diagnostics why)
{
    why_ = std::move(why);
    return code;
}

asio::awaitable<void> sender_state::perform(sending what, std::shared_ptr<kept_frame> frame)
{
    if (what == sending::close && is_closed_)
        co_return;
    check_open(what);
    if (what == sending::close)
        frame->head.is_last = true;
    if (last_is_kept_)
        frame = nullptr;
    if (frame)
        check(*frame);
    co_await wait_for_receiver();
    if (what == sending::connect)
        co_return;
    if (frame)
        co_await put(std::move(frame));
    if (what == sending::greet)
        co_await until([] { return true; });
    if (what == sending::flush || what == sending::close)
        co_await until([this] { return kept_.empty(); });
    if (what == sending::close)
        co_await say_goodbye();
}

void sender_state::check_open(sending what) const
{
    if (ended_)
        throw system_error{*ended_};
    if (is_closed_ || (last_is_kept_ && what == sending::send))
        throw described(asio::error::shut_down, "async_close has sent the last frame");
}

void sender_state::check(kept_frame& frame) const
{
    auto const refuse = [this](std::string why) {
        throw described(make_error_code(boost::system::errc::invalid_argument), std::move(why));
    };
    auto& head = frame.head;
    head.source = options_.source;
    if (frame.refusal.empty() && head.rows == 0 && !head.is_last && !head.ends_epoch)
        frame.refusal =
            "the tensors of a frame must have the same number of rows, at least one; this frame has no tensor";
    if (!frame.refusal.empty())
        refuse(frame.refusal);
    if (!tensors_.empty() && !head.tensors.empty() && head.tensors != tensors_)
        refuse("all frames must have the same tensors, with the same types and shapes of rows, in the same order");
    try {
        static_cast<void>(encode(head));
    } catch (system_error const& error) {
        refuse(error.why().advice);
    }
}

asio::awaitable<void> sender_state::put(std::shared_ptr<kept_frame> frame)
{
    auto const size = frame->head.payload_size() + frame_start_size + frame->head.tensors.size() * frame_tensor_size;
    co_await until([&] { return kept_.empty() || kept_size_ + size <= options_.window; });
    frame->size = size;
    keep(std::move(frame));
    co_await until([this] { return !has_to_write(); });
}

void sender_state::keep(std::shared_ptr<kept_frame> frame)
{
    auto& head = frame->head;
    head.sequence = next_;
    last_is_kept_ = head.is_last;
    if (next_ >= acknowledged_) {
        head.has_crc = options_.crc32c;
        for (auto const bytes : frame->payload)
            head.payload_crc = head.has_crc ? gpurx::crc32c(bytes, head.payload_crc) : 0;
        frame->encoded = encode(head);
        if (tensors_.empty())
            tensors_ = head.tensors;
        kept_size_ += frame->size;
        kept_.push_back(std::move(frame));
    }
    ++next_;
    has_kept_ = true;
}

asio::awaitable<void> sender_state::say_goodbye()
{
    if (received_ > next_)
        throw ended(make_error_code(boost::system::errc::invalid_argument),
                    fmt::format("the receiver has {} frames of this source, and the sender made {}: its rows are not "
                                "the same as before",
                                received_, next_));
    auto const goodbye = encode_ack(next_);
    try {
        co_await link_.write(goodbye);
    } catch (link_lost const&) {  // NOLINT(bugprone-empty-catch): the receiver waits for a while, and ends all the same
    }
    is_closed_ = true;
    drop_connection();
}

void sender_state::cancel(asio::cancellation_type type) noexcept
{
    using asio::cancellation_type;
    auto const breaks_off =
        (type & (cancellation_type::terminal | cancellation_type::partial)) != cancellation_type::none;
    if (is_busy_ && (breaks_off || !has_kept_))
        cancelled_.emit(cancellation_type::terminal);
}

void sender_state::abort() noexcept
{
    if (!ended_)
        ended_ = described(asio::error::operation_aborted, "the sender was aborted");
    drop_connection();
    kept_.clear();
    cancel(asio::cancellation_type::terminal);
}

// ---- connections ----

asio::awaitable<void> sender_state::wait_for_receiver()
{
    auto const end = clock::now() + options_.connect_timeout;
    auto const until = options_.connect_timeout.count() > 0 ? end : clock::time_point::max();
    for (auto next = first_retry; !has_connected_; next = std::min(2 * next, longest_retry)) {
        std::optional<link_lost> lost;
        try {
            co_await link_.open(until);
            has_connected_ = true;
            ++stats_.connections;
            co_return;
        } catch (link_lost const& met) {
            lost = met;
        }
        auto const left = end - clock::now();
        if (left <= 0ms || !is_not_yet(lost->code)) {
            auto const advice = is_not_yet(lost->code)
                                    ? fmt::format(
                                          "no connection within {}: start gpurx.TensorStream or another receiver "
                                          "there, or raise connect_timeout",
                                          seconds(options_.connect_timeout))
                                    : std::string{"check the host and the port"};
            throw system_error{lost->code,
                               {.operation = "connect", .object = where(), .kernel_message = {}, .advice = advice}};
        }
        co_await pause(std::min<clock::duration>(next, left));
    }
}

asio::awaitable<void> sender_state::pause(clock::duration time)
{
    pause_.expires_after(time);
    co_await pause_.async_wait(asio::as_tuple(asio::deferred));
}

template <class Done>
asio::awaitable<void> sender_state::until(Done done)
{
    std::optional<clock::time_point> failing_since;
    auto acknowledged = acknowledged_;
    for (;;) {
        std::optional<link_lost> lost;
        auto const since = failing_since.value_or(clock::now());
        auto const limit = options_.reconnect_timeout;
        try {
            co_await go_on(done, limit.count() > 0 ? since + limit : clock::time_point::max());
            co_return;
        } catch (link_lost const& met) {
            lost = met;
        }
        drop_connection();
        if (ended_)
            throw system_error{*ended_};
        auto const now = clock::now();
        if (!failing_since || acknowledged_ > acknowledged) {
            failing_since = now;
            acknowledged = acknowledged_;
        }
        auto const left = *failing_since + limit - now;
        if (lost->is_final)
            throw ended(lost->code, lost->why);
        if (left <= 0ms)
            throw ended(
                lost->code,
                fmt::format("{}{}{} frames are not acknowledged; errors() of the receiver's stream has the reason",
                            lost->why, limit.count() > 0 ? fmt::format(", for {}; ", seconds(limit)) : "; ",
                            kept_.size()));
        why_ = described(lost->code, lost->why).why();
        co_await pause(std::min<clock::duration>(first_retry, left));
    }
}

template <class Done>
asio::awaitable<void> sender_state::go_on(Done done, clock::time_point give_up_at)
{
    if (link_.is_open() && !link_.is_greeted && link_.has_ended())
        drop_connection();
    if (!link_.is_open()) {
        co_await link_.open(give_up_at);
        ++stats_.connections;
    }
    if (!link_.is_greeted)
        co_await greet();
    while (!ended_ && !done()) {
        auto has_moved = read_acknowledgements();
        has_moved = write_frames() || has_moved;
        if (!has_moved)
            co_await link_.wait(has_to_write());
        else if (has_to_write())
            co_await asio::post(executor_, asio::deferred);
    }
    if (ended_)
        throw system_error{*ended_};
}

asio::awaitable<void> sender_state::greet()
{
    hello const said{.source = options_.source,
                     .sender = sender_,
                     .has_secret = !options_.secret.empty(),
                     .resumes = options_.resume,
                     .random = options_.secret.empty() ? nonce{} : make_nonce()};
    welcome answer;
    std::string misread;
    try {
        answer = co_await ask_for_welcome(said);
    } catch (system_error const& error) {
        if (error.code() != errc::bad_frame)
            throw;
        misread = error.why().advice;
    }
    if (!misread.empty())
        throw ended(make_error_code(boost::system::errc::protocol_error), std::move(misread));
    follow(answer);
}

asio::awaitable<welcome> sender_state::ask_for_welcome(hello const& said)
{
    auto const said_bytes = encode(said);
    co_await link_.write(said_bytes);
    std::array<std::byte, welcome_size> answer{};
    auto const first = std::span{answer}.first<challenge_size>();
    co_await link_.read(first);
    challenge asked;
    auto const is_asked = is_challenge(first);
    if (is_asked) {
        if (!said.has_secret)
            throw ended(errc::wrong_secret, words(greeting::secret_needed));
        asked = parse_challenge(first);
        auto const proven = prove_sender(options_.secret, said, asked);
        co_await link_.write(proven);
        co_await link_.read(first);
    }
    co_await link_.read(std::span{answer}.subspan(challenge_size));
    auto const heard = parse_welcome(answer);
    auto const is_stranger = heard.says == greeting::secret_needed || heard.says == greeting::no_secret_here ||
                             heard.says == greeting::wrong_secret;
    if (!is_stranger && said.has_secret &&
        (!is_asked || !are_equal(heard.proven, prove_receiver(options_.secret, said, asked, heard))))
        throw ended(errc::wrong_secret, "it does not prove that it has the secret: it is another program");
    if (heard.says != greeting::taken)
        throw ended(code_of(heard.says), words(heard.says));
    co_return heard;
}

void sender_state::follow(welcome const& answer)
{
    auto const oldest = next_ - kept_.size();
    if (answer.expected < oldest)
        throw ended(errc::stream_cut,
                    fmt::format("it starts again with frame {}, but this sender has discarded the acknowledged frames "
                                "before frame {}: restart the sender with resume",
                                answer.expected, oldest));
    forget(answer.acknowledged);
    received_ = answer.expected;
    link_.is_greeted = true;
}

// ---- frames ----

bool sender_state::read_acknowledgements()
{
    auto const size = link_.read_some(std::span{incoming_}.subspan(incoming_size_));
    auto rest = std::span{incoming_}.first(incoming_size_ + size);
    for (; rest.size() >= frame_ack_size; rest = rest.subspan(frame_ack_size)) {
        auto const sequence = parse_ack(rest.first<frame_ack_size>());
        if (sequence >= received_)
            throw link_lost{make_error_code(boost::system::errc::protocol_error),
                            fmt::format("the receiver acknowledges frame {}, which this sender has not sent", sequence),
                            true};
        forget(sequence + 1);
    }
    std::memmove(incoming_.data(), rest.data(), rest.size());
    incoming_size_ = rest.size();
    return size > 0;
}

bool sender_state::write_frames()
{
    auto has_moved = false;
    while (has_to_write()) {
        auto const& frame = *kept_[kept_.size() - (next_ - received_)];
        std::vector<asio::const_buffer> bytes{asio::buffer(frame.encoded)};
        for (auto const each : frame.payload)
            bytes.emplace_back(each.data(), each.size());
        auto skip = written_;
        for (auto& each : bytes) {
            auto const done = std::min<std::uint64_t>(skip, each.size());
            each += done;
            skip -= done;
        }
        std::erase_if(bytes, [](asio::const_buffer each) { return each.size() == 0; });
        auto const size = link_.write_some(bytes);
        has_moved = has_moved || size > 0;
        written_ += size;
        stats_.bytes += size;
        if (written_ < frame.size)
            break;
        written_ = 0;
        ++received_;
        ++stats_.frames;
    }
    return has_moved;
}

void sender_state::forget(std::uint64_t count) noexcept
{
    acknowledged_ = std::max(acknowledged_, count);
    for (; !kept_.empty() && next_ - kept_.size() < count; kept_.pop_front())
        kept_size_ -= kept_.front()->size;
}

void sender_state::drop_connection() noexcept
{
    link_.close();
    written_ = 0;
    incoming_size_ = 0;
}

// ---- errors ----

system_error sender_state::ended(error_code code, std::string advice)
{
    ended_ = described(code, std::move(advice));
    drop_connection();
    kept_.clear();
    return *ended_;
}

system_error sender_state::described(error_code code, std::string advice) const
{
    return {code,
            {.operation = "send",
             .object = fmt::format("frame {} of {}", next_, where()),
             .kernel_message = {},
             .advice = std::move(advice)}};
}

std::string sender_state::where() const
{
    if (auto const here = link_.local_endpoint())
        return fmt::format("source {} at {}:{}", options_.source, here->address().to_string(), here->port());
    return fmt::format("source {} to {}", options_.source, options_.address);
}

}  // namespace gpurx::ingest::detail
