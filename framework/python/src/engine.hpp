// SPDX-License-Identifier: Apache-2.0
//
// Threads for all asynchronous operations of the package. They never touch Python, so they depend neither on its lock
// nor on its end.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <gpurx/error.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace gpurx::python {

// Where operations run. Starts the threads with the first call. Throws gpurx::system_error in a child that was forked,
// which has no such threads, and must not touch the resources of its parent's threads.
[[nodiscard]] asio::any_io_executor engine();
// Throws as engine() does, but starts nothing.
void check_process();
// Returns false in a forked child.
[[nodiscard]] bool in_own_process() noexcept;
// For the end of the process: ends all operations, and destroys all objects that wait for it, before it returns.
void stop_engine() noexcept;
// Runs `last` in a thread of the engine, or in this thread if the engine has stopped. In a forked child: never.
void run_later(std::function<void()> last) noexcept;

// Owns an object whose destructor is slow (a session restores its NIC), or that has work in the engine's threads, and
// destroys it there. A forked child does not destroy it, because it belongs to the parent.
template <class T>
[[nodiscard]] std::shared_ptr<T> owned_by_engine(std::unique_ptr<T> object)
{
    return {object.release(), [](T* last) { run_later([last] { delete last; }); }};
}

// An operation of the engine, for which a thread of Python may wait.
class operation : public std::enable_shared_from_this<operation> {
  public:
    operation() = default;
    operation(operation const&) = delete;
    operation& operator=(operation const&) = delete;
    virtual ~operation();

    // Returns true if the operation is over.
    [[nodiscard]] bool wait_for(std::chrono::milliseconds time) const;
    // The operation ends soon after, with operation_aborted unless it succeeded.
    void cancel();
    // Returns a descriptor that becomes readable at the end of the operation. Throws gpurx::system_error.
    [[nodiscard]] int descriptor();

  protected:
    using executor = asio::strand<asio::any_io_executor>;

    void run_on(executor where) { where_ = std::move(where); }
    [[nodiscard]] asio::cancellation_slot slot() { return signal_.slot(); }
    // Called from the engine.
    void set_over(std::exception_ptr failure);
    // Precondition: the operation is over. Throws its failure.
    void check() const;

  private:
    std::optional<executor> where_;
    asio::cancellation_signal signal_;  // emitted on the strand
    mutable std::mutex mutex_;          // guards the members below
    mutable std::condition_variable over_changed_;
    bool over_ = false;
    int event_ = -1;
    std::exception_ptr failure_;
};

template <class T>
class operation_of final : public operation {
  public:
    // Runs the coroutine that `make` makes.
    template <class Make>
    [[nodiscard]] static std::shared_ptr<operation_of> start(Make make)
    {
        auto result = std::make_shared<operation_of>();
        auto const where = asio::make_strand(engine());
        result->run_on(where);
        asio::co_spawn(where, std::move(make),
                       asio::bind_cancellation_slot(result->slot(), [result](std::exception_ptr failure, T value) {
                           result->value_ = std::move(value);
                           result->set_over(std::move(failure));
                       }));
        return result;
    }
    // Precondition: the operation is over. May be called once. Throws its failure.
    [[nodiscard]] T take()
    {
        check();
        return std::move(value_);
    }

  private:
    T value_{};
};

}  // namespace gpurx::python
