// SPDX-License-Identifier: Apache-2.0
#include "flow.hpp"

#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include <gpurx/rx_buffer.hpp>

#include "base/failure.hpp"
#include "base/syscalls.hpp"

namespace gpurx::detail {

namespace {

unique_fd make_wake()
{
    unique_fd wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!wake)
        fail(errno, "eventfd", "flow");
    return wake;
}

std::unique_ptr<flow_transport> make_transport(flow_place& place, int socket)
{
    switch (place.session().transport()) {
        case transport::devmem:
            return make_devmem_transport(place, socket);
        case transport::zcrx:
            return make_zcrx_transport(place, socket);
        default:
            return make_copy_transport(place, socket);
    }
}

// Pages that others lend too stay on loan.
void note_parked(loan& of) noexcept
{
    if (of.holders.load() > 1)
        return;
    if (of.of != nullptr)
        return note_parked(*of.of);
    for (auto const& part : of.parts)
        note_parked(*part);
    of.use.store(page_use::parked, std::memory_order_relaxed);
}

}  // namespace

flow::flow(std::unique_ptr<flow_place> place, unique_fd socket)
    : place_{std::move(place)},
      loan_limit_{std::max<std::size_t>(place_->session().loan_limit(), 1)},
      read_share_{std::max<std::size_t>(place_->session().read_share(), 1)},
      socket_{std::move(socket)},
      wake_{make_wake()},
      transport_{make_transport(*place_, socket_.get()).release()},
      writes_in_place_{transport_->writes_in_place()}
{
    place_->set_socket(socket_.get());
    place_->set_holder(this);
}

flow::~flow()
{
    // The watchdog must not touch a number that is about to mean another file.
    place_->set_socket(-1);
    place_->set_holder(nullptr);
    if (awaited_ != nullptr && is_here())
        awaited_->forget(wake_.get());
    for (auto* list : {spare_, returned_.load()}) {
        while (list != nullptr) {
            std::unique_ptr<loan> const record{list};
            list = record->next;
        }
    }
}

std::unique_ptr<loan> flow::take_record()
{
    if (spare_ == nullptr)
        spare_ = returned_.exchange(nullptr);
    auto record = spare_ == nullptr ? std::make_unique<loan>() : std::unique_ptr<loan>{spare_};
    spare_ = std::exchange(record->next, nullptr);
    record->spare.provide();
    return record;
}

void flow::keep_record(std::unique_ptr<loan> record) noexcept
{
    if (!record->is_reused)
        return;
    record->clear();
    record->next = returned_.load();
    while (!returned_.compare_exchange_weak(record->next, record.get())) {
    }
    static_cast<void>(record.release());
}

// Where data come one by one each receive would be followed by a call that finds nothing; where they come faster than
// they are taken there is none. So the last try decides about the next ones.
void flow::note_end_of_receive(error_code code) noexcept
{
    if (drained_)
        in_vain_ = code == asio::error::would_block ? transport_->waits_between_tries() : 0;
    drained_ = !code && transport_->drained();
}

std::unique_ptr<loan> flow::receive(std::size_t limit, error_code& code) noexcept
{
    // Bytes that cannot be read any more are not lent.
    code = place_->session().memory().failure(false);
    if (code)
        return nullptr;
    std::unique_ptr<loan> record;
    try {
        record = take_record();
        code = transport_->receive(limit, *record);
        note_end_of_receive(code);
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
    } catch (system_error const& failure) {
        code = failure.code();
    }
    if (record != nullptr && (!record->tokens.empty() || !record->pages.empty()))
        list(*record);
    if (!code)
        return record;
    if (record != nullptr && (!record->tokens.empty() || !record->pages.empty())) {
        give_back(std::move(record));
    } else if (record != nullptr) {
        record->clear();
        record->next = spare_;
        spare_ = record.release();
    }
    return nullptr;
}

std::unique_ptr<loan> flow::wrap(std::span<std::byte const> bytes, error_code& code) noexcept
{
    try {
        auto record = take_record();
        record->wrapped = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
        std::ranges::copy(bytes, record->wrapped.get());
        record->append({reinterpret_cast<std::uintptr_t>(record->wrapped.get()), bytes.size(), memory_kind::host});
        record->charge = bytes.size();
        place_->counters.host_bytes.add(bytes.size());
        place_->counters.fragments.add(1);
        return record;
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
        return nullptr;
    }
}

std::size_t flow::receive_into(landing const& destination, std::size_t size, error_code& code) noexcept
{
    std::size_t placed = 0;
    try {
        code = transport_->receive_into(destination, size, placed);
        note_end_of_receive(code);
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
    }
    return placed;
}

void flow::carry(carried_batches& carried, std::unique_ptr<loan> batch) noexcept
{
    if (carried.empty() || !can_absorb(carried.back(), *batch))
        return carried.push(std::move(batch));
    {
        std::scoped_lock const lock{listed_lock_};
        carried.absorb(*batch);
    }
    // Twice in the list for a moment, and not absent: a page counts once.
    if (batch->listed && !carried.back().listed)
        list(carried.back());
    if (batch->listed)
        unlist(*batch);
    keep_record(std::move(batch));
}

std::unique_ptr<loan> flow::take(carried_batches& carried, std::size_t size, error_code& code) noexcept
{
    try {
        if (carried.front().bytes > size)
            return split(carried.front(), size, take_record());
        return join(carried, size);
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
        return nullptr;
    }
}

// All that can fail comes first: split() finds room.
std::unique_ptr<loan> flow::join(carried_batches& carried, std::size_t size)
{
    auto const pieces = carried.pieces_of(size);
    auto whole = take_record();
    whole->parts.reserve(carried.count());
    whole->fragments.reserve(pieces);
    auto last = take_record();
    last->fragments.reserve(pieces);
    while (whole->bytes < size && !carried.empty()) {
        auto const missing = size - whole->bytes;
        auto part = carried.front().bytes <= missing ? carried.pop()
                                                     : split(carried.front(), missing, std::exchange(last, nullptr));
        for (auto const& piece : part->remaining())
            whole->append(piece);
        whole->parts.push_back(std::move(part));
    }
    if (last != nullptr)
        keep_record(std::move(last));
    return whole;
}

bool flow::discount(loan& batch) noexcept
{
    if (batch.account == nullptr || batch.holders.load() > 1)
        return false;
    batch.account->fetch_sub(batch.charge);
    batch.account = nullptr;
    batch.use.store(page_use::in_reads, std::memory_order_relaxed);
    return true;
}

bool flow::notify_of(lack what, std::size_t taken) noexcept
{
    look_at_streams();
    if (what == lack::pages)
        return transport_->notify_of_pages(wake_.get());
    budget_awaited_.store(true);
    if ((what == lack::loan_budget ? loan_budget() : read_budget()) <= taken)
        return true;
    budget_awaited_.store(false);
    return false;
}

bool flow::notify_of(stream_backlog& full) noexcept
{
    look_at_streams();
    if (awaited_ != nullptr && awaited_ != &full)
        awaited_->forget(wake_.get());
    awaited_ = &full;
    return full.notify(wake_.get());
}

void flow::drain_wake() noexcept
{
    std::uint64_t count = 0;
    [[maybe_unused]] auto const taken = ::read(wake_.get(), &count, sizeof count);
}

void flow::shut_down() noexcept
{
    sys::shutdown(socket_.get(), SHUT_RDWR);
    // Bytes that nobody will receive would hold pages for as long as a loan keeps the socket. With MSG_TRUNC the kernel
    // takes bytes off the queue without a copy and without tokens (Linux 7.3, net/ipv4/tcp.c, tcp_recvmsg_locked()).
    iovec nowhere{.iov_base = nullptr, .iov_len = std::size_t{1} << 30};
    msghdr message{};
    message.msg_iov = &nowhere;
    message.msg_iovlen = 1;
    while (sys::recvmsg(socket_.get(), &message, MSG_TRUNC | MSG_DONTWAIT) > 0) {
    }
}

void flow::list(loan& record) noexcept
{
    std::scoped_lock const lock{listed_lock_};
    record.listed = true;
    record.listed_before = nullptr;
    record.listed_after = std::exchange(listed_, &record);
    if (record.listed_after != nullptr)
        record.listed_after->listed_before = &record;
}

void flow::unlist(loan& record) noexcept
{
    std::scoped_lock const lock{listed_lock_};
    record.listed = false;
    if (record.listed_after != nullptr)
        record.listed_after->listed_before = record.listed_before;
    (record.listed_before != nullptr ? record.listed_before->listed_after : listed_) = record.listed_after;
}

std::uint64_t flow::note_pages(page_use what, page_census& census) const noexcept
{
    std::uint64_t count = 0;
    std::scoped_lock const lock{listed_lock_};
    for (auto const* record = listed_; record != nullptr; record = record->listed_after)
        if (record->use.load(std::memory_order_relaxed) == what)
            record->for_each_original([&](fragment const& piece) { count += census.note(piece); });
    return count;
}

void flow::charge(loan& record, std::atomic<std::size_t>& account) noexcept
{
    record.account = &account;
    account.fetch_add(record.charge, std::memory_order_relaxed);
}

rx_buffer flow::lend(std::shared_ptr<flow> owner, std::unique_ptr<loan> record) noexcept
{
    for_each_batch(*record, [place = owner->place_.get()](loan& batch) {
        if (batch.account == nullptr)
            charge(batch, place->on_loan);
        batch.use.store(page_use::on_loan, std::memory_order_relaxed);
    });
    return {std::move(owner), record.release()};
}

std::unique_ptr<loan> flow::split(loan& from, std::size_t size, std::unique_ptr<loan> part)
{
    part->fragments.reserve(pieces_of(from, size));
    std::unique_lock lock{listed_lock_, std::defer_lock};
    if (is_here())
        lock.lock();  // else a thread of the parent may have it, and is not here
    split_front(from, size, *part);
    return part;
}

void flow::acquire(loan const& record, cuda_stream_ref stream) noexcept
{
    if (!is_here())
        return;
    place_->session().memory().acquire(stream);
    for_each_batch(record, [&](loan const& batch) {
        for (auto const& hold : batch.foreign)
            hold.session->memory().acquire(stream);
    });
}

void flow::acquire_for_cpu(loan const& record) noexcept
{
    auto const look = [](memory_state& memory) {
        if (memory.span().kind() == memory_kind::host)
            memory.acquire({});
    };
    look(place_->session().memory());
    for_each_batch(record, [&](loan const& batch) {
        for (auto const& hold : batch.foreign)
            look(hold.session->memory());
    });
}

void flow::give_back(std::unique_ptr<loan> record) noexcept
{
    if (!is_here())
        return forget(std::move(record));
    auto* const until = std::exchange(record->read_until, nullptr);
    if (until == nullptr)
        return give_back_now(std::move(record));
    if (record->account == nullptr)
        charge(*record, place_->in_reads);
    record->keeper = shared_from_this();
    note_parked(*record);
    // A flow that lacks pages of a pool says so, and a NIC does not.
    auto const what = transport_->writes_in_place() ? waiting_for::pool_pages : waiting_for::pages;
    when_passed(until, unpark, record.release(), what);
}

void flow::unpark(void* parked, error_code) noexcept
{
    std::unique_ptr<loan> record{static_cast<loan*>(parked)};
    auto const keeper = std::move(record->keeper);
    keeper->give_back_now(std::move(record));
}

void flow::wake_for_budget() noexcept
{
    if (!budget_awaited_.load() || !budget_awaited_.exchange(false))
        return;
    std::uint64_t const one = 1;
    [[maybe_unused]] auto const written = ::write(wake_.get(), &one, sizeof one);
}

void flow::give_back_now(std::unique_ptr<loan> record) noexcept
{
    // The last of a loan and its parts gives the pages back.
    if (record->holders.load() > 1 && record->holders.fetch_sub(1) > 1) {
        static_cast<void>(record.release());
        return wake_for_budget();
    }
    record->holders.store(1, std::memory_order_relaxed);
    if (record->of != nullptr || !record->parts.empty())
        return give_back_batches(std::move(record));
    auto const hold = in_step_.load();
    transport_->give_back(*record, hold);
    if (hold && !in_step_.load() && transport_->gathered())
        transport_->flush();  // the step ended meanwhile, perhaps before there was anything to see
    if (record->account != nullptr)
        record->account->fetch_sub(record->charge);
    if (record->listed)
        unlist(*record);
    keep_record(std::move(record));
    wake_for_budget();
}

// Of a loan without pages of its own: what has them.
void flow::give_back_batches(std::unique_ptr<loan> record) noexcept
{
    if (auto* const of = std::exchange(record->of, nullptr))
        give_back_now(std::unique_ptr<loan>{of});
    for (auto& part : record->parts)
        give_back(std::move(part));  // each waits for the streams that read it
    record->parts.clear();
    keep_record(std::move(record));
}

void flow::forget(std::unique_ptr<loan> record) noexcept
{
    if (record->holders.fetch_sub(1) > 1)
        return static_cast<void>(record.release());
    if (record->of != nullptr)
        forget(std::unique_ptr<loan>{record->of});
    for (auto& part : record->parts)
        forget(std::move(part));
}

int flow::reading_gpu(loan const& record) const noexcept
{
    auto ordinal = place_->session().memory().ordinal();
    for_each_batch(record, [&](loan const& batch) {
        for (auto const& hold : batch.foreign)
            if (ordinal == no_gpu)
                ordinal = hold.session->memory().ordinal();
    });
    return ordinal;
}

void flow::give_back_after(std::unique_ptr<loan> record, cuda_stream_ref stream) noexcept
{
    if (!is_here())
        return forget(std::move(record));
    auto const ordinal = reading_gpu(*record);
    // The default stream of no GPU in particular is none.
    if (ordinal != no_gpu || stream != cuda_stream_ref{})
        mark(record->read_until, {.ordinal = ordinal, .stream = stream}, record->spare);
    give_back(std::move(record));
}

}  // namespace gpurx::detail

namespace gpurx {

rx_buffer::rx_buffer(std::shared_ptr<detail::flow> owner, detail::loan* record) noexcept
    : flow_{std::move(owner)}, loan_{record}
{}

rx_buffer& rx_buffer::operator=(rx_buffer&& other) noexcept
{
    if (this != &other) {
        release();
        flow_ = std::move(other.flow_);
        loan_ = std::exchange(other.loan_, nullptr);
    }
    return *this;
}

std::span<fragment const> rx_buffer::fragments() const noexcept
{
    return loan_ == nullptr ? std::span<fragment const>{} : loan_->remaining();
}

std::size_t rx_buffer::size() const noexcept
{
    return loan_ == nullptr ? 0 : loan_->bytes;
}

rx_buffer rx_buffer::split(std::size_t bytes)
{
    if (bytes > size())
        throw std::out_of_range{"gpurx: rx_buffer::split(" + std::to_string(bytes) + ") of " + std::to_string(size()) +
                                " bytes"};
    if (bytes == 0)
        return {};
    if (bytes == size())
        return std::move(*this);
    // Any thread splits, and only the receiving one takes records that came back.
    auto record = std::make_unique<detail::loan>();
    record->is_reused = false;
    record->spare.provide();
    auto part = flow_->split(*loan_, bytes, std::move(record));
    return {flow_, part.release()};
}

void rx_buffer::acquire(cuda_stream_ref stream) noexcept
{
    if (loan_ != nullptr)
        flow_->acquire(*loan_, stream);
}

void rx_buffer::release_after(cuda_stream_ref stream) noexcept
{
    if (loan_ == nullptr)
        return;
    flow_->give_back_after(std::unique_ptr<detail::loan>{std::exchange(loan_, nullptr)}, stream);
    flow_.reset();
}

void rx_buffer::release() noexcept
{
    if (loan_ == nullptr)
        return;
    flow_->give_back(std::unique_ptr<detail::loan>{std::exchange(loan_, nullptr)});
    flow_.reset();
}

}  // namespace gpurx
