// SPDX-License-Identifier: Apache-2.0
//
// A NIC for sessions under test: notes what it is asked, and answers what the test says.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lease/session_nic.hpp"

namespace gpurx::test {

// Outlives the session, so that the test can see the end.
struct nic_log {
    std::atomic<bool> alive{false};
    std::atomic<int> rules{0};      // of flows, that exist now
    std::atomic<int> listeners{0};  // whose rules exist now
    std::atomic<int> outlived{0};   // rules that the NIC left behind when it was restored
    std::vector<std::pair<asio::ip::tcp::endpoint, asio::ip::tcp::endpoint>> flows;
    std::vector<std::pair<asio::ip::tcp::endpoint, asio::ip::tcp::endpoint>> moved;
    std::vector<std::pair<asio::ip::tcp::endpoint, bool>> ports;
    error_code refusal;                         // of the next rule
    std::atomic<std::uint64_t> unbindable{0};   // inode of a dmabuf that the NIC cannot be attached to
    std::atomic<std::uint16_t> shared_port{0};  // has become another user's, too
    detail::nic_ring ring;
    std::atomic<std::uint64_t> in_flight{0};
    std::atomic<std::uint64_t> failures{0};  // one more with each sample
    std::atomic<bool> failures_stand_still{false};
    std::atomic<int> samples{0};
    std::function<void()> at_end;   // called when the NIC is restored
    std::function<void()> at_look;  // and when somebody looks at the pool

    // Holds whoever works on the NIC, until let_go().
    void hold()
    {
        std::scoped_lock const lock{mutex_};
        held_ = true;
    }
    void let_go()
    {
        std::scoped_lock const lock{mutex_};
        held_ = false;
        changed_.notify_all();
    }
    // Returns when somebody is held.
    void wait_until_busy()
    {
        std::unique_lock lock{mutex_};
        changed_.wait(lock, [this] { return busy_ > 0; });
    }
    // Called by those who work on the NIC.
    void work()
    {
        std::unique_lock lock{mutex_};
        ++busy_;
        changed_.notify_all();
        changed_.wait(lock, [this] { return !held_; });
        --busy_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool held_ = false;
    int busy_ = 0;
};

class fake_nic final : public detail::session_nic {
  public:
    fake_nic(std::shared_ptr<nic_log> log, std::uint32_t id, std::size_t page = 4096, bool array_tokens = false)
        : log_{std::move(log)}, id_{id}, page_{page}, array_tokens_{array_tokens}
    {
        log_->alive = true;
    }
    fake_nic(std::shared_ptr<nic_log> log, std::vector<std::shared_ptr<detail::zcrx_queue>> queues, std::size_t page)
        : log_{std::move(log)}, id_{0}, page_{page}, array_tokens_{false}, zcrx_{std::move(queues)}
    {
        log_->alive = true;
    }
    ~fake_nic() override
    {
        log_->work();
        log_->alive = false;
        log_->outlived = log_->rules + log_->listeners;
        if (log_->at_end)
            log_->at_end();
    }

    [[nodiscard]] std::uint32_t dmabuf_id() const noexcept override { return id_; }
    [[nodiscard]] detail::zcrx_queues zcrx() const noexcept override { return zcrx_; }
    [[nodiscard]] std::vector<unsigned> queues() const override { return {6, 7}; }
    [[nodiscard]] std::size_t page_size() const noexcept override { return page_; }
    [[nodiscard]] bool has_array_tokens() const noexcept override { return array_tokens_; }

    [[nodiscard]] std::unique_ptr<detail::steering_rule> steer_flow(int /*socket*/,
                                                                    asio::ip::tcp::endpoint const& local,
                                                                    asio::ip::tcp::endpoint const& remote,
                                                                    error_code& code, diagnostics& why) override
    {
        log_->work();
        if (refuses(code, why))
            return nullptr;
        log_->flows.emplace_back(local, remote);
        return std::make_unique<rule>(log_);
    }
    [[nodiscard]] bool moves_flows() const noexcept override { return true; }
    [[nodiscard]] std::unique_ptr<detail::steering_rule> move_flow(int /*socket*/, asio::ip::tcp::endpoint const& local,
                                                                   asio::ip::tcp::endpoint const& remote,
                                                                   error_code& code, diagnostics& why) override
    {
        log_->work();
        if (refuses(code, why))
            return nullptr;
        log_->moved.emplace_back(local, remote);
        return std::make_unique<rule>(log_);
    }
    [[nodiscard]] std::unique_ptr<detail::steering_rule> steer_port(int /*socket*/,
                                                                    asio::ip::tcp::endpoint const& local, bool also_v4,
                                                                    error_code& code, diagnostics& why) override
    {
        if (refuses(code, why))
            return nullptr;
        log_->ports.emplace_back(local, also_v4);
        return std::make_unique<listener>(log_);
    }
    [[nodiscard]] detail::nic_ring ring() const noexcept override { return log_->ring; }
    [[nodiscard]] std::optional<detail::pool_sample> sample() noexcept override
    {
        ++log_->samples;
        if (log_->at_look)
            log_->at_look();
        if (!log_->failures_stand_still)
            ++log_->failures;
        return detail::pool_sample{.in_flight = log_->in_flight, .allocation_failures = log_->failures.load()};
    }

  private:
    class rule final : public detail::steering_rule {
      public:
        explicit rule(std::shared_ptr<nic_log> log) : log_{std::move(log)} { ++log_->rules; }
        ~rule() override
        {
            log_->work();
            --log_->rules;
        }

      private:
        std::shared_ptr<nic_log> log_;
    };

    class listener final : public detail::steering_rule {
      public:
        explicit listener(std::shared_ptr<nic_log> log) : log_{std::move(log)} { ++log_->listeners; }
        ~listener() override { --log_->listeners; }

      private:
        std::shared_ptr<nic_log> log_;
    };

    bool refuses(error_code& code, diagnostics& why)
    {
        code = std::exchange(log_->refusal, {});
        if (code)
            why = {.operation = "add rule", .object = "fake0", .kernel_message = "no room", .advice = "make some"};
        return code.failed();
    }

    std::shared_ptr<nic_log> log_;
    std::uint32_t id_;
    std::size_t page_;
    bool array_tokens_;
    std::vector<std::shared_ptr<detail::zcrx_queue>> zcrx_;
};

}  // namespace gpurx::test
