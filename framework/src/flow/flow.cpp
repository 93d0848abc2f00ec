// SPDX-License-Identifier: Apache-2.0
#include "flow.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <new>
#include <utility>

#include "syscalls.hpp"

namespace gpurx::detail {

namespace {

unique_fd make_wake()
{
    unique_fd wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!wake)
        throw system_error{{errno, boost::system::system_category()},
                           {.operation = "eventfd", .object = "flow", .kernel_message = {}, .advice = {}}};
    return wake;
}

std::unique_ptr<flow_transport> make_transport(session_flow& place, int socket, std::mutex& mutex)
{
    if (place.session().transport() == transport::devmem)
        return make_devmem_transport(place, socket, mutex);
    return make_copy_transport(place, socket);
}

}  // namespace

flow::flow(std::unique_ptr<session_flow> place, unique_fd socket)
    : place_{std::move(place)},
      loan_limit_{std::max<std::size_t>(place_->session().loan_limit(), 1)},
      socket_{std::move(socket)},
      wake_{make_wake()},
      transport_{make_transport(*place_, socket_.get(), mutex_)},
      writes_in_place_{transport_->writes_in_place()}
{
    place_->set_socket(socket_.get());
}

flow::~flow()
{
    // The watchdog must not touch a number that is about to mean another file.
    place_->set_socket(-1);
    // One by one: a list that destroys itself recurses.
    while (records_ != nullptr)
        records_ = std::move(records_->next);
}

void flow::begin_step() noexcept
{
    std::lock_guard const lock{mutex_};
    in_step_ = true;
    if (spare_ == nullptr && records_ != nullptr) {
        spare_ = std::move(records_);
        records_ = std::move(spare_->next);
    }
}

void flow::end_step() noexcept
{
    std::unique_lock lock{mutex_};
    in_step_ = false;
    transport_->flush(lock);
}

std::size_t flow::loan_budget() const noexcept
{
    auto const on_loan = on_loan_.load(std::memory_order_relaxed);
    return on_loan < loan_limit_ ? loan_limit_ - on_loan : 0;
}

std::unique_ptr<loan> flow::take_record()
{
    if (spare_ != nullptr)
        return std::move(spare_);
    {
        std::lock_guard const lock{mutex_};
        if (records_ != nullptr) {
            auto record = std::move(records_);
            records_ = std::move(record->next);
            return record;
        }
    }
    return std::make_unique<loan>();
}

std::unique_ptr<loan> flow::receive(std::size_t limit, error_code& code) noexcept
{
    std::unique_ptr<loan> record;
    try {
        record = take_record();
        code = transport_->receive(limit, *record);
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
    }
    if (!code) {
        record->charged = record->bytes;
        on_loan_.fetch_add(record->charged, std::memory_order_relaxed);
        return record;
    }
    if (record != nullptr && record->tokens.empty())
        spare_ = std::move(record);
    else if (record != nullptr)
        give_back(std::move(record));
    return nullptr;
}

std::size_t flow::receive_into(std::byte* destination, std::size_t size, error_code& code) noexcept
{
    std::size_t placed = 0;
    code = transport_->receive_into(destination, size, placed);
    return placed;
}

bool flow::notify_of(lack what) noexcept
{
    if (what == lack::pages)
        return transport_->notify_of_pages(wake_.get());
    std::lock_guard const lock{mutex_};
    budget_awaited_ = loan_budget() == 0;
    return budget_awaited_;
}

void flow::drain_wake() noexcept
{
    std::uint64_t count = 0;
    [[maybe_unused]] auto const taken = ::read(wake_.get(), &count, sizeof count);
}

void flow::shut_down() noexcept
{
    sys::shutdown(socket_.get(), SHUT_RDWR);
}

rx_buffer flow::lend(std::shared_ptr<flow> owner, std::unique_ptr<loan> record) noexcept
{
    return {std::move(owner), record.release()};
}

void flow::acquire(loan const& record, cuda_stream_ref stream) noexcept
{
    place_->session().memory().acquire(stream);
    for (auto const& hold : record.foreign)
        hold.session->memory().acquire(stream);
}

void flow::give_back(std::unique_ptr<loan> record) noexcept
{
    std::vector<foreign_hold> foreign;  // the last holder of a session ends it: not under the mutex
    bool wake = false;
    {
        std::unique_lock lock{mutex_};
        transport_->give_back(*record, lock);
        if (!in_step_)
            transport_->flush(lock);
        on_loan_.fetch_sub(record->charged, std::memory_order_relaxed);
        wake = std::exchange(budget_awaited_, false);
        foreign.swap(record->foreign);
        record->clear();
        record->next = std::move(records_);
        records_ = std::move(record);
    }
    if (wake) {
        std::uint64_t const one = 1;
        [[maybe_unused]] auto const written = ::write(wake_.get(), &one, sizeof one);
    }
}

void flow::give_back_after(std::unique_ptr<loan> record, cuda_stream_ref stream) noexcept
{
    [[maybe_unused]] bool passed = place_->session().memory().has_passed(stream);
    for (auto const& hold : record->foreign)
        passed = hold.session->memory().has_passed(stream) && passed;
    // Only work on a GPU can be behind, and this version has no memory of a GPU.
    assert(passed);
    give_back(std::move(record));
}

}  // namespace gpurx::detail
