// SPDX-License-Identifier: Apache-2.0
#include "thread.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <csignal>
#include <system_error>
#include <utility>

#include <gpurx/error.hpp>

namespace gpurx::detail {

namespace {

// Blocked by whoever starts a thread, who has them back afterwards: the thread must not run a moment without.
class signals_blocked {
  public:
    signals_blocked() noexcept
    {
        sigset_t all;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    signals_blocked(signals_blocked const&) = delete;
    signals_blocked& operator=(signals_blocked const&) = delete;
    ~signals_blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};

}  // namespace

std::jthread start_thread(char const* name, std::function<void(std::stop_token const&)> body)
{
    signals_blocked const for_now;
    try {
        return std::jthread{[name, body = std::move(body)](std::stop_token const& stop) {
            ::prctl(PR_SET_NAME, name);
            body(stop);
        }};
    } catch (std::system_error const& failure) {
        throw system_error{{failure.code().value(), boost::system::system_category()},
                           {.operation = "start",
                            .object = fmt::format("thread {}", name),
                            .kernel_message = {},
                            .advice = "raise the limit of processes (ulimit -u) or of the cgroup (pids.max)"}};
    }
}

}  // namespace gpurx::detail
