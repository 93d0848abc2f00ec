// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <cstring>
#include <gpurx/local_gpu.hpp>
#include <gpurx/memory.hpp>
#include <optional>

#include "memory/memory_state.hpp"
#include "session/session_state.hpp"

using Catch::Matchers::ContainsSubstring;
using gpurx::device_memory;
using gpurx::detail::export_advice;

namespace {

gpurx::error_code from_errno(int value)
{
    return {value, boost::system::system_category()};
}

std::byte* bytes_of(device_memory const& memory)
{
    return reinterpret_cast<std::byte*>(memory.span().address());
}

}  // namespace

TEST_CASE("host memory is whole pages of zeroed, writable bytes")
{
    auto const memory = device_memory::on_host(5000);
    REQUIRE(memory.valid());
    CHECK(memory.kind() == gpurx::memory_kind::host);
    CHECK(memory.size() >= 5000);
    CHECK(memory.size() % static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) == 0);
    CHECK(memory.span().size() == memory.size());
    for (std::size_t i = 0; i < memory.size(); ++i)
        REQUIRE(bytes_of(memory)[i] == std::byte{0});
    std::memset(bytes_of(memory), 0x5a, memory.size());
    CHECK(bytes_of(memory)[memory.size() - 1] == std::byte{0x5a});
    CHECK_THAT(memory.explain(), ContainsSubstring("host memory"));
}

TEST_CASE("copies of a handle name the same bytes and keep them")
{
    device_memory copy;
    CHECK_FALSE(copy.valid());
    {
        auto const memory = device_memory::on_host(1);
        copy = memory;
        bytes_of(memory)[0] = std::byte{7};
    }
    REQUIRE(copy.valid());
    CHECK(bytes_of(copy)[0] == std::byte{7});
}

TEST_CASE("zero bytes, and more bytes than there can be, are refused")
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    CHECK_FALSE(device_memory::on_host(0, code, why).valid());
    CHECK(code == boost::system::errc::invalid_argument);
    CHECK_FALSE(why.advice.empty());

    for (std::size_t const bytes : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4}) {
        CHECK_FALSE(device_memory::on_host(bytes, code, why).valid());
        CHECK(code.failed());
    }
    CHECK_THROWS_AS(device_memory::on_host(0), gpurx::system_error);

    CHECK(device_memory::on_host(1, code, why).valid());
    CHECK_FALSE(code.failed());
    CHECK(why == gpurx::diagnostics{});
}

TEST_CASE("an error of GPU memory has the missing part and advice")
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    if (device_memory::on_gpu(0, 1 << 20, code, why).valid())
        SKIP("there is a GPU here");
    CHECK(code == gpurx::errc::no_cuda);
    auto const text = describe(code, why);
    CHECK_THAT(text, ContainsSubstring("built without CUDA") || ContainsSubstring("install the NVIDIA driver"));
    CHECK_THAT(text, ContainsSubstring("on_host"));
    CHECK_THROWS_AS(device_memory::on_gpu(0, 1), gpurx::system_error);
    CHECK_FALSE(device_memory::on_pinned_host(1, 0, code, why).valid());
    CHECK(code == gpurx::errc::no_cuda);
    CHECK_FALSE(device_memory::adopt(4096, 4096, {}, code, why).valid());
    CHECK(code == gpurx::errc::no_cuda);
    CHECK(gpurx::local_gpu(code, why) == -1);
    CHECK(code == gpurx::errc::no_cuda);
    CHECK_THROWS_AS(gpurx::local_gpu(), gpurx::system_error);
}

TEST_CASE("host memory is exported if /dev/udmabuf allows it, and has the reason if not")
{
    auto const memory = device_memory::on_host(1 << 20);
    auto const& state = *gpurx::detail::session_access::state(memory);
    if (::access("/dev/udmabuf", R_OK | W_OK) != 0) {
        CHECK(memory.dmabuf_fd() == -1);
        CHECK(state.export_error() == from_errno(errno));
        CHECK_THAT(memory.explain(), ContainsSubstring("transport copy only") && ContainsSubstring("/dev/udmabuf"));
        SKIP("the dmabuf itself: /dev/udmabuf is not usable here: " << std::strerror(errno));
    }
    REQUIRE(memory.dmabuf_fd() >= 0);
    CHECK_FALSE(state.export_error().failed());
    CHECK(state.why_not_exported() == gpurx::diagnostics{});
    CHECK_THAT(memory.explain(), ContainsSubstring("exported by udmabuf"));
    CHECK((::fcntl(memory.dmabuf_fd(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(static_cast<std::size_t>(::lseek(memory.dmabuf_fd(), 0, SEEK_END)) == memory.size());
    // Both names, the same bytes.
    auto* const mapped = ::mmap(nullptr, memory.size(), PROT_READ | PROT_WRITE, MAP_SHARED, memory.dmabuf_fd(), 0);
    REQUIRE(mapped != MAP_FAILED);
    static_cast<unsigned char*>(mapped)[4097] = 0xa7;
    CHECK(bytes_of(memory)[4097] == std::byte{0xa7});
    ::munmap(mapped, memory.size());
}

TEST_CASE("advice has the change for a refusal of udmabuf")
{
    struct row {
        int error;
        std::size_t bytes;
        std::optional<std::size_t> limit;
        char const* advice;  // null: none
    };
    auto const mebibyte = std::size_t{1} << 20;
    for (auto const& [error, bytes, limit, advice] : {
             row{ENOENT, 1, {}, "modprobe udmabuf"},
             row{ENODEV, 1, {}, "CONFIG_UDMABUF"},
             row{ENXIO, 1, {}, "modprobe udmabuf"},
             row{EACCES, 1, {}, "access to /dev/udmabuf"},
             row{EPERM, 1, {}, "access to /dev/udmabuf"},
             row{EINVAL, 65 * mebibyte, 64, "udmabuf.size_limit_mb, which is 64, to at least 65"},
             row{EINVAL, 64 * mebibyte + 1, 64, "to at least 65"},
             row{EINVAL, 64 * mebibyte, 64, nullptr},
             row{EINVAL, 65 * mebibyte, {}, nullptr},
             row{ENOMEM, 1, {}, "less memory"},
             row{EMFILE, 1, {}, nullptr},
         }) {
        CAPTURE(error, bytes);
        auto const text = export_advice(from_errno(error), bytes, limit);
        if (advice == nullptr)
            CHECK(text.empty());
        else
            CHECK_THAT(text, ContainsSubstring(advice));
    }
}
