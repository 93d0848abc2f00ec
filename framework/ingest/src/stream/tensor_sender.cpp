// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <gpurx/ingest/tensor_sender.hpp>
#include <vector>

#include "sender_state.hpp"

namespace gpurx::ingest {

namespace detail {

namespace {

std::string rows_of(std::vector<std::uint64_t> const& rows)
{
    return fmt::format("the tensors of a frame must have the same number of rows, at least one; these have {}",
                       fmt::join(rows, ", "));
}

}  // namespace

void start_sending(std::shared_ptr<sender_state> state, sending what, std::shared_ptr<kept_frame> frame,
                   sender_handler handler)
{
    auto const own = asio::get_associated_executor(handler, state->executor());
    auto const allocator = asio::get_associated_allocator(handler);
    auto const bound = [&](auto completion) {
        return asio::bind_executor(own, asio::bind_allocator(allocator, std::move(completion)));
    };
    if (!state->take_turn()) {
        state->note(gpurx::errc::already_running,
                    {.operation = "send", .object = "a frame", .kernel_message = {}, .advice = {}});
        return asio::post(state->executor(), bound([handler = std::move(handler)]() mutable {
                              std::move(handler)(make_error_code(gpurx::errc::already_running));
                          }));
    }
    auto slot = asio::get_associated_cancellation_slot(handler);
    if (slot.is_connected())
        slot.assign([state](asio::cancellation_type type) { state->cancel(type); });
    auto complete = [slot, handler = std::move(handler)](std::exception_ptr const&, error_code code) mutable {
        slot.clear();
        std::move(handler)(code);
    };
    asio::co_spawn(state->executor(), state->serve(what, std::move(frame)),
                   asio::bind_cancellation_slot(state->slot(), bound(std::move(complete))));
}

std::exception_ptr failure_of(std::shared_ptr<sender_state> const& state, error_code code) noexcept
try {
    return std::make_exception_ptr(system_error{code, state->why()});
} catch (...) {
    return std::current_exception();
}

}  // namespace detail

tensor_sender::tensor_sender(executor_type executor, tensor_sender_options options)
    : state_{std::make_shared<detail::sender_state>(std::move(executor), std::move(options))}
{}

tensor_sender::tensor_sender(tensor_sender&&) noexcept = default;

tensor_sender& tensor_sender::operator=(tensor_sender&& other) noexcept
{
    if (this != &other) {
        abort();
        state_ = std::move(other.state_);
    }
    return *this;
}

tensor_sender::~tensor_sender()
{
    abort();
}

tensor_sender::executor_type tensor_sender::get_executor() const noexcept
{
    return state_->executor();
}

std::optional<asio::ip::tcp::endpoint> tensor_sender::local_endpoint() const
{
    return state_->link().local_endpoint();
}

std::uint64_t tensor_sender::next_frame() const noexcept
{
    return state_->next_frame();
}

std::uint64_t tensor_sender::received() const noexcept
{
    return state_->received();
}

std::uint64_t tensor_sender::acknowledged() noexcept
{
    return state_->acknowledged();
}

tensor_sender_stats tensor_sender::stats() const noexcept
{
    return state_->stats();
}

diagnostics tensor_sender::why() const
{
    return state_->why();
}

void tensor_sender::abort() noexcept
{
    if (state_)
        state_->abort();
}

void tensor_sender::cancel() noexcept
{
    state_->cancel(asio::cancellation_type::terminal);
}

std::shared_ptr<detail::kept_frame> tensor_sender::view_of(std::span<tensor_view const> tensors,
                                                           std::shared_ptr<void const> owner)
{
    auto frame = std::make_shared<detail::kept_frame>();
    frame->owner = std::move(owner);
    std::vector<std::uint64_t> rows;
    try {
        for (auto const& each : tensors) {
            auto const row = row_size(each.spec);
            if (each.bytes.size() % row != 0)
                frame->refusal = fmt::format("{} bytes of tensor {} are not a whole number of rows of {}",
                                             each.bytes.size(), each.spec.name, row);
            rows.push_back(each.bytes.size() / row);
            frame->head.tensors.push_back(each.spec);
            frame->payload.push_back(each.bytes);
        }
    } catch (system_error const& error) {
        frame->refusal = error.why().advice;
    }
    if (frame->refusal.empty() && !rows.empty()) {
        frame->head.rows = rows.front();
        if (rows.front() == 0 || std::ranges::adjacent_find(rows, std::ranges::not_equal_to{}) != rows.end())
            frame->refusal = detail::rows_of(rows);
    }
    return frame;
}

std::shared_ptr<detail::kept_frame> tensor_sender::copy_of(std::span<tensor_view const> tensors)
{
    auto const bytes = std::make_shared<std::vector<std::byte>>();
    for (auto const& each : tensors)
        bytes->insert(bytes->end(), each.bytes.begin(), each.bytes.end());
    auto frame = view_of(tensors, bytes);
    std::span rest{std::as_const(*bytes)};
    for (auto& each : frame->payload) {
        each = rest.first(each.size());
        rest = rest.subspan(each.size());
    }
    return frame;
}

std::shared_ptr<detail::kept_frame> tensor_sender::end_of_epoch()
{
    auto frame = std::make_shared<detail::kept_frame>();
    frame->head.ends_epoch = true;
    return frame;
}

}  // namespace gpurx::ingest
