// SPDX-License-Identifier: Apache-2.0
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/error.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstdint>
#include <gpurx/cuda_stream.hpp>
#include <memory>

#include "base/async_op.hpp"
#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "base/tcp_socket.hpp"
#include "gpu_work.hpp"

namespace gpurx {

namespace detail {

namespace {

// Handles that cuda.h gives to default streams: CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
constexpr std::uintptr_t legacy = 1;
constexpr std::uintptr_t per_thread = 2;

// The handle; that of the default stream in one spelling.
std::uintptr_t handle_of(cuda_stream_ref stream) noexcept
{
    auto const handle = reinterpret_cast<std::uintptr_t>(stream.get());
    return handle == legacy ? 0 : handle;
}

bool is_default(cuda_stream_ref stream) noexcept
{
    return handle_of(stream) <= per_thread;
}

// What the thread that sees streams pass shares with an operation, which it may outlive.
struct passing {
    unique_fd event;
    error_code outcome;               // written before:
    std::atomic<bool> passed{false};  // the stream

    void tell(error_code with) noexcept
    {
        outcome = with;
        passed.store(true, std::memory_order_release);
        std::uint64_t const one = 1;
        static_cast<void>(!::write(event.get(), &one, sizeof one));
    }
};

// What a wait works with. The descriptor is Asio's: it must not outlive its execution context.
class wait_claim {
  public:
    explicit wait_claim(asio::any_io_executor executor) noexcept : executor_{std::move(executor)} {}

    [[nodiscard]] asio::any_io_executor get_executor() const { return executor_; }
    void release() noexcept { readable_.reset(); }

    // Begins to look for what was enqueued on the stream so far. False: there is nothing to wait for.
    [[nodiscard]] bool begin(gpu_stream const& on, error_code& code)
    {
        auto const shared = std::make_shared<passing>();
        shared->event.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (!shared->event)
            code.assign(errno, boost::system::system_category());
        unique_fd second = code ? unique_fd{} : duplicate(shared->event.get(), code);
        if (code)
            return false;
        readable_ = std::make_unique<asio::posix::stream_descriptor>(executor_);
        readable_->assign(second.get(), code);
        if (code)
            return false;
        static_cast<void>(second.release());
        passing_ = shared;
        auto kept = std::make_unique<std::shared_ptr<passing>>(shared);
        stream_point* all = nullptr;
        spare_point spare;
        spare.provide();
        mark(all, on, spare);
        if (all == nullptr)
            return false;
        when_passed(
            all,
            [](void* argument, error_code with) noexcept {
                std::unique_ptr<std::shared_ptr<passing>> const told{static_cast<std::shared_ptr<passing>*>(argument)};
                (*told)->tell(with);
            },
            kept.release(), waiting_for::stream);
        return true;
    }
    [[nodiscard]] asio::posix::stream_descriptor& readable() const noexcept { return *readable_; }
    [[nodiscard]] passing const& watched() const noexcept { return *passing_; }

  private:
    asio::any_io_executor executor_;
    std::unique_ptr<asio::posix::stream_descriptor> readable_;
    std::shared_ptr<passing const> passing_;
};

class wait_op : public async_op<wait_claim, error_code> {
  public:
    static void start(wait_claim claim, gpu_stream on, bool nothing, completion_site site, wait_handler handler)
    {
        auto code = nothing ? error_code{} : find(on);
        auto const waits = !nothing && !code && claim.begin(on, code);
        wait_op op{std::move(claim), std::move(site), std::move(handler)};
        if (!waits)
            return op.complete_soon(code);
        op.heed_cancellation(asio::enable_total_cancellation());
        op.wait();
    }

    // The stream has passed, or nobody wants to know any more; or neither: Asio calls also for what it was told of a
    // descriptor that had the same place in its memory.
    void operator()(error_code code)
    {
        auto const cancelled = end_wait() != asio::cancellation_type::none;
        auto const& watched = claim().watched();
        if (watched.passed.load(std::memory_order_acquire))
            return complete(watched.outcome);
        if (cancelled && !code)
            code = asio::error::operation_aborted;
        if (!code)
            return wait();
        complete(code);
    }

  private:
    using async_op::async_op;

    void wait()
    {
        auto& readable = claim().readable();  // lives on in what *this is moved to
        readable.async_wait(asio::posix::descriptor_base::wait_read, std::move(*this));
    }

    [[nodiscard]] static error_code find(gpu_stream& on) noexcept
    {
        if (reinterpret_cast<std::uintptr_t>(on.stream.get()) == per_thread)
            return errc::unusable_stream;
        return locate(on);
    }
};

// Two streams of which one at least is none of the default streams say which GPU is meant.
error_code order_streams(cuda_stream_ref later, cuda_stream_ref earlier) noexcept
{
    if (handle_of(later) == handle_of(earlier))
        return {};
    gpu_stream second{.ordinal = no_gpu, .stream = later};
    gpu_stream first{.ordinal = no_gpu, .stream = earlier};
    auto& certain = is_default(later) ? first : second;
    auto& other = is_default(later) ? second : first;
    if (auto const code = locate(certain))
        return code;
    if (is_default(other.stream))
        other.ordinal = certain.ordinal;
    if (auto const code = locate(other))
        return code;
    return order(second, first);
}

}  // namespace

void start_wait(asio::any_io_executor executor, stream_work what, completion_site site, wait_handler handler)
{
    auto const [stream, memory] = what;
    auto const nothing = memory.kind() == memory_kind::host && stream == cuda_stream_ref{};
    auto const ordinal =
        is_default(stream) && memory.kind() == memory_kind::device ? place_of(memory.address()).ordinal : no_gpu;
    wait_op::start(wait_claim{std::move(executor)}, {.ordinal = ordinal, .stream = stream}, nothing, std::move(site),
                   std::move(handler));
}

std::exception_ptr failure_of(stream_work const& /*what*/, error_code code) noexcept
{
    return exception_of(code, [&] {
        return diagnostics{
            .operation = "wait for", .object = "CUDA stream", .kernel_message = {}, .advice = advice_on(code)};
    });
}

}  // namespace detail

cuda_stream cuda_stream::on(int ordinal)
{
    return cuda_stream{detail::create_stream(ordinal)};
}

cuda_stream cuda_stream::on(int ordinal, error_code& code, diagnostics& why)
{
    return detail::reporting(code, why, [&] { return on(ordinal); });
}

cuda_stream::~cuda_stream()
{
    if (handle_ != nullptr)
        detail::destroy_stream(handle_);
}

void order_after(cuda_stream_ref later, cuda_stream_ref earlier, error_code& code) noexcept
{
    code = detail::order_streams(later, earlier);
}

void order_after(cuda_stream_ref later, cuda_stream_ref earlier)
{
    if (auto const code = detail::order_streams(later, earlier))
        throw system_error{code,
                           {.operation = "order", .object = "two CUDA streams", .kernel_message = {}, .advice = {}}};
}

}  // namespace gpurx
