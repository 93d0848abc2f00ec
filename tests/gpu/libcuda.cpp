// SPDX-License-Identifier: Apache-2.0
//
// A CUDA driver's library, seen from the library: whether it has each function that is looked for, what it says where
// there is no GPU, and whether the process can end with it. Which one it is, is the loader's affair (libcuda.sh).
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <gpurx/error.hpp>
#include <string>
#include <string_view>

#include "cuda/driver.hpp"

namespace {

namespace cuda = gpurx::detail::cuda;

int mistakes = 0;

void check(bool good, std::string const& what)
{
    std::printf("%-6s %s\n", good ? "ok" : "FAIL", what.c_str());
    mistakes += good ? 0 : 1;
}

decltype(&::cuInit) initialise = nullptr;
CUresult first_answer = CUDA_SUCCESS;

// Registered when cuInit has returned, as the library does: runs before the driver undoes itself, whose own handlers
// are older. The library gives pages back there.
void at_exit()
{
    auto const answer = initialise(0);
    check(answer == first_answer, "a handler that is registered after cuInit still gets its answer, " +
                                      std::to_string(static_cast<int>(answer)));
    std::fflush(stdout);
    if (mistakes != 0)
        std::_Exit(1);
}

// What a user may print when main is over and the driver has undone itself. And what cuInit says then, which is the
// driver's affair.
struct late_reader {
    late_reader() = default;
    late_reader(late_reader const&) = delete;
    late_reader& operator=(late_reader const&) = delete;
    ~late_reader()
    {
        auto const text = gpurx::error_code{CUDA_ERROR_ILLEGAL_ADDRESS, gpurx::cuda_category()}.message();
        std::printf("ok     after main, an error reads: %s\n", text.c_str());
        if (initialise != nullptr)
            std::printf("       and cuInit reports %d\n", static_cast<int>(initialise(0)));
        std::fflush(stdout);
    }
} const reads_late;

// Those of the library, and what its tests call beside them.
void check_functions(void* library)
{
#define GPURX_TEXT_OF(name) #name
#define GPURX_TEXT(name) GPURX_TEXT_OF(name)
#define GPURX_CHECK(name) check(::dlsym(library, GPURX_TEXT(name)) != nullptr, GPURX_TEXT(name));
    GPURX_CUDA_FUNCTIONS(GPURX_CHECK)
    GPURX_CHECK(cuMemcpyHtoD)
    GPURX_CHECK(cuMemcpyDtoH)
    GPURX_CHECK(cuLaunchHostFunc)
    GPURX_CHECK(cuStreamWaitValue32)
    GPURX_CHECK(cuStreamBeginCapture)
    GPURX_CHECK(cuStreamEndCapture)
    GPURX_CHECK(cuGraphInstantiate)
    GPURX_CHECK(cuGraphLaunch)
    GPURX_CHECK(cuGraphDestroy)
    GPURX_CHECK(cuGraphExecDestroy)
#undef GPURX_CHECK
#undef GPURX_TEXT
#undef GPURX_TEXT_OF
}

// They need no GPU, and no cuInit.
void check_texts(void* library)
{
    auto const name_of = reinterpret_cast<decltype(&::cuGetErrorName)>(::dlsym(library, "cuGetErrorName"));
    auto const text_of = reinterpret_cast<decltype(&::cuGetErrorString)>(::dlsym(library, "cuGetErrorString"));
    char const* name = nullptr;
    char const* text = nullptr;
    check(name_of(CUDA_ERROR_NO_DEVICE, &name) == CUDA_SUCCESS && std::string_view{name} == "CUDA_ERROR_NO_DEVICE",
          "the name of an error");
    auto const known = text_of(CUDA_ERROR_NO_DEVICE, &text) == CUDA_SUCCESS && text != nullptr && *text != '\0';
    check(known, "its text: " + std::string{text != nullptr ? text : ""});
}

// With a GPU it opens; without, the library says what cuInit says, and goes on saying so.
void check_start()
{
    for (int i = 0; i < 2; ++i) {
        gpurx::error_code code;
        gpurx::diagnostics why;
        auto const* const driver = cuda::find_driver(code, why);
        if (driver != nullptr) {
            int count = 0;
            check(driver->cuDeviceGetCount(&count) == CUDA_SUCCESS && count > 0, "cuInit finds a GPU");
            continue;
        }
        auto const says = why.advice.find("cuInit reports ") == 0 && why.advice.find("()") == std::string::npos;
        check(code == gpurx::errc::no_cuda && why.operation == "initialise" && says, "cuInit: " + why.advice);
    }
}

}  // namespace

int main()
{
    auto* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        auto const* const reason = ::dlerror();  // NOLINT(concurrency-mt-unsafe): there is one thread
        check(false, reason != nullptr ? reason : "libcuda.so.1");
        return 1;
    }
    check_functions(library);
    if (mistakes == 0) {
        check_texts(library);
        check_start();
        initialise = reinterpret_cast<decltype(&::cuInit)>(::dlsym(library, "cuInit"));
        first_answer = initialise(0);
        std::atexit(at_exit);
    }
    return mistakes == 0 ? 0 : 1;
}
