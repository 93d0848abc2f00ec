// SPDX-License-Identifier: Apache-2.0
#include "fake_ring.hpp"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace gpurx::test {

namespace {

using detail::uapi::zcrx::cqe;

// Offsets of the words that the owner reads; the rest of the first page has the places of the entries.
constexpr std::uint32_t sq_head = 0;
constexpr std::uint32_t sq_tail = 64;
constexpr std::uint32_t cq_head = 128;
constexpr std::uint32_t cq_tail = 192;
constexpr std::uint32_t sq_array = 256;
constexpr std::uint32_t cq_overflow = 512;
constexpr std::uint32_t cqes = 1024;

pid_t this_thread()
{
    return static_cast<pid_t>(::syscall(SYS_gettid));
}

void require(bool works)
{
    if (!works)
        std::abort();
}

}  // namespace

shared_file::shared_file(std::size_t size) : size_{size}, fd_{::memfd_create("fake ring", MFD_CLOEXEC)}
{
    struct stat status {};
    require(fd_ >= 0 && ::ftruncate(fd_, static_cast<off_t>(size)) == 0 && ::fstat(fd_, &status) == 0);
    device_ = status.st_dev;
    inode_ = status.st_ino;
    auto* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
    require(mapped != MAP_FAILED);
    start_ = static_cast<std::byte*>(mapped);
}

shared_file::~shared_file()
{
    ::munmap(start_, size_);
    if (fd_ >= 0)
        ::close(fd_);
}

bool shared_file::is_open() const
{
    auto* const directory = ::opendir("/proc/self/fd");
    bool found = false;
    while (auto const* const entry = found ? nullptr : ::readdir(directory)) {
        // By its name: to use the descriptor of another thread's file is a race.
        struct stat status {};
        found = ::stat((std::string{"/proc/self/fd/"} + entry->d_name).c_str(), &status) == 0 &&
                status.st_ino == inode_ && status.st_dev == device_;
    }
    ::closedir(directory);
    return found;
}

int shared_file::hand_out() noexcept
{
    return std::exchange(fd_, -1);
}

fake_ring::fake_ring(unsigned entries, io_uring_params& params)
    : disabled_{(params.flags & IORING_SETUP_R_DISABLED) != 0},
      submitter_{this_thread()},
      params_{params},
      file_{region_offset + region_size}
{
    params_.sq_entries = std::bit_ceil(entries);
    params_.cq_entries = std::bit_ceil(params.cq_entries);
    params_.sq_off = {};
    params_.sq_off.head = sq_head;
    params_.sq_off.tail = sq_tail;
    params_.sq_off.array = sq_array;
    params_.cq_off = {};
    params_.cq_off.head = cq_head;
    params_.cq_off.tail = cq_tail;
    params_.cq_off.overflow = cq_overflow;
    params_.cq_off.cqes = cqes;
    params = params_;
}

bool fake_ring::is_of_this_thread() const noexcept
{
    return submitter_ == this_thread();
}

void fake_ring::enable() noexcept
{
    disabled_ = false;
    submitter_ = this_thread();
}

std::uint32_t& fake_ring::word(std::uint32_t offset) const noexcept
{
    return *reinterpret_cast<std::uint32_t*>(file_.at(offset));
}

std::optional<io_uring_sqe> fake_ring::next()
{
    auto const at = word(sq_head);
    if (at == std::atomic_ref{word(sq_tail)}.load(std::memory_order_acquire))
        return std::nullopt;
    auto const mask = params_.sq_entries - 1;
    auto const place = word(static_cast<std::uint32_t>(sq_array + (at & mask) * sizeof(std::uint32_t)));
    io_uring_sqe entry;
    std::memcpy(&entry, file_.at(IORING_OFF_SQES + place * sizeof entry), sizeof entry);
    word(sq_head) = at + 1;
    return entry;
}

std::size_t fake_ring::completions() const noexcept
{
    return word(cq_tail) - std::atomic_ref{word(cq_head)}.load(std::memory_order_acquire);
}

bool fake_ring::has_room() const noexcept
{
    return kept_.empty() && completions() < params_.cq_entries;
}

void fake_ring::lose()
{
    std::atomic_ref{word(cq_overflow)}.fetch_add(1);
}

void fake_ring::post(cqe const& completion)
{
    if (!has_room()) {
        kept_.push_back(completion);
        return;
    }
    auto const tail = word(cq_tail);
    std::memcpy(file_.at(cqes + (tail & (params_.cq_entries - 1)) * sizeof completion), &completion, sizeof completion);
    std::atomic_ref{word(cq_tail)}.store(tail + 1, std::memory_order_release);
}

void fake_ring::flush()
{
    for (auto waiting = std::exchange(kept_, {}); !waiting.empty(); waiting.pop_front())
        post(waiting.front());
}

}  // namespace gpurx::test
