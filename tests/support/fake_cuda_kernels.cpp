// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the fake CUDA driver: the PTX of the image that is loaded, by the interpreter (ptx_machine.hpp). What the
// library's own kernels (framework/src/cuda/gather.cu) are to write is known here, so that each launch of them is
// watched: each byte of the destination once, and nothing else. To be changed with their parameters.
//
// From the environment, when the process starts:
//   GPURX_FAKE_CUDA_TEXT  80, 90 (an H100, the default) or 100: the GPU whose text of the library's kernels is run
//   GPURX_FAKE_CUDA_SEED  a number: warps and lanes that have parted take turns by chance from here on, a new one for
//                         each launch; without, in order
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "cuda/gather_piece.hpp"
#include "fake_cuda_state.hpp"
#include "ptx_image.hpp"

// The texts that the machine code for different GPUs is made of: what the library carries has machine code for an H100,
// and text for others only.
extern "C" unsigned char const gpurx_gather_texts[];

namespace fake_cuda::inside {

namespace {

using namespace gpurx::detail;

// An H100.
constexpr unsigned default_gpu = 90;

std::optional<unsigned long long> number_in_environment(char const* name)
{
    auto const* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody changes it
    if (text == nullptr || *text == '\0')
        return std::nullopt;
    char* end = nullptr;
    auto const number = std::strtoull(text, &end, 10);
    if (*end != '\0') {
        std::fprintf(stderr, "fake CUDA driver: %s is no number: %s\n", name, text);
        std::abort();
    }
    return number;
}

unsigned gpu_of_texts()
{
    static auto const chosen =
        static_cast<unsigned>(number_in_environment("GPURX_FAKE_CUDA_TEXT").value_or(default_gpu));
    return chosen;
}

// Another for each launch.
std::optional<std::uint64_t> next_seed()
{
    static auto const first = number_in_environment("GPURX_FAKE_CUDA_SEED");
    static std::atomic<std::uint64_t> launches{0};
    if (!first)
        return std::nullopt;
    return *first + launches++;
}

std::string text_of(void const* image, unsigned gpu)
{
    return std::string{ptx::text_in({static_cast<std::byte const*>(image), ptx::size_of_image(image)}, gpu)};
}

// As a structure of the parameters in a row is laid out, so are they.
struct gather_crc_parameters {
    gather_arguments all;
    gather_crc_arguments crc;
};

template <class Parameters>
Parameters read(parameter_block const& from)
{
    Parameters parameters;
    std::memcpy(&parameters, from.data(), sizeof parameters);
    return parameters;
}

bool is_gather(ptx::kernel const& code)
{
    return code.name == "gpurx_gather" || code.name == "gpurx_gather_crc";
}
bool has_crc(ptx::kernel const& code)
{
    return code.name == "gpurx_gather_crc";
}

template <class T>
range range_of(T const* object)
{
    return {address_of(object), sizeof *object};
}

range pieces_of(gather_arguments const& all)
{
    return {address_of(all.pieces), all.count * sizeof(gather_piece)};
}

// Memory as a kernel on this stream sees it. What it looked at is in use while it runs.
class stream_memory : public ptx::memory {
  public:
    explicit stream_memory(stream& on) : on_{on} {}
    std::optional<ptx::view> look(std::uint64_t address) override
    {
        auto& s = all();
        guard const lock{s.mutex};
        auto const there = around(s, address);
        auto* const bytes = there.size == 0 ? nullptr : translate(s, there, {reader::kind::kernel, on_.of.get()});
        if (bytes == nullptr)
            return std::nullopt;
        on_.in_use.push_back(there);
        // A GPU's accesses end with an aligned vector, whatever the program asked for.
        auto const before = there.begin % vector_bytes;
        auto const after = (vector_bytes - (there.begin + there.size) % vector_bytes) % vector_bytes;
        return ptx::view{there.begin - before, before + there.size + after, bytes - before};
    }

  private:
    // The allocation, or the part of a reservation that is mapped in one.
    static range around(state& s, std::uint64_t address)
    {
        auto const found = find_region(s, address);
        if (!found)
            return {};
        if (found->kind != region_kind::reservation)
            return found->addresses;
        auto const after = found->mappings.upper_bound(address - found->addresses.begin);
        if (after == found->mappings.begin())
            return {};
        auto const& [start, mapped] = *std::prev(after);
        range const there{found->addresses.begin + start, mapped.size};
        return there.holds({address, 1}) ? there : range{};
    }

    stream& on_;
};

// The CPU's view of an object that a kernel on this stream is to use; null if there is none.
template <class T>
T* find(stream const& on, T* object, std::size_t count = 1)
{
    auto& s = all();
    guard const lock{s.mutex};
    return reinterpret_cast<T*>(
        translate(s, {address_of(object), count * sizeof(T)}, {reader::kind::kernel, on.of.get()}));
}

void violate(std::string what)
{
    auto& s = all();
    guard const lock{s.mutex};
    s.violate(std::move(what));
}

// What the launch is to write.
void expect_writes(stream const& on, ptx::kernel const& code, parameter_block const& parameters, ptx::launch& how)
{
    auto const all = read<gather_arguments>(parameters);
    auto const* const pieces = find(on, all.pieces, all.count);
    if (pieces == nullptr)
        return;
    how.writes.emplace();
    for (std::uint32_t i = 0; i < all.count; ++i)
        if (pieces[i].source != all.destination + pieces[i].offset)
            how.writes->push_back({all.destination + pieces[i].offset, pieces[i].size});
    if (!has_crc(code))
        return;
    auto const crc = read<gather_crc_parameters>(parameters).crc;
    how.writes->push_back({address_of(crc.result), sizeof *crc.result});
    how.may_write.push_back({address_of(crc.state), sizeof *crc.state});
}

// One launch's hold on the sum that it adds to: a second one at the same time would mix the two.
class state_in_use {
  public:
    explicit state_in_use(std::uint64_t address) : address_{address}
    {
        auto& s = all();
        guard const lock{s.mutex};
        first_ = s.sums_in_use.insert(address).second;
        if (!first_)
            s.violate("gpurx_gather_crc with a state that is in use");
    }
    state_in_use(state_in_use const&) = delete;
    state_in_use& operator=(state_in_use const&) = delete;
    ~state_in_use()
    {
        auto& s = all();
        guard const lock{s.mutex};
        if (first_)
            s.sums_in_use.erase(address_);
    }

  private:
    std::uint64_t address_;
    bool first_ = false;
};

CUresult run(stream& on, ptx::kernel const& code, ptx::launch const& how)
{
    stream_memory memory{on};
    auto done = ptx::run(code, how, memory);
    if (done.fault) {
        // A test may want memory that is not there; nothing else that is a fault.
        if (done.fault_of_memory)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        violate(*done.fault);
        return CUDA_ERROR_LAUNCH_FAILED;
    }
    for (auto& wrong : done.violations)
        violate(code.name + ": " + std::move(wrong));
    auto& s = all();
    guard const lock{s.mutex};
    if (how.writes)
        for (auto const& written : *how.writes)
            count_written(s, written.begin, written.size);
    return CUDA_SUCCESS;
}

}  // namespace

std::shared_ptr<ptx::kernels const> load_image(state& s, void const* image)
{
    // The same image is loaded over and over.
    static auto& known = *new std::map<std::string, std::shared_ptr<ptx::kernels const>, std::less<>>;
    auto text = text_of(image, default_gpu);
    if (text.find(".entry gpurx_gather(") != std::string::npos)
        text = text_of(gpurx_gather_texts, gpu_of_texts());
    if (text.empty())
        return nullptr;
    auto& kernels = known[text];
    try {
        if (!kernels)
            kernels = std::make_shared<ptx::kernels const>(ptx::parse(text));
    } catch (ptx::parse_error const& wrong) {
        s.violate(wrong.what());
    }
    return kernels;
}

// PTX 8.3 came with CUDA 12.3, and 9.0 with CUDA 13.0.
int driver_version_for(void const* image)
{
    constexpr std::string_view directive = ".version ";
    auto const text = text_of(image, default_gpu);
    auto const at = text.find(directive);
    int major = 0;
    int minor = 0;
    if (at == std::string::npos || std::sscanf(&text[at + directive.size()], "%d.%d", &major, &minor) != 2)
        return 0;
    return (major + 4) * 1000 + minor * 10;
}

// Pieces in device memory may be written only just before the kernel runs; those in host memory are there already.
std::vector<range> kernel_uses(ptx::kernel const& code, host_bytes const& of_host, parameter_block const& parameters)
{
    if (!is_gather(code))
        return {};
    auto const all = read<gather_arguments>(parameters);
    auto const list = pieces_of(all);
    std::vector<range> used{list};
    auto const* const pieces = reinterpret_cast<gather_piece const*>(of_host(list));
    for (std::uint32_t i = 0; pieces != nullptr && i < all.count; ++i) {
        used.push_back({pieces[i].source, pieces[i].size});
        used.push_back({all.destination + pieces[i].offset, pieces[i].size});
    }
    if (has_crc(code)) {
        auto const crc = read<gather_crc_parameters>(parameters).crc;
        used.insert(used.end(), {range_of(crc.tables), range_of(crc.state), range_of(crc.result)});
    }
    return used;
}

CUresult run_kernel(stream& on, ptx::kernel const& code, unsigned blocks, unsigned threads,
                    parameter_block const& parameters)
{
    ptx::launch how;
    how.blocks = blocks;
    how.threads = threads;
    how.parameters = parameters;
    how.seed = next_seed();
    if (is_gather(code))
        expect_writes(on, code, parameters, how);
    if (!has_crc(code))
        return run(on, code, how);
    auto* const sum = read<gather_crc_parameters>(parameters).crc.state;
    state_in_use const held{address_of(sum)};
    auto const* const before = find(on, sum);
    if (before != nullptr && (before->sum != 0 || before->blocks != 0))
        violate("gpurx_gather_crc with a state that is in use");
    return run(on, code, how);
}

}  // namespace fake_cuda::inside
