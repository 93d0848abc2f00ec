// SPDX-License-Identifier: Apache-2.0
//
// The steady clock of a program that links this, in the place of the standard library's: a fake_clock can hold it. What
// the kernel says of the time since a socket's last data is said in the same time.
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "fake_clock.hpp"

namespace {

[[maybe_unused]] bool const linked = gpurx::test::fake_clock::link();

using getsockopt_function = int(int, int, int, void*, socklen_t*);

// tcpi_bytes_received, which the C library's tcp_info does not have.
std::uint64_t bytes_received(int socket, getsockopt_function* get)
{
    constexpr std::size_t offset = 128;
    std::uint64_t count = 0;
    std::array<std::byte, offset + sizeof count> info{};
    socklen_t size = info.size();
    if (get(socket, IPPROTO_TCP, TCP_INFO, info.data(), &size) == 0)
        std::memcpy(&count, info.data() + offset, sizeof count);
    return count;
}

}  // namespace

// NOLINTNEXTLINE(cert-dcl58-cpp)
std::chrono::steady_clock::time_point std::chrono::steady_clock::now() noexcept
{
    timespec real{};
    ::clock_gettime(CLOCK_MONOTONIC, &real);
    return time_point{
        gpurx::test::fake_clock::shown(std::chrono::seconds{real.tv_sec} + std::chrono::nanoseconds{real.tv_nsec})};
}

extern "C" int getsockopt(int socket, int level, int name, void* value, socklen_t* size) noexcept
{
    static auto* const next = reinterpret_cast<getsockopt_function*>(::dlsym(RTLD_NEXT, "getsockopt"));
    auto const result = next(socket, level, name, value, size);
    // By the system call: ThreadSanitizer takes the C library's for a race with a close in another thread.
    struct stat file {};
    if (result != 0 || level != IPPROTO_TCP || name != TCP_INFO || *size < sizeof(tcp_info) ||
        ::syscall(SYS_fstat, socket, &file) != 0)
        return result;
    if (auto const arrival = gpurx::test::fake_clock::arrival(file.st_ino, bytes_received(socket, next))) {
        using milliseconds = std::chrono::duration<std::uint32_t, std::milli>;
        auto const silent = std::chrono::steady_clock::now() - *arrival;
        static_cast<tcp_info*>(value)->tcpi_last_data_recv = std::chrono::duration_cast<milliseconds>(silent).count();
    }
    return result;
}
