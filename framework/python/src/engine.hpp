// SPDX-License-Identifier: Apache-2.0
//
// The threads in which everything asynchronous of the package runs. They never touch Python, so it does not matter to
// them who holds its lock, nor whether it is ending.
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
// which has no such threads, and must not touch what its parent's use.
[[nodiscard]] asio::any_io_executor engine();
// Throws as engine() does, but starts nothing.
void check_process();
// False in a child that was forked.
[[nodiscard]] bool in_own_process() noexcept;
// For the end of the process: no operation goes on, and what is to be destroyed is, before it returns.
void stop_engine() noexcept;
// Runs `last` in a thread of the engine, or here if it has stopped. In a child that was forked: never.
void run_later(std::function<void()> last) noexcept;

// Owns something of which the destructor takes its time (a session restores its NIC), or has work in the engine's
// threads: it is destroyed there. In a child that was forked it is not destroyed, as it is the parent's.
template <class T>
[[nodiscard]] std::shared_ptr<T> owned_by_engine(std::unique_ptr<T> object)
{
    return {object.release(), [](T* last) { run_later([last] { delete last; }); }};
}

// Something that goes on in the engine, and that a thread of Python may wait for.
class operation : public std::enable_shared_from_this<operation> {
  public:
    operation() = default;
    operation(operation const&) = delete;
    operation& operator=(operation const&) = delete;
    virtual ~operation();

    // True if it is over.
    [[nodiscard]] bool wait_for(std::chrono::milliseconds time) const;
    // It is over soon then, with operation_aborted if it could not succeed.
    void cancel();
    // A descriptor that is readable when it is over. Throws gpurx::system_error.
    [[nodiscard]] int descriptor();

  protected:
    using executor = asio::strand<asio::any_io_executor>;

    void run_on(executor where) { where_ = std::move(where); }
    [[nodiscard]] asio::cancellation_slot slot() { return signal_.slot(); }
    // From the engine.
    void set_over(std::exception_ptr failure);
    // Once it is over: throws how it failed.
    void check() const;

  private:
    std::optional<executor> where_;
    asio::cancellation_signal signal_;  // emitted on the strand
    mutable std::mutex mutex_;          // guards what follows
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
    // Precondition: it is over. Once. Throws how it failed.
    [[nodiscard]] T take()
    {
        check();
        return std::move(value_);
    }

  private:
    T value_{};
};

}  // namespace gpurx::python
