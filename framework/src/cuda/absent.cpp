// SPDX-License-Identifier: Apache-2.0
//
// Replaces the files that include driver.hpp where the library is built without CUDA: each call fails with
// errc::no_cuda, or has nothing to do.
#include <fmt/format.h>

#include <gpurx/cuda_stream.hpp>

#include "gpu_work.hpp"
#include "memory/memory_state.hpp"
#include "memory/topology.hpp"

namespace gpurx {

namespace {

[[noreturn]] void refuse(std::string operation, std::string object)
{
    throw system_error{errc::no_cuda,
                       {.operation = std::move(operation),
                        .object = std::move(object),
                        .kernel_message = {},
                        .advice = "this gpurx was built without CUDA: use device_memory::on_host"}};
}

class category final : public boost::system::error_category {
  public:
    constexpr category() noexcept : error_category{0x93c4'0ae7'5d21'b68f} {}
    [[nodiscard]] char const* name() const noexcept override { return "cuda"; }
    [[nodiscard]] std::string message(int value) const override { return fmt::format("CUDA error {}", value); }
};

constinit category const the_category;

}  // namespace

boost::system::error_category const& cuda_category() noexcept
{
    return the_category;
}

namespace detail {

std::shared_ptr<memory_state> make_gpu_memory(int ordinal, std::size_t /*bytes*/)
{
    refuse("allocate memory of", fmt::format("GPU {}", ordinal));
}

std::shared_ptr<memory_state> make_pinned_memory(int ordinal, std::size_t /*bytes*/)
{
    refuse("pin memory for", fmt::format("GPU {}", ordinal));
}

std::shared_ptr<memory_state> adopt_gpu_memory(std::uintptr_t address, std::size_t /*bytes*/,
                                               std::shared_ptr<void const> /*owner*/)
{
    refuse("adopt memory", fmt::format("at {:#x}", address));
}

int count_gpus()
{
    refuse("count", "GPUs");
}

gpu_place place_of(std::uintptr_t /*address*/) noexcept
{
    return {};
}

error_code resolve(gpu_stream& /*stream*/) noexcept
{
    return errc::no_cuda;
}

void prepare_gather(gpu_stream const& /*on*/) noexcept {}

error_code locate(gpu_stream& /*stream*/) noexcept
{
    return errc::no_cuda;
}

CUstream_st* create_stream(int ordinal)
{
    refuse("create", fmt::format("a stream of GPU {}", ordinal));
}

void destroy_stream(CUstream_st* /*stream*/) noexcept {}

error_code order(gpu_stream const& /*later*/, gpu_stream const& /*earlier*/) noexcept
{
    return errc::no_cuda;
}

// There is no GPU, and so no work that anything could wait for.
spare_point::~spare_point() = default;

void spare_point::provide() {}

void mark(stream_point*& /*point*/, gpu_stream /*on*/, spare_point& /*spare*/) noexcept {}

bool has_passed(stream_point*& /*point*/) noexcept
{
    return true;
}

void when_passed(stream_point* /*point*/, void (*then)(void*, error_code) noexcept, void* argument,
                 waiting_for /*what*/) noexcept
{
    then(argument, {});
}

void look_at_streams() noexcept {}

bool stream_backlog::is_full() noexcept
{
    return false;
}

bool stream_backlog::notify(int /*event*/) noexcept
{
    return false;
}

void stream_backlog::forget(int /*event*/) noexcept {}

stream_backlog* backlog_of(gpu_stream const& /*on*/) noexcept
{
    return nullptr;
}

std::size_t gather_on_gpu(std::span<fragment const> /*fragments*/, memory_span /*destination*/, gpu_stream /*on*/,
                          gather_source const& /*from*/, error_code& code) noexcept
{
    code = errc::no_cuda;
    return 0;
}

std::size_t gather_crc32c_on_gpu(std::span<fragment const> /*fragments*/, memory_span /*destination*/,
                                 std::uintptr_t /*crc*/, gpu_stream /*on*/, error_code& code) noexcept
{
    code = errc::no_cuda;
    return 0;
}

std::size_t copy_from_gpu(std::span<fragment const> /*fragments*/, std::span<std::byte> /*destination*/,
                          int /*ordinal*/, cuda_stream_ref const* /*after*/, error_code& code) noexcept
{
    code = errc::no_cuda;
    return 0;
}

gpu_stream copy_stream_of(int /*ordinal*/, error_code& code) noexcept
{
    code = errc::no_cuda;
    return {};
}

staging::~staging() = default;

std::span<std::byte> staging::room(gpu_stream /*on*/, error_code& code)
{
    code = errc::no_cuda;
    return {};
}

error_code staging::copy(std::uintptr_t /*address*/, std::size_t /*size*/, stream_backlog* /*backlog*/) noexcept
{
    return errc::no_cuda;
}

error_code staging::flush() noexcept
{
    return {};
}

bool staging::notify(int /*event*/) noexcept
{
    return false;
}

std::unique_ptr<staging> make_staging(int /*ordinal*/, error_code& code) noexcept
{
    code = errc::no_cuda;
    return nullptr;
}

struct fork_state {};

}  // namespace detail

stream_fork::stream_fork(cuda_stream_ref stream, std::span<memory_span const> /*memory*/,
                         std::size_t /*count*/) noexcept
    : stream_{stream}
{}

stream_fork::~stream_fork() = default;

cuda_stream_ref stream_fork::operator[](std::size_t /*number*/) const noexcept
{
    return stream_;
}

void stream_fork::join() noexcept {}

}  // namespace gpurx
