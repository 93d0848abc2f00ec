// SPDX-License-Identifier: Apache-2.0
//
// An executor with a name, so that a test can ask on which one it runs; and whether an initiating
// function is still active.
#pragma once

#include <algorithm>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/query.hpp>
#include <boost/asio/require.hpp>
#include <utility>
#include <vector>

namespace gpurx::test {

namespace detail_tracker {

inline thread_local std::vector<int> running;
inline thread_local int initiating = 0;

}  // namespace detail_tracker

// True inside a function that the executor `id` runs.
[[nodiscard]] inline bool runs_on(int id)
{
    auto const& stack = detail_tracker::running;
    return std::ranges::find(stack, id) != stack.end();
}

[[nodiscard]] inline bool is_initiating()
{
    return detail_tracker::initiating > 0;
}

// Lives as long as the call of an initiating function.
class initiation_scope {
  public:
    initiation_scope() { ++detail_tracker::initiating; }
    initiation_scope(initiation_scope const&) = delete;
    initiation_scope& operator=(initiation_scope const&) = delete;
    ~initiation_scope() { --detail_tracker::initiating; }
};

class tracker_executor {
  public:
    tracker_executor(boost::asio::any_io_executor inner, int id) noexcept : inner_{std::move(inner)}, id_{id} {}

    template <class Property>
    requires boost::asio::can_require_v<boost::asio::any_io_executor, Property>
    [[nodiscard]] tracker_executor require(Property const& property) const
    {
        return {boost::asio::require(inner_, property), id_};
    }
    template <class Property>
    requires boost::asio::can_prefer_v<boost::asio::any_io_executor, Property>
    [[nodiscard]] tracker_executor prefer(Property const& property) const
    {
        return {boost::asio::prefer(inner_, property), id_};
    }
    template <class Property>
    requires boost::asio::can_query_v<boost::asio::any_io_executor, Property>
    [[nodiscard]] decltype(auto) query(Property const& property) const { return boost::asio::query(inner_, property); }
    [[nodiscard]] boost::asio::execution_context& query(boost::asio::execution::context_t const& property) const
    {
        return boost::asio::query(inner_, property);
    }

    template <class Function>
    void execute(Function&& function) const
    {
        inner_.execute([id = id_, run = std::forward<Function>(function)]() mutable {
            struct frame {
                explicit frame(int of) { detail_tracker::running.push_back(of); }
                frame(frame const&) = delete;
                ~frame() { detail_tracker::running.pop_back(); }
            } const running{id};
            std::move(run)();
        });
    }

    friend bool operator==(tracker_executor const& a, tracker_executor const& b) noexcept
    {
        return a.id_ == b.id_ && a.inner_ == b.inner_;
    }
    friend bool operator!=(tracker_executor const& a, tracker_executor const& b) noexcept { return !(a == b); }

  private:
    boost::asio::any_io_executor inner_;
    int id_;
};

}  // namespace gpurx::test
