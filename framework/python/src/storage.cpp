// SPDX-License-Identifier: Apache-2.0
#include "storage.hpp"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/detached.hpp>

#include "engine.hpp"

namespace gpurx::python {

namespace {

// Nobody may have it again: the process has it till its end.
template <class Contents>
void forget(Contents what)
{
    static_cast<void>(new Contents{std::move(what)});
}

// Until the stream has passed, which cannot be told once the engine has stopped: the process ends then.
asio::awaitable<void> keep(ingest::buffer bytes, std::shared_ptr<cuda_stream const> stream)
{
    auto const executor = co_await asio::this_coro::executor;
    static_cast<void>(co_await async_wait(executor, *stream, asio::as_tuple(asio::use_awaitable)));
    static_cast<void>(bytes.size());
}

void drop_after(ingest::buffer bytes, std::shared_ptr<cuda_stream const> stream) noexcept
try {
    auto const executor = engine();
    asio::co_spawn(executor, keep(std::move(bytes), std::move(stream)), asio::detached);
} catch (std::exception const&) {
    forget(std::move(bytes));
}

}  // namespace

storage::~storage()
{
    auto const own = in_own_process();
    if (!own)
        forget(std::move(contents_));
    if (!own || gpu_ == host)
        return;
    auto const may_go = [this] {
        return std::ranges::all_of(consumers_, [this](cuda_stream_ref consumer) {
            error_code code;
            order_after(*stream_, consumer, code);
            return !code;
        });
    };
    auto* const lent = std::get_if<ingest::batch>(&contents_);
    if (lent != nullptr && consumers_.size() == 1)
        lent->release_after(consumers_.front());
    else if (!may_go())
        // A consumer's stream is gone, or belongs to a graph that is being captured: who knows until when it reads.
        forget(std::move(contents_));
    else if (lent == nullptr)
        drop_after(std::get<ingest::buffer>(std::move(contents_)), stream_);
    // A batch waits for the stream by itself.
}

void storage::use_on(cuda_stream_ref consumer)
{
    order_after(consumer, *stream_);
    note_use_on(consumer);
}

void storage::note_use_on(cuda_stream_ref consumer)
{
    std::scoped_lock const lock{mutex_};
    if (std::ranges::find(consumers_, consumer) == consumers_.end())
        consumers_.push_back(consumer);
}

std::shared_ptr<cuda_stream const> storage::stream_to(int gpu)
{
    std::shared_ptr<cuda_stream const> stream;
    {
        std::scoped_lock const lock{mutex_};
        auto found = std::ranges::find(streams_to_, gpu, &decltype(streams_to_)::value_type::first);
        if (found == streams_to_.end())
            found = streams_to_.emplace(found, gpu, std::make_shared<cuda_stream const>(cuda_stream::on(gpu)));
        stream = found->second;
    }
    use_on(*stream);
    return stream;
}

}  // namespace gpurx::python
