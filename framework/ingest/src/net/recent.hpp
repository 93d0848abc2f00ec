// SPDX-License-Identifier: Apache-2.0
//
// Short-lived knowledge of this process about its peers, which all its connections share. It guides the order of
// attempts and never decides whether there is one.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

namespace gpurx::ingest::detail {

// Keys that were noted within the last ten minutes. Safe from any thread.
template <class Key>
class recent_set {
  public:
    using time_point = std::chrono::steady_clock::time_point;

    void note(Key key, time_point now = std::chrono::steady_clock::now())
    {
        std::scoped_lock const lock{mutex_};
        std::erase_if(noted_, [&](auto const& each) { return is_old(each.second, now); });
        // A program that asks ever new peers must not grow.
        if (noted_.size() < most)
            noted_.insert_or_assign(std::move(key), now);
    }
    void forget(Key const& key)
    {
        std::scoped_lock const lock{mutex_};
        noted_.erase(key);
    }
    [[nodiscard]] bool contains(Key const& key, time_point now = std::chrono::steady_clock::now()) const
    {
        std::scoped_lock const lock{mutex_};
        auto const found = noted_.find(key);
        return found != noted_.end() && !is_old(found->second, now);
    }

  private:
    static constexpr std::size_t most = 1000;
    static constexpr std::chrono::minutes lifetime{10};

    static bool is_old(time_point noted, time_point now) noexcept { return now - noted >= lifetime; }

    mutable std::mutex mutex_;
    std::map<Key, time_point> noted_;
};

}  // namespace gpurx::ingest::detail
