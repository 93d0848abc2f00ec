// SPDX-License-Identifier: Apache-2.0
#include "session_nic_claim.hpp"

#include <mutex>
#include <utility>

#include "nic/nic_claim.hpp"

namespace gpurx::detail {

namespace {

class claimed_rule final : public steering_rule {
  public:
    explicit claimed_rule(std::unique_ptr<steered_flow> rule) noexcept : rule_{std::move(rule)} {}

  private:
    std::unique_ptr<steered_flow> rule_;
};

class claimed_nic final : public session_nic {
  public:
    explicit claimed_nic(std::unique_ptr<nic_claim> claim) noexcept : claim_{std::move(claim)} {}

    [[nodiscard]] std::uint32_t dmabuf_id() const noexcept override { return claim_->dmabuf_id(); }
    [[nodiscard]] std::vector<unsigned> queues() const override { return claim_->queues(); }
    [[nodiscard]] std::size_t page_size() const noexcept override { return claim_->page_size(); }
    [[nodiscard]] token_kind tokens() const noexcept override { return claim_->tokens(); }

    [[nodiscard]] std::unique_ptr<steering_rule> steer_flow(asio::ip::tcp::endpoint const& local,
                                                            asio::ip::tcp::endpoint const& remote, error_code& code,
                                                            diagnostics& why) override
    {
        auto rule = claim_->steer(local, remote, code, why);
        return rule ? std::make_unique<claimed_rule>(std::move(rule)) : nullptr;
    }

    void steer_port(asio::ip::tcp::endpoint const& local, bool also_v4, error_code& code, diagnostics& why) override
    {
        auto rule = claim_->steer_port(local, also_v4, code, why);
        if (!rule)
            return;
        std::scoped_lock const lock{mutex_};
        ports_.push_back(std::move(rule));
    }

    [[nodiscard]] std::optional<pool_sample> sample() noexcept override
    {
        try {
            if (auto const use = claim_->inflight())
                return pool_sample{.in_flight = use->in_flight, .allocation_failures = claim_->alloc_failures()};
        } catch (std::exception const&) {
            // No memory for a message to the kernel: no sample this time.
        }
        return std::nullopt;
    }

  private:
    std::unique_ptr<nic_claim> claim_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<steered_flow>> ports_;  // rules die before the claim
};

}  // namespace

std::unique_ptr<session_nic> claim_nic(rx_session_options const& options, int dmabuf_fd, error_code& code,
                                       diagnostics& why)
{
    auto claim = nic_claim::open({.interface = options.interface,
                                  .rx_queues = options.rx_queues,
                                  .rx_page_size = options.rx_page_size,
                                  .tokens = options.tokens,
                                  .dmabuf_fd = dmabuf_fd,
                                  .state_directory = options.state_directory,
                                  .notice = options.notice},
                                 code, why);
    return claim ? std::make_unique<claimed_nic>(std::move(claim)) : nullptr;
}

}  // namespace gpurx::detail
