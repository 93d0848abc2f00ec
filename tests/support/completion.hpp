// SPDX-License-Identifier: Apache-2.0
//
// A handler for every operation of a receiver, which notes how it was called.
#pragma once

#include <boost/asio/error.hpp>
#include <memory>
#include <utility>

#include <gpurx/receiver.hpp>

namespace gpurx::test {

// What became of an operation; shared with the handler, so that it outlives it.
struct completion {
    int calls = 0;
    error_code code;
    std::size_t bytes = 0;
    rx_buffer loan;

    [[nodiscard]] bool done() const { return calls > 0; }
};

using completion_ptr = std::shared_ptr<completion>;

[[nodiscard]] inline completion_ptr make_completion()
{
    return std::make_shared<completion>();
}

// Move-only, as handlers may be.
class noting {
  public:
    explicit noting(completion_ptr result) : result_{std::move(result)} {}
    noting(noting&&) = default;
    noting& operator=(noting&&) = default;

    void operator()(error_code code) { note(code, 0); }
    void operator()(error_code code, std::size_t bytes) { note(code, bytes); }
    void operator()(error_code code, asio::ip::tcp::endpoint const& /*peer*/) { note(code, 0); }
    void operator()(error_code code, rx_buffer loan)
    {
        note(code, loan.size());
        result_->loan = std::move(loan);
    }

  private:
    void note(error_code code, std::size_t bytes)
    {
        ++result_->calls;
        result_->code = code;
        result_->bytes = bytes;
    }

    completion_ptr result_;
};

}  // namespace gpurx::test
