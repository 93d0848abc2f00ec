// SPDX-License-Identifier: Apache-2.0
#include "flow_budget.hpp"

#include <algorithm>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <numeric>

namespace gpurx::python {

turn::~turn()
{
    of_->leave(*this);
}

asio::awaitable<void> turn::async_come()
{
    try {
        co_await call_.async_receive(asio::deferred);
    } catch (boost::system::system_error const&) {
        throw system_error{asio::error::operation_aborted, {}};
    }
}

void turn::hurry() noexcept
{
    of_->hurry(*this);
}

std::shared_ptr<turn> flow_budget::wait(asio::any_io_executor const& where, void const* file, unsigned flows,
                                        bool can_wait, std::weak_ptr<connection_keeper> keeper)
{
    flows = std::min(flows, flows_);
    std::list<kept_connections> keeps;
    if (!keeper.expired())
        keeps.push_back({file, flows, std::move(keeper)});
    std::shared_ptr<turn> made{new turn{where, shared_from_this(), file, flows, std::move(keeps)}};
    std::scoped_lock const lock{mutex_};
    (can_wait ? later_ : waiting_).push_back(made.get());
    admit();
    return made;
}

void flow_budget::leave(turn& one) noexcept
{
    std::scoped_lock const lock{mutex_};
    if (std::erase(running_, &one) != 0) {
        free_ += one.flows_;
        kept_.splice(kept_.end(), one.keeps_);
    }
    std::erase(waiting_, &one);
    std::erase(later_, &one);
    admit();
}

void flow_budget::hurry(turn& one) noexcept
{
    std::scoped_lock const lock{mutex_};
    auto const waits = std::ranges::find(later_, &one);
    if (waits == later_.end())
        return;
    waiting_.splice(waiting_.end(), later_, waits);
    admit();
}

void flow_budget::admit() noexcept
{
    for (auto* const queue : {&waiting_, &later_}) {
        for (auto next = queue->begin(); next != queue->end();) {
            auto const at = next++;
            auto& one = **at;
            if (is_busy(one.file_))
                continue;
            if (one.flows_ > free_)
                return;
            take(one);
            running_.splice(running_.end(), *queue, at);
            one.call_.try_send(error_code{});
        }
    }
}

void flow_budget::take(turn const& one) noexcept
{
    free_ -= one.flows_;
    std::erase_if(kept_, [&](kept_connections const& each) { return each.file == one.file_ || each.by.expired(); });
    auto kept_now = std::accumulate(kept_.begin(), kept_.end(), 0U,
                                    [](unsigned sum, kept_connections const& each) { return sum + each.most; });
    for (; kept_now > free_; kept_.pop_front()) {
        kept_now -= kept_.front().most;
        if (auto const by = kept_.front().by.lock())
            by->disconnect();
    }
}

bool flow_budget::is_busy(void const* file) const noexcept
{
    return std::ranges::any_of(running_, [file](turn const* one) { return one->file_ == file; });
}

}  // namespace gpurx::python
