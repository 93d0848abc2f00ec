// SPDX-License-Identifier: Apache-2.0
#include <gpurx/error.hpp>
#include <utility>

namespace gpurx {

namespace {

class category final : public boost::system::error_category {
  public:
    // The id makes codes equal across copies of the library in one process. A random number.
    constexpr category() noexcept : error_category{0x6f1b'92d4'0c57'a3e8} {}

    [[nodiscard]] char const* name() const noexcept override { return "gpurx"; }
    [[nodiscard]] std::string message(int value) const override { return text(value); }
    [[nodiscard]] char const* message(int value, char* /*buffer*/, std::size_t /*size*/) const noexcept override
    {
        return text(value);
    }

  private:
    static char const* text(int value) noexcept
    {
        switch (static_cast<errc>(value)) {
            case errc::already_running:
                return "another receive or read is pending on this receiver";
            case errc::transport_unavailable:
                return "the requested transport cannot work here";
            case errc::no_cuda:
                return "no CUDA: gpurx was built without it, or no driver is installed";
            case errc::memory_too_small:
                return "the memory is too small for max_flows flows";
            case errc::too_many_flows:
                return "the session already has max_flows flows";
            case errc::memory_locked_up:
                return "out-of-order data holds every page of the memory: the flow cannot continue";
            case errc::foreign_memory:
                return "data arrived in device memory that belongs to no session of this process";
            case errc::mixed_fragments:
                return "a segment lies partly in device memory and partly in host memory: a fault of the NIC driver";
            case errc::queue_busy:
                return "another program uses the queue";
            case errc::journal_invalid:
                return "the journal file is damaged or not from gpurx";
            case errc::bad_destination:
                return "the destination has the wrong size or lies in memory that cannot be written here";
            case errc::wrong_gpu:
                return "the stream belongs to another GPU than the memory";
            case errc::unusable_stream:
                return "the stream is being captured, or is CU_STREAM_PER_THREAD";
            case errc::beyond_loan_limit:
                return "the bytes exceed the flow's loan limit";
        }
        return "unknown gpurx error";
    }
};

constinit category const the_category;

}  // namespace

boost::system::error_category const& gpurx_category() noexcept
{
    return the_category;
}

error_code make_error_code(errc value) noexcept
{
    return {static_cast<int>(value), gpurx_category()};
}

void diagnostics::clear() noexcept
{
    operation.clear();
    object.clear();
    kernel_message.clear();
    advice.clear();
}

std::string describe(error_code code, diagnostics const& why)
{
    std::string text = why.operation;
    auto const append = [&text](char const* separator, std::string const& part) {
        if (part.empty())
            return;
        if (!text.empty())
            text += separator;
        text += part;
    };
    append(" ", why.object);
    if (!why.kernel_message.empty())
        append(" ", "(kernel: " + why.kernel_message + ")");
    append(": ", code.message());
    append("; ", why.advice);
    return text;
}

system_error::system_error(error_code code, diagnostics why)
    : boost::system::system_error{code}, why_{std::move(why)}, text_{describe(code, why_)}
{}

}  // namespace gpurx
