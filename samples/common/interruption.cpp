// SPDX-License-Identifier: Apache-2.0
#include "interruption.hpp"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <utility>

interruption::interruption(std::function<void()> stop) : signals_{context_, SIGINT, SIGTERM}, patience_{context_}
{
    signals_.async_wait([this, stop = std::move(stop)](boost::system::error_code code, int number) {
        if (code)
            return;
        signal_ = number;
        stop();
        patience_.expires_after(std::chrono::milliseconds{500});
        patience_.async_wait([number](boost::system::error_code) { ::_exit(128 + number); });
    });
    watch_ = std::jthread{[this] { context_.run(); }};
}

interruption::~interruption()
{
    context_.stop();
}
