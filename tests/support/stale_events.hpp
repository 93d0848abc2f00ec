// SPDX-License-Identifier: Apache-2.0
//
// What Asio's reactor does now and then, and here on purpose: calls who waits for a descriptor although it is not
// ready. One look of the reactor finds several descriptors ready; the handler of the first closes the others; what is
// registered next gets their memory in the reactor, and with it the events that were found for them.
#pragma once

#include <sys/eventfd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace gpurx::test {

class stale_events {
  public:
    // `io`: run by the calling thread alone. Within the next run the first descriptors that `then` registers are said
    // to be ready.
    stale_events(boost::asio::io_context& io, std::function<void()> then)
    {
        for (int i = 0; i < 1 + closed_at_once; ++i)
            all_.push_back(std::make_unique<descriptor>(io, ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
        all_.front()->async_wait(descriptor::wait_read, [this, next = std::move(then)](boost::system::error_code) {
            all_.clear();
            next();
        });
        for (auto const& each : all_) {
            if (each != all_.front())
                each->async_wait(descriptor::wait_read, [](boost::system::error_code) {});
        }
        std::uint64_t const one = 1;
        for (auto const& each : all_)
            ready_ = ready_ && ::write(each->native_handle(), &one, sizeof one) == sizeof one;
    }
    stale_events(stale_events const&) = delete;
    stale_events& operator=(stale_events const&) = delete;

    // False: the system refused something.
    [[nodiscard]] bool are_ready() const noexcept { return ready_; }

  private:
    using descriptor = boost::asio::posix::stream_descriptor;
    static constexpr int closed_at_once = 8;

    std::vector<std::unique_ptr<descriptor>> all_;
    bool ready_ = true;
};

}  // namespace gpurx::test
