// SPDX-License-Identifier: Apache-2.0
#include "driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <utility>

#include "allocations.hpp"
#include "stream_point.hpp"

namespace gpurx::detail::cuda {

namespace {

constexpr char const* library = "libcuda.so.1";

std::atomic<bool> process_is_ending{false};

struct outcome {
    driver functions;
    error_code code;
    diagnostics why;
};

void set_error(outcome& into, error_code code, std::string operation, std::string advice)
{
    into.code = code;
    into.why = {
        .operation = std::move(operation), .object = "CUDA driver", .kernel_message = {}, .advice = std::move(advice)};
}

template <class Function>
bool find(void* handle, char const* name, Function& into)
{
    into = reinterpret_cast<Function>(::dlsym(handle, name));
    return into != nullptr;
}

// Registered after the driver has set itself up, so it runs before the driver undoes itself.
void end_of_process()
{
    if (process_is_ending.exchange(true))
        return;  // a child that was forked: it has neither the thread nor the driver
    stop_watching_streams();
    finish_memory_ends();
}

void in_forked_child()
{
    process_is_ending.store(true);
}

outcome load()
{
    outcome result;
    auto* const handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        auto const* const reason = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc has one per thread
        set_error(result, errc::no_cuda, "load",
                  fmt::format("{}; install the NVIDIA driver, or use device_memory::on_host",
                              reason != nullptr ? reason : library));
        return result;
    }
    char const* missing = nullptr;
#define GPURX_TEXT_OF(name) #name
#define GPURX_TEXT(name) GPURX_TEXT_OF(name)
#define GPURX_FIND(name)                                                              \
    if (!find(handle, GPURX_TEXT(name), result.functions.name) && missing == nullptr) \
        missing = GPURX_TEXT(name);
    GPURX_CUDA_FUNCTIONS(GPURX_FIND)
#undef GPURX_FIND
#undef GPURX_TEXT
#undef GPURX_TEXT_OF
    if (missing != nullptr) {
        set_error(result, errc::no_cuda, "load",
                  fmt::format("{} has no {}: update the NVIDIA driver", library, missing));
        return result;
    }
    if (auto const status = result.functions.cuInit(0); status != CUDA_SUCCESS) {
        char const* text = nullptr;
        static_cast<void>(result.functions.cuGetErrorString(status, &text));
        set_error(result, errc::no_cuda, "initialise",
                  fmt::format("cuInit reports {} ({}); nvidia-smi shows whether driver and GPU work",
                              static_cast<int>(status), text != nullptr ? text : "an unknown error"));
        return result;
    }
    std::atexit(end_of_process);
    ::pthread_atfork(nullptr, nullptr, in_forked_child);
    return result;
}

outcome const& loaded()
{
    // Never destroyed: memory may be given back in static destructors.
    static auto const* const found = new outcome{load()};
    return *found;
}

class category final : public boost::system::error_category {
  public:
    // The id makes codes equal across copies of the library in one process. A random number.
    constexpr category() noexcept : error_category{0x93c4'0ae7'5d21'b68f} {}

    [[nodiscard]] char const* name() const noexcept override { return "cuda"; }
    [[nodiscard]] std::string message(int value) const override
    {
        char const* name = nullptr;
        char const* text = nullptr;
        auto const& driver = loaded();
        auto const in_range = value >= 0 && value <= CUDA_ERROR_UNKNOWN;
        auto const status = in_range ? static_cast<CUresult>(value) : CUDA_ERROR_UNKNOWN;
        if (!in_range || driver.code || driver.functions.cuGetErrorName(status, &name) != CUDA_SUCCESS ||
            driver.functions.cuGetErrorString(status, &text) != CUDA_SUCCESS)
            return fmt::format("CUDA error {}", value);
        return fmt::format("{} ({})", text, name);
    }
};

constinit category const the_category;

}  // namespace

driver const* find_driver(error_code& code, diagnostics& why)
{
    auto const& found = loaded();
    code = found.code;
    why = found.why;
    return found.code ? nullptr : &found.functions;
}

driver const& require_driver()
{
    auto const& found = loaded();
    if (found.code)
        throw system_error{found.code, found.why};
    return found.functions;
}

error_code error_of(CUresult status) noexcept
{
    return status == CUDA_SUCCESS ? error_code{} : error_code{static_cast<int>(status), the_category};
}

// Of cuda.h 12.9 and later.
static constexpr auto error_contained = static_cast<CUresult>(226);
static constexpr auto error_tensor_memory_leak = static_cast<CUresult>(721);

bool is_over(CUresult status) noexcept
{
    switch (status) {
        case CUDA_ERROR_DEINITIALIZED:
        case CUDA_ERROR_INVALID_CONTEXT:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        case CUDA_ERROR_INVALID_HANDLE:  // the event has gone with its context
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_NVLINK_UNCORRECTABLE:
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_MPS_RPC_FAILURE:
        case CUDA_ERROR_MPS_CLIENT_TERMINATED:
        case CUDA_ERROR_EXTERNAL_DEVICE:
        case CUDA_ERROR_UNKNOWN:
        case error_contained:
        case error_tensor_memory_leak:
            return true;
        default:
            return false;
    }
}

bool ending() noexcept
{
    return process_is_ending.load();
}

}  // namespace gpurx::detail::cuda

namespace gpurx {

boost::system::error_category const& cuda_category() noexcept
{
    return detail::cuda::the_category;
}

}  // namespace gpurx
