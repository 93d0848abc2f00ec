// SPDX-License-Identifier: Apache-2.0
#include "without_gil.hpp"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <thread>

namespace gpurx::python {

namespace {

// Never destroyed: threads stand still in it until the process has ended.
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
        // Those who came before wait for Python's lock.
        auto* const thread = PyEval_SaveThread();
        {
            std::scoped_lock const lock{passing_};
        }
        PyEval_RestoreThread(thread);
    }

  private:
    std::shared_mutex passing_;
    std::atomic<std::thread::id> last_{std::thread::id{}};  // who alone may pass
};

}  // namespace

without_gil::~without_gil()
{
    gate::instance().pass(thread_);
}

void keep_others_out() noexcept
{
    gate::instance().close();
}

}  // namespace gpurx::python
