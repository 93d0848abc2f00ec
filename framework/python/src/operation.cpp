// SPDX-License-Identifier: Apache-2.0
#include "operation.hpp"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "module.hpp"

namespace gpurx::python {

namespace {

constexpr double forever = -1;

// Never destroyed: threads block in it until the process has ended.
class gate {
  public:
    static gate& instance()
    {
        static auto* const one = new gate;
        return *one;
    }

    void pass(PyThreadState* thread) noexcept
    {
        {
            std::shared_lock const lock{passing_};
            auto const last = last_.load();
            if (last == std::thread::id{} || last == std::this_thread::get_id())
                return PyEval_RestoreThread(thread);
        }
        for (;;)
            ::pause();
    }

    void close() noexcept
    {
        last_.store(std::this_thread::get_id());
        // Earlier threads wait for Python's lock.
        auto* const thread = PyEval_SaveThread();
        {
            std::scoped_lock const lock{passing_};
        }
        PyEval_RestoreThread(thread);
    }

    // Returns false after the last call.
    bool begin_call() noexcept
    {
        calling_.lock_shared();
        if (!has_ended_)
            return true;
        calling_.unlock_shared();
        return false;
    }
    void end_call() noexcept { calling_.unlock_shared(); }

    void end_calls() noexcept
    {
        auto* const thread = PyEval_SaveThread();
        {
            std::scoped_lock const lock{calling_};
            has_ended_ = true;
        }
        PyEval_RestoreThread(thread);
    }

  private:
    std::shared_mutex calling_;  // guards the member below
    bool has_ended_ = false;
    std::shared_mutex passing_;
    std::atomic<std::thread::id> last_{std::thread::id{}};  // the only thread that may pass
};

}  // namespace

with_gil::with_gil() noexcept : holds_{in_own_process() && gate::instance().begin_call()}
{
    if (holds_)
        state_ = PyGILState_Ensure();
}

with_gil::~with_gil()
{
    if (!holds_)
        return;
    PyGILState_Release(state_);
    gate::instance().end_call();
}

void end_calls() noexcept
{
    gate::instance().end_calls();
}

without_gil::~without_gil()
{
    gate::instance().pass(thread_);
}

void keep_others_out() noexcept
{
    gate::instance().close();
}

bool pending::wait(double seconds) const
{
    auto const start = std::chrono::steady_clock::now();
    for (auto over = false;;) {
        {
            without_gil const unlocked;
            over = operation_->wait_for(glance);
        }
        if (over)
            return true;
        if (PyErr_CheckSignals() != 0)
            throw nb::python_error();
        if (seconds >= 0 && std::chrono::steady_clock::now() - start >= std::chrono::duration<double>{seconds})
            return false;
    }
}

nb::object pending::result()
{
    wait(forever);
    auto const take = std::exchange(take_, nullptr);
    if (take == nullptr)
        throw nb::value_error("its result was already taken");
    return take();
}

void bind_operation(nb::module_& module)
{
    nb::class_<pending>(module, "Operation")
        .def("is_over", &pending::is_over)
        .def("wait", &pending::wait, nb::arg("seconds") = forever)
        .def("cancel", &pending::cancel)
        .def("hurry", &pending::hurry)
        .def("fileno", &pending::descriptor)
        .def("result", &pending::result);
}

}  // namespace gpurx::python
