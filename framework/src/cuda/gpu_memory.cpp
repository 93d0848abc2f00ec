// SPDX-License-Identifier: Apache-2.0
//
// Memory that CUDA allocates or knows: of a GPU, pinned on the host, and of others.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "allocations.hpp"
#include "base/byte_size.hpp"
#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "memory/memory_state.hpp"
#include "memory/topology.hpp"

namespace gpurx::detail::cuda {

namespace {

constexpr auto unit = device_block::unit;

std::string object_of(gpu const& on, std::size_t bytes)
{
    return fmt::format("{} of GPU {}", size_text(bytes), on.ordinal());
}

void check_size(std::size_t bytes, std::string const& object)
{
    if (bytes == 0)
        fail(EINVAL, "allocate", object, "ask for at least one byte");
    if (bytes > std::size_t{PTRDIFF_MAX} - unit)
        fail(ENOMEM, "allocate", object, {});
}

// ---- as a dmabuf ----

struct dmabuf_export {
    unique_fd fd;       // empty: `code` and `why` say why not
    bool pcie = false;  // mapped for PCIe in particular, and not for a coherent link
    error_code code;
    diagnostics why;
};

// The mapping for PCIe first: on a GPU with a coherent link to the CPU as well, the NIC's writes and what the CPU sends
// must take one way, or nothing orders them. Drivers before CUDA 12.8 do not know the flag, and GPUs without such a
// link may refuse it: then there is only one way, and 0 means the same.
#if CUDA_VERSION >= 12080
constexpr std::array<unsigned long long, 2> mappings{CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, 0};
#else
constexpr std::array<unsigned long long, 1> mappings{0};
#endif

std::string advice_for(CUresult status)
{
    switch (status) {
        case CUDA_ERROR_NOT_SUPPORTED:
            return "the driver does not export this memory: use a datacenter or RTX GPU with the open kernel modules";
        case CUDA_ERROR_OUT_OF_MEMORY:
            return "BAR1 may be too small for it (nvidia-smi -q -d MEMORY)";
        default:
            return {};
    }
}

// `address` and `bytes` are of whole host pages. `object` is what an error names.
dmabuf_export export_dmabuf(gpu const& on, CUdeviceptr address, std::size_t bytes, std::string object,
                            std::span<unsigned long long const> ways = mappings)
{
    dmabuf_export result;
    context_scope const scope{on};
    auto status = scope.status();
    for (std::size_t i = 0; status == CUDA_SUCCESS && i < ways.size(); ++i) {
        int fd = -1;
        auto const answer =
            on.calls().cuMemGetHandleForAddressRange(&fd, address, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, ways[i]);
        if (answer == CUDA_SUCCESS) {
            result.fd = unique_fd{fd};
            result.pcie = ways[i] != 0;
            return result;
        }
        if (i + 1 == ways.size())
            status = answer;
    }
    result.code = error_of(status);
    result.why = {.operation = "export",
                  .object = std::move(object),
                  .kernel_message = {},
                  .advice = on.facts().dmabuf ? advice_for(status) : advice_for(CUDA_ERROR_NOT_SUPPORTED)};
    return result;
}

// Who made a dmabuf, as /proc says; empty if it does not.
std::string exporter_of(int dmabuf)
{
    std::ifstream facts{fmt::format("/proc/self/fdinfo/{}", dmabuf)};
    for (std::string line; std::getline(facts, line);)
        if (constexpr std::string_view key{"exp_name:"}; line.starts_with(key))
            return line.substr(line.find_first_not_of(" \t", key.size()));
    return {};
}

// What explain() says about exporting, and about ordering.
std::string text_of_export(gpu const& on, memory_state const& memory, bool pcie)
{
    if (memory.dmabuf_fd() < 0)
        return fmt::format("for transport copy only: {}", describe(memory.export_error(), memory.why_not_exported()));
    auto const exporter = exporter_of(memory.dmabuf_fd());
    return fmt::format("exported by {}{}; {}", exporter.empty() ? "the CUDA driver" : exporter, pcie ? " for PCIe" : "",
                       on.facts().orders_writes()
                           ? "the GPU orders a NIC's writes before kernels that are launched later"
                           : "a NIC's writes are flushed once per buffer");
}

// ---- the kinds of memory ----

// What all of it has in common.
class cuda_memory : public memory_state {
  public:
    explicit cuda_memory(gpu& on) : on_{on} {}
    cuda_memory(cuda_memory const&) = delete;
    cuda_memory& operator=(cuda_memory const&) = delete;

    [[nodiscard]] int ordinal() const noexcept override { return on_.ordinal(); }
    [[nodiscard]] memory_span known_to(int ordinal) const noexcept override
    {
        return in_reach_ && ordinal == on_.ordinal() ? span() : memory_span{};
    }

    [[nodiscard]] error_code failure(bool ask) noexcept override
    {
        return span().kind() == memory_kind::device ? error_of(on_.failure(ask)) : error_code{};
    }

    [[nodiscard]] std::string pci_address() const override
    {
        auto const part = [this](CUdevice_attribute which) {
            int number = 0;
            return on_.calls().cuDeviceGetAttribute(&number, which, on_.device()) == CUDA_SUCCESS ? number : 0;
        };
        return pci_address_of(part(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID), part(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
                              part(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
    }

    // Where the mapping for PCIe was taken, that of the coherent link: a Grace CPU's kernel exports the first, and
    // attaches no NIC to it.
    [[nodiscard]] int other_dmabuf_fd() override
    {
        std::scoped_lock const lock{exporting_};
        if (export_.pcie && !other_export_) {
            constexpr std::array<unsigned long long, 1> plain{0};
            other_export_ = export_dmabuf(on_, span().address(), span().size(), {}, plain).fd;
        }
        return other_export_.get();
    }

    [[nodiscard]] unique_fd export_part(int like, std::size_t offset, std::size_t size, error_code& code,
                                        diagnostics& why) override
    {
        auto const is_first = like == dmabuf_fd();
        std::array<unsigned long long, 1> const way{is_first && export_.pcie ? mappings.front() : 0};
        auto made = export_dmabuf(on_, span().address() + offset, size, object_of(on_, size), way);
        code = made.code;
        why = std::move(made.why);
        return std::move(made.fd);
    }

    void acquire(cuda_stream_ref stream) noexcept override
    {
        CUcontext context = nullptr;
        // The CPU and the GPU see what lies in host memory as it is written.
        if (span().kind() != memory_kind::device ||
            context_of(on_.calls(), {.ordinal = on_.ordinal(), .stream = stream}, context) != CUDA_SUCCESS)
            return;
        context_scope const scope{on_.calls(), context};
        if (scope.status() == CUDA_SUCCESS)
            on_.acquire(stream.get(), scope, gpu::capture::may_be);
    }

    [[nodiscard]] host_bytes allocate_host(std::size_t size) override
    {
        std::byte* pinned = nullptr;
        check(on_.pinned().take(size, pinned), "pin", size_text(size) + " of host memory");
        return host_bytes{pinned, {.pinned_by = this, .size = size}};
    }

  protected:
    void free_host(std::byte* bytes, std::size_t size) noexcept override { on_.pinned().put(bytes, size); }

    [[nodiscard]] gpu& on() const noexcept { return on_; }
    void set_in_reach(bool in_reach) noexcept { in_reach_ = in_reach; }
    [[nodiscard]] bool exported_for_pcie() const noexcept { return export_.pcie; }

    void publish(memory_span span, std::size_t page_size)
    {
        place(span, page_size);
        export_ = export_dmabuf(on_, span.address(), span.size(), object_of(on_, span.size()));
        set_export(export_.fd.get(), export_.code, export_.why);
    }
    void do_not_publish(memory_span span, std::size_t page_size, error_code code, diagnostics why)
    {
        place(span, page_size);
        set_export(-1, code, std::move(why));
    }
    // Before the memory goes: bytes may still be on their way into it.
    void finish_copies() noexcept
    {
        export_.fd.reset();
        other_export_.reset();
        on_.finish_copies();
    }

  private:
    gpu& on_;
    bool in_reach_ = false;  // of the GPU's own context
    dmabuf_export export_;
    std::mutex exporting_;
    unique_fd other_export_;  // guarded by it
};

bool visible_to_kernels(gpu_facts const& facts) noexcept
{
    return facts.orders_writes() || facts.host_flush;
}

// Memory of the GPU that this object owns: mapped, or where the GPU cannot map memory for RDMA, allocated as ever.
class gpu_memory final : public cuda_memory {
  public:
    gpu_memory(gpu& on, std::size_t bytes) : cuda_memory{on}
    {
        context_scope const scope{on};
        check(scope.status(), "allocate", object_of(on, bytes));
        block_.emplace(on, bytes, device_block::use::rdma);
        set_in_reach(true);
        publish_or_not({memory_kind::device, block_->address(), block_->size()});
    }
    ~gpu_memory() override
    {
        context_scope const scope{on()};
        if (scope.status() != CUDA_SUCCESS)
            return;
        finish_copies();
        block_.reset();
    }
    gpu_memory(gpu_memory const&) = delete;
    gpu_memory& operator=(gpu_memory const&) = delete;

    [[nodiscard]] std::string explain() const override
    {
        return fmt::format("memory of GPU {} ({}), {} by {}, {}", on().ordinal(), on().name(), size_text(span().size()),
                           block_->is_mapped() ? "cuMemCreate" : "cuMemAlloc",
                           text_of_export(on(), *this, exported_for_pcie()));
    }

  private:
    void publish_or_not(memory_span span)
    {
        if (visible_to_kernels(on().facts()))
            return publish(span, unit);
        do_not_publish(span, unit, error_of(CUDA_ERROR_NOT_SUPPORTED),
                       {.operation = "export",
                        .object = object_of(on(), span.size()),
                        .kernel_message = {},
                        .advice = "this GPU has no means to make a NIC's writes visible to its kernels"});
    }

    std::optional<device_block> block_;
};

// Whole pages of somebody else's memory.
class adopted_memory final : public cuda_memory {
  public:
    adopted_memory(gpu& on, std::uintptr_t address, std::size_t bytes, std::shared_ptr<void const> owner)
        : cuda_memory{on}, owner_{std::move(owner)}, given_{bytes}
    {
        auto const page = sys::page_size();
        auto const begin = round_up(address, page);
        auto const end = (address + bytes) / page * page;
        auto const object = object_of(on, bytes);
        if (begin >= end)
            fail(EINVAL, "adopt", object, fmt::format("give memory that contains a whole page of {}", size_text(page)));
        before_ = begin - address;
        if (!visible_to_kernels(on.facts()))
            fail(error_of(CUDA_ERROR_NOT_SUPPORTED), "adopt", object,
                 "this GPU has no means to make a NIC's writes visible to its kernels");
        publish({memory_kind::device, begin, end - begin}, page);
        if (dmabuf_fd() < 0)
            throw system_error{export_error(), why_not_exported()};
        context_scope const scope{on};
        CUdeviceptr seen_at = 0;
        set_in_reach(scope.status() == CUDA_SUCCESS &&
                     on.calls().cuPointerGetAttribute(&seen_at, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, begin) ==
                         CUDA_SUCCESS &&
                     seen_at == begin);
    }
    adopted_memory(adopted_memory const&) = delete;
    adopted_memory& operator=(adopted_memory const&) = delete;
    ~adopted_memory() override { finish_copies(); }

    [[nodiscard]] std::string explain() const override
    {
        auto const after = given_ - before_ - span().size();
        auto text = fmt::format("adopted memory of GPU {} ({}), {}, {}", on().ordinal(), on().name(),
                                size_text(span().size()), text_of_export(on(), *this, exported_for_pcie()));
        if (before_ + after > 0)
            text += fmt::format("; not used, as they are no whole pages: {} before and {} after", size_text(before_),
                                size_text(after));
        return text;
    }

  private:
    std::shared_ptr<void const> owner_;
    std::size_t given_;
    std::size_t before_ = 0;
};

// That the driver exports by itself: one for CUDA 13.0 or later, and a GPU without memory of its own.
class pinned_memory final : public cuda_memory {
  public:
    pinned_memory(gpu& on, std::size_t bytes) : cuda_memory{on}
    {
        auto const page = sys::page_size();
        auto const size = round_up(bytes, page);
        context_scope const scope{on};
        check(scope.status(), "use", fmt::format("GPU {}", on.ordinal()));
        check(on.calls().cuMemHostAlloc(&bytes_, size, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP), "pin",
              size_text(size) + " of host memory");
        publish({memory_kind::host, reinterpret_cast<std::uintptr_t>(bytes_), size}, page);
    }
    pinned_memory(pinned_memory const&) = delete;
    pinned_memory& operator=(pinned_memory const&) = delete;
    ~pinned_memory() override
    {
        finish_copies();
        context_scope const scope{on()};
        if (scope.status() == CUDA_SUCCESS)
            static_cast<void>(on().calls().cuMemFreeHost(bytes_));
    }

    [[nodiscard]] std::string explain() const override
    {
        return fmt::format("host memory pinned for GPU {} ({}), {}, {}", on().ordinal(), on().name(),
                           size_text(span().size()), text_of_export(on(), *this, exported_for_pcie()));
    }

  private:
    void* bytes_ = nullptr;
};

// Memory that udmabuf exports, pinned for the GPU afterwards: everywhere else.
class registered_memory final : public cuda_memory {
  public:
    registered_memory(gpu& on, std::size_t bytes) : cuda_memory{on}, host_{make_host_memory(bytes)}
    {
        auto const size = host_->span().size();
        context_scope const scope{on};
        check(scope.status(), "use", fmt::format("GPU {}", on.ordinal()));
        check(on.calls().cuMemHostRegister(address(), size, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
              "pin", size_text(size) + " of host memory");
        place(host_->span(), host_->page_size());
        set_export(host_->dmabuf_fd(), host_->export_error(), host_->why_not_exported());
    }
    registered_memory(registered_memory const&) = delete;
    registered_memory& operator=(registered_memory const&) = delete;
    ~registered_memory() override
    {
        finish_copies();
        context_scope const scope{on()};
        if (scope.status() == CUDA_SUCCESS)
            static_cast<void>(on().calls().cuMemHostUnregister(address()));
    }

    [[nodiscard]] std::string explain() const override
    {
        return fmt::format("host memory pinned for GPU {} ({}): {}", on().ordinal(), on().name(), host_->explain());
    }
    void acquire(cuda_stream_ref stream) noexcept override { host_->acquire(stream); }
    [[nodiscard]] unique_fd export_part(int like, std::size_t offset, std::size_t size, error_code& code,
                                        diagnostics& why) override
    {
        return host_->export_part(like, offset, size, code, why);
    }

  private:
    [[nodiscard]] void* address() const noexcept { return reinterpret_cast<void*>(host_->span().address()); }

    std::shared_ptr<memory_state> host_;
};

// What the driver says about an address that a program gives.
struct pointer_facts {
    unsigned type = 0;
    int ordinal = no_gpu;
    unsigned managed = 0;
    CUmemoryPool pool = nullptr;
    unsigned rdma = 0;
    CUdeviceptr start = 0;
    std::size_t size = 0;
};

pointer_facts facts_of(driver const& calls, std::uintptr_t address)
{
    pointer_facts facts;
    // One by one: an attribute that a driver does not know must not hide the others.
    auto const ask = [&](auto& into, CUpointer_attribute attribute) {
        auto const before = into;
        if (calls.cuPointerGetAttribute(&into, attribute, address) != CUDA_SUCCESS)
            into = before;
    };
    ask(facts.type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    ask(facts.ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
    ask(facts.managed, CU_POINTER_ATTRIBUTE_IS_MANAGED);
    ask(facts.pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
    ask(facts.rdma, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE);
    if (facts.type != CU_MEMORYTYPE_DEVICE || facts.ordinal < 0)
        return facts;
    // (RANGE_SIZE would be what addresses were reserved for, where memory is mapped.)
    context_scope const scope{gpu::open(facts.ordinal)};
    if (scope.status() != CUDA_SUCCESS ||
        calls.cuMemGetAddressRange(&facts.start, &facts.size, address) != CUDA_SUCCESS)
        facts.size = 0;
    return facts;
}

// Why memory cannot be adopted; empty: it can, as far as the driver says in advance.
std::string reason_against(pointer_facts const& facts)
{
    if (facts.managed != 0)
        return "managed memory moves between GPU and host: use cudaMalloc, or device_memory::on_gpu";
    if (facts.type == CU_MEMORYTYPE_HOST)
        return "the address is in host memory: use device_memory::on_pinned_host";
    if (facts.type != CU_MEMORYTYPE_DEVICE)
        return "the address is not in GPU memory";
    if (facts.pool != nullptr)
        return "memory of a stream-ordered pool (cudaMallocAsync) cannot be exported: use cudaMalloc, or on_gpu";
    if (facts.rdma == 0)
        return "it was allocated without GPUDirect RDMA: set CUmemAllocationProp::allocFlags.gpuDirectRDMACapable";
    return {};
}

// Of a range, which may be of several mappings in a row (PyTorch's expandable_segments), and no two are alike for sure.
std::string reason_against(driver const& calls, std::uintptr_t address, std::size_t bytes)
{
    auto const first = facts_of(calls, address);
    if (auto reason = reason_against(first); !reason.empty())
        return reason;
    if (first.size == 0)
        return "the driver does not report its end";
    for (auto end = first.start + first.size; end - address < bytes;) {
        auto const next = facts_of(calls, end);
        if (next.ordinal != first.ordinal || next.start != end || next.size == 0)
            return fmt::format(
                "the allocation ends {} after the address: the memory must be one allocation, or mappings without a "
                "gap",
                size_text(end - address));
        if (auto const reason = reason_against(next); !reason.empty())
            return fmt::format("{} after the address another allocation begins: {}", size_text(end - address), reason);
        end += next.size;
    }
    return {};
}

// The context that a program uses memory of the GPU in, as far as that shows: the memory's, or the current one.
CUcontext context_of_program(gpu const& on, std::uintptr_t address) noexcept
{
    CUcontext context = nullptr;
    CUdevice device = 0;
    if (on.calls().cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS &&
        context != nullptr)
        return context;
    if (on.calls().cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr &&
        on.calls().cuCtxGetDevice(&device) == CUDA_SUCCESS && device == on.device())
        return context;
    return on.context();
}

std::shared_ptr<memory_state> shared(memory_state* made)
{
    return {made, end_memory};
}

}  // namespace

}  // namespace gpurx::detail::cuda

namespace gpurx::detail {

std::shared_ptr<memory_state> make_gpu_memory(int ordinal, std::size_t bytes)
{
    auto& on = cuda::gpu::open(ordinal);
    on.prepare(on.context());  // what is received here is gathered, and not to load the kernels then
    cuda::check_size(bytes, cuda::object_of(on, bytes));
    return cuda::shared(new cuda::gpu_memory{on, bytes});
}

std::shared_ptr<memory_state> make_pinned_memory(int ordinal, std::size_t bytes)
{
    auto& on = cuda::gpu::open(ordinal);
    on.prepare(on.context());
    cuda::check_size(bytes, size_text(bytes) + " of pinned host memory");
    if (on.facts().host_dmabuf)
        return cuda::shared(new cuda::pinned_memory{on, bytes});
    return cuda::shared(new cuda::registered_memory{on, bytes});
}

std::shared_ptr<memory_state> adopt_gpu_memory(std::uintptr_t address, std::size_t bytes,
                                               std::shared_ptr<void const> owner)
{
    auto const& calls = cuda::require_driver();
    auto const object = fmt::format("{} at {:#x}", size_text(bytes), address);
    if (bytes == 0)
        fail(EINVAL, "adopt", object, "give at least one page");
    if (auto const reason = cuda::reason_against(calls, address, bytes); !reason.empty())
        fail(EINVAL, "adopt", object, reason);
    auto& on = cuda::gpu::open(cuda::facts_of(calls, address).ordinal);
    on.prepare(cuda::context_of_program(on, address));
    return cuda::shared(new cuda::adopted_memory{on, address, bytes, std::move(owner)});
}

}  // namespace gpurx::detail
