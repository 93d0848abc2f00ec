// SPDX-License-Identifier: Apache-2.0
#include "disk_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <boost/asio/append.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/query.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/errc.hpp>
#include <cerrno>
#include <csignal>
#include <gpurx/ingest/error.hpp>
#include <utility>

namespace gpurx::ingest::detail {

namespace {

// Where the kernel does not say it: what every disk is content with.
constexpr std::uint64_t usual_alignment = 4096;

error_code last_error() noexcept
{
    return {errno, boost::system::system_category()};
}

error_code system_code(boost::system::errc::errc_t value) noexcept
{
    return {static_cast<int>(value), boost::system::system_category()};
}

char const* kind_of(mode_t mode) noexcept
{
    if (S_ISDIR(mode))
        return "a directory";
    if (S_ISFIFO(mode))
        return "a FIFO";
    if (S_ISCHR(mode) || S_ISBLK(mode))
        return "a device";
    return "no file";
}

// False: the file system says that there is none.
bool ask_alignment(int descriptor, read_alignment& needed) noexcept
{
    needed = {.offset = usual_alignment, .memory = usual_alignment};
#ifdef STATX_DIOALIGN
    struct statx found {};
    if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &found) != 0 || (found.stx_mask & STATX_DIOALIGN) == 0)
        return true;
    if (found.stx_dio_offset_align == 0 || found.stx_dio_mem_align == 0)
        return false;
    needed = {.offset = found.stx_dio_offset_align, .memory = found.stx_dio_mem_align};
#endif
    return true;
}

// Enough for a disk to have work; more wait for each other in the kernel.
constexpr std::size_t thread_count = 8;
constexpr auto with_job_code = asio::as_tuple(asio::use_awaitable);

// The program's signals are for its own threads.
std::unique_ptr<asio::thread_pool> threads_without_signals()
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    auto threads = std::make_unique<asio::thread_pool>(thread_count);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return threads;
}

}  // namespace

disk_file::~disk_file()
{
    for (auto const each : {descriptor_, direct_}) {
        if (each >= 0)
            ::close(each);
    }
}

error_code disk_file::open(std::string const& path, std::string& advice)
{
    // Without O_NONBLOCK to open a FIFO would wait for a writer.
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat found {};
    if (descriptor_ < 0 || ::fstat(descriptor_, &found) != 0) {
        auto const code = last_error();
        if (code == boost::system::errc::no_such_file_or_directory && !path.starts_with('/'))
            advice = "the path is relative to the working directory; a URL begins with http, https, s3 or hf, then ://";
        return code;
    }
    if (!S_ISREG(found.st_mode)) {
        advice = fmt::format("it is {}; only regular files can be loaded", kind_of(found.st_mode));
        return system_code(S_ISDIR(found.st_mode) ? boost::system::errc::is_a_directory
                                                  : boost::system::errc::invalid_argument);
    }
    facts_ = {.device = found.st_dev,
              .number = found.st_ino,
              .size = static_cast<std::uint64_t>(found.st_size),
              .seconds = found.st_mtim.tv_sec,
              .nanoseconds = found.st_mtim.tv_nsec};
    return {};
}

std::string disk_file::tag() const
{
    return fmt::format("\"{:x}-{:x}-{:x}-{:x}.{:09}\"", facts_.device, facts_.number, facts_.size, facts_.seconds,
                       facts_.nanoseconds);
}

error_code disk_file::check_unchanged() const noexcept
{
    struct stat found {};
    if (::fstat(descriptor_, &found) != 0)
        return last_error();
    facts const now{.device = found.st_dev,
                    .number = found.st_ino,
                    .size = static_cast<std::uint64_t>(found.st_size),
                    .seconds = found.st_mtim.tv_sec,
                    .nanoseconds = found.st_mtim.tv_nsec};
    return now == facts_ ? error_code{} : errc::object_changed;
}

void disk_file::read_directly()
{
    read_alignment needed;
    if (direct_ >= 0 || !ask_alignment(descriptor_, needed))
        return;
    // That very file, whatever its name stands for by now.
    direct_ = ::open(fmt::format("/proc/self/fd/{}", descriptor_).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (direct_ < 0)
        return;
    reads_directly_ = true;
    aligned_ = needed;
}

error_code disk_file::read(std::uint64_t offset, std::span<std::byte> to, std::size_t needed) noexcept
{
    for (std::size_t done = 0; done < needed;) {
        auto const directly = reads_directly_.load();
        auto const from = directly ? direct_ : descriptor_;
        auto const more = ::pread(from, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
        if (more > 0) {
            done += static_cast<std::size_t>(more);
            continue;
        }
        if (more == 0)
            return errc::object_changed;
        auto const code = last_error();
        if (code.value() == EINTR)
            continue;
        // Some file systems take the flag and then refuse to read so, or did not get as far as a whole block.
        if (code.value() == EINVAL && directly) {
            reads_directly_ = false;
            continue;
        }
        return code;
    }
    return {};
}

bool disk_file::read_cached(std::uint64_t offset, std::span<std::byte> to) const noexcept
{
    while (!to.empty()) {
        ::iovec const part{to.data(), to.size()};
        auto const more = ::preadv2(descriptor_, &part, 1, static_cast<off_t>(offset), RWF_NOWAIT);
        if (more <= 0)
            return false;
        offset += static_cast<std::uint64_t>(more);
        to = to.subspan(static_cast<std::size_t>(more));
    }
    return true;
}

asio::execution_context::id io_threads::id;

io_threads::io_threads(asio::execution_context& of) : service{of}, threads_{threads_without_signals()} {}

void io_threads::start(asio::any_io_executor const& executor, job work, handler done)
{
    // The context has work to wait for until the handler is on its way.
    auto back = asio::prefer(executor, asio::execution::outstanding_work_t::tracked);
    asio::post(*threads_, [back = std::move(back), work = std::move(work), done = std::move(done)]() mutable {
        auto const code = work();
        asio::post(back, asio::append(std::move(done), code));
    });
}

void io_threads::shutdown()
{
    // A context shuts down in its own destructor and in that of its base.
    if (threads_ == nullptr)
        return;
    threads_->stop();
    threads_->join();
    threads_.reset();
}

asio::awaitable<error_code> async_run(asio::any_io_executor executor, io_threads::job work)
{
    auto& threads = asio::use_service<io_threads>(asio::query(executor, asio::execution::context));
    // By reference: GCC 12 destroys what a lambda in such a call has captured twice.
    auto const [code] = co_await asio::async_initiate<decltype(with_job_code), void(error_code)>(
        [&threads, &executor](auto done, io_threads::job what) {
            threads.start(executor, std::move(what), io_threads::handler{std::move(done)});
        },
        with_job_code, std::move(work));
    co_return code;
}

}  // namespace gpurx::ingest::detail
