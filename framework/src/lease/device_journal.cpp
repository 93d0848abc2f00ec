// SPDX-License-Identifier: Apache-2.0
#include "device_journal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/failure.hpp"

namespace gpurx::detail {

namespace {

constexpr std::size_t largest_file = 16 << 20;
constexpr std::chrono::milliseconds lock_retry{5};
constexpr char const* directory_advice =
    "set state_directory to a directory of your own, without write permission for others (as mode 0700)";

unique_fd open_file(unique_fd const& directory, std::string const& name, int flags)
{
    return unique_fd{::openat(directory.get(), name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600)};
}

void write_all(unique_fd const& file, std::string_view text, std::string const& path)
{
    while (!text.empty()) {
        ssize_t const written = ::write(file.get(), text.data(), text.size());
        if (written < 0 && errno != EINTR)
            fail(errno, "write journal", path);
        text.remove_prefix(static_cast<std::size_t>(written > 0 ? written : 0));
    }
}

std::string read_all(unique_fd const& file, std::string const& path)
{
    std::string text(4096, '\0');
    std::size_t size = 0;
    for (;;) {
        if (size == text.size())
            text.resize(2 * size);
        ssize_t const got = ::read(file.get(), text.data() + size, text.size() - size);
        if (got < 0 && errno != EINTR)
            fail(errno, "read journal", path);
        size += static_cast<std::size_t>(got > 0 ? got : 0);
        if (size > largest_file)
            fail(make_error_code(errc::journal_invalid), "read journal", path, "it is longer than 16 MiB");
        if (got == 0)
            break;
    }
    text.resize(size);
    return text;
}

// A session that waits to give something back holds the lock's file for reading by a lock of the other kind. flock()
// does not see that one, and it can be asked about without being taken.
class place_in_front {
  public:
    place_in_front(int file, journal_use use) noexcept : file_{use == journal_use::give_back ? file : -1}
    {
        if (file_ >= 0)
            lock(file_, F_OFD_SETLK, F_RDLCK);
    }
    place_in_front(place_in_front const&) = delete;
    place_in_front& operator=(place_in_front const&) = delete;
    ~place_in_front()
    {
        if (file_ >= 0)
            lock(file_, F_OFD_SETLK, F_UNLCK);
    }

    // Whether somebody else has one.
    [[nodiscard]] static bool is_taken(int file) noexcept { return lock(file, F_OFD_GETLK, F_WRLCK) != F_UNLCK; }

  private:
    static short lock(int file, int command, short type) noexcept
    {
        struct flock range {};
        range.l_type = type;
        range.l_whence = SEEK_SET;
        return ::fcntl(file, command, &range) == 0 ? range.l_type : short{F_UNLCK};
    }

    int file_;
};

}  // namespace

unique_fd open_state_directory(std::string const& path)
{
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
        fail(errno, "create state directory", path, "set state_directory to a directory that this user may write to");
    unique_fd directory{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    struct stat info {};
    if (!directory || ::fstat(directory.get(), &info) != 0)
        fail(errno, "open state directory", path,
             "run as its owner, or set state_directory to a directory of your own");
    if ((info.st_uid != ::geteuid() && info.st_uid != 0) || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        fail(EPERM, "use state directory", path, directory_advice);
    return directory;
}

journal_file::journal_file(std::string const& directory, device_key const& device, std::chrono::milliseconds timeout,
                           journal_use use)
    : boot_id_{device.boot_id},
      name_{fmt::format("ifindex{}-netns{}", device.ifindex, device.netns)},
      path_{fmt::format("{}/{}.journal", directory, name_)},
      directory_{open_state_directory(directory)},
      lock_{[this] { return open_file(directory_, name_ + ".lock", O_RDWR | O_CREAT).release(); }}
{
    std::string const lock_path = fmt::format("{}/{}.lock", directory, name_);
    if (!lock_)
        fail(errno, "open lock", lock_path);
    wait_for_lock(timeout, use, lock_path);
}

void journal_file::wait_for_lock(std::chrono::milliseconds timeout, journal_use use, std::string const& lock_path) const
{
    place_in_front const place{lock_.get(), use};
    // flock() cannot be told how long to wait.
    auto const begin = std::chrono::steady_clock::now();
    for (;;) {
        bool const taken = ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0;
        if (!taken && errno != EWOULDBLOCK && errno != EINTR)
            fail(errno, "take lock", lock_path);
        auto const waited = std::chrono::steady_clock::now() - begin;
        if (taken && (use == journal_use::give_back || waited >= timeout / 2 || !place_in_front::is_taken(lock_.get())))
            return;
        if (taken)
            ::flock(lock_.get(), LOCK_UN);
        if (waited >= timeout)
            fail(ETIMEDOUT, "take lock", lock_path, "another gpurx session still changes the interface");
        std::this_thread::sleep_for(lock_retry);
    }
}

journal_file::~journal_file()
{
    // Closing is not enough: a child that is just being spawned holds the descriptor, too.
    if (lock_)
        ::flock(lock_.get(), LOCK_UN);
}

std::optional<journal> journal_file::load() const
{
    unique_fd const file = open_file(directory_, name_ + ".journal", O_RDONLY);
    if (!file && errno == ENOENT)
        return std::nullopt;
    if (!file)
        fail(errno, "open journal", path_);
    auto const text = read_all(file, path_);
    if (auto speaks_of = parse_device(text); speaks_of && speaks_of->boot_id != boot_id_)
        return journal{*std::move(speaks_of), {}, {}};
    auto result = parse_journal(text);
    if (auto const* const damage = std::get_if<journal_damage>(&result)) {
        fail(make_error_code(errc::journal_invalid), "read journal", path_,
             fmt::format("line {}: {}; if no gpurx session uses the interface, check its settings and remove the file",
                         damage->line, damage->what));
    }
    return std::get<journal>(std::move(result));
}

void journal_file::store(journal const& value) const
{
    if (!value.empty()) {
        replace(serialise(value));
    } else if (::unlinkat(directory_.get(), (name_ + ".journal").c_str(), 0) != 0 && errno != ENOENT) {
        fail(errno, "remove journal", path_);
    }
}

unique_fd journal_file::open_to_append() const
{
    auto file = open_file(directory_, name_ + ".journal", O_RDWR | O_APPEND);
    if (!file && errno != ENOENT)
        fail(errno, "open journal", path_);
    return file;
}

bool journal_file::is_now(unique_fd const& file, std::uint64_t size) const noexcept
{
    // As long as `file` is open, no other file has its number.
    struct stat ours {};
    struct stat now {};
    return file && ::fstat(file.get(), &ours) == 0 &&
           ::fstatat(directory_.get(), (name_ + ".journal").c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 &&
           ours.st_dev == now.st_dev && ours.st_ino == now.st_ino && static_cast<std::uint64_t>(now.st_size) == size;
}

void journal_file::replace(std::string_view text) const
{
    std::string const fresh = name_ + ".new";
    unique_fd file = open_file(directory_, fresh, O_WRONLY | O_CREAT | O_TRUNC);
    if (!file)
        fail(errno, "write journal", path_);
    write_all(file, text, path_);
    // So that what a loss of power leaves can be read, and told to be of an earlier boot.
    if (::fsync(file.get()) != 0 ||
        ::renameat(directory_.get(), fresh.c_str(), directory_.get(), (name_ + ".journal").c_str()) != 0)
        fail(errno, "write journal", path_);
}

namespace {

// Lines of rules that are added before all is written anew, beyond as much again as that takes: so a connection costs
// the same however many there are.
constexpr std::uint64_t most_added = 64 << 10;

device_key key_of(lease_environment const& environment, nic_device const& device)
{
    return {environment.boot_id, device.name(), device.index(), environment.netns};
}

}  // namespace

std::size_t flow_match_hash::operator()(flow_match const& match) const noexcept
{
    std::size_t value = match.local_port;
    auto const mix = [&value](std::size_t more) { value = value * 1'000'003 + more; };
    if (match.local)
        mix(std::hash<boost::asio::ip::address>{}(*match.local));
    if (match.remote) {
        mix(std::hash<boost::asio::ip::address>{}(match.remote->address()));
        mix(match.remote->port());
    }
    return value;
}

lease_environment this_environment(std::string state_directory)
{
    static std::atomic<std::uint64_t> sessions{0};
    lease_environment result;
    result.state_directory = std::move(state_directory);
    result.boot_id = boot_id();
    result.netns = network_namespace();
    result.self = this_process(++sessions);
    result.alive = is_alive;
    return result;
}

device_journal::device_journal(lease_environment const& environment, nic_device const& device, journal_cache& cache,
                               journal_use use)
    : file_{environment.state_directory, key_of(environment, device), environment.lock_timeout, use}, cache_{cache}
{
    if (!file_.is_now(cache_.file, cache_.size))
        read(key_of(environment, device));
}

void device_journal::read(device_key const& key)
{
    cache_.value = {};
    look_at_file();
    if (auto found = file_.load()) {
        if (found->device.same_device(key))
            cache_.value = *std::move(found);
        else
            dropped_ = fmt::format("{}: dropped a journal of another boot or device ({})", key.interface, file_.path());
    }
    cache_.value.device = key;
    find_places();
    // A line that was cut off must not run into the next one.
    char last = '\n';
    if (cache_.size > 0 && ::pread(cache_.file.get(), &last, 1, static_cast<off_t>(cache_.size - 1)) == 1 &&
        last != '\n')
        save();
}

void device_journal::look_at_file()
{
    cache_.file = file_.open_to_append();
    struct stat info {};
    if (cache_.file && ::fstat(cache_.file.get(), &info) != 0)
        fail(errno, "read journal", file_.path());
    cache_.size = static_cast<std::uint64_t>(info.st_size);
    cache_.whole = cache_.size;
}

void device_journal::find_places()
{
    cache_.places.clear();
    auto const& owners = cache_.value.owners;
    for (std::size_t owner = 0; owner < owners.size(); ++owner) {
        for (std::size_t rule = 0; rule < owners[owner].rules.size(); ++rule)
            cache_.places.try_emplace(owners[owner].rules[rule].rule.match, journal_cache::place{owner, rule});
    }
}

void device_journal::save()
{
    cache_.file.reset();
    file_.store(cache_.value);
    look_at_file();
    find_places();
}

std::optional<device_journal::found_rule> device_journal::find(flow_match const& match) const
{
    auto const found = cache_.places.find(match);
    if (found == cache_.places.end())
        return std::nullopt;
    auto const& owner = cache_.value.owners[found->second.owner];
    return found_rule{owner.key, owner.rules[found->second.rule]};
}

void device_journal::note(owner_key const& owner, journal_rule const& entry)
{
    auto const number = number_of(owner);
    auto& rules = cache_.value.owners[number].rules;
    auto const [place, fresh] = cache_.places.try_emplace(entry.rule.match, journal_cache::place{number, rules.size()});
    if (fresh)
        rules.push_back(entry);
    else if (place->second.owner != number)
        return;  // of two owners, which gpurx never writes, the first has it
    auto& known = rules[place->second.rule];
    auto const before = std::exchange(known.id, entry.id);
    try {
        add({number, entry, false});
    } catch (...) {
        known.id = before;
        if (fresh) {
            rules.pop_back();
            cache_.places.erase(place);
        }
        throw;
    }
}

void device_journal::forget(owner_key const& owner, flow_rule const& rule)
{
    auto const found = cache_.places.find(rule.match);
    if (found == cache_.places.end() || cache_.value.owners[found->second.owner].key != owner)
        return;
    auto const [number, at] = found->second;
    auto& rules = cache_.value.owners[number].rules;
    auto const gone = rules[at];
    // In any order: the last takes the free place.
    cache_.places.at(rules.back().rule.match) = {number, at};
    if (at + 1 < rules.size())
        rules[at] = rules.back();
    rules.pop_back();
    auto node = cache_.places.extract(rule.match);
    try {
        add({number, gone, true});
    } catch (...) {
        rules.push_back(gone);  // there is room
        node.mapped() = {number, rules.size() - 1};
        cache_.places.insert(std::move(node));
        throw;
    }
}

std::size_t device_journal::number_of(owner_key const& owner) const noexcept
{
    auto const& owners = cache_.value.owners;
    auto const found =
        std::find_if(owners.begin(), owners.end(), [&owner](auto const& one) { return one.key == owner; });
    return static_cast<std::size_t>(found - owners.begin());
}

// `cache_` says so already.
void device_journal::add(journal_record const& record)
{
    if (!cache_.file || cache_.size - cache_.whole > most_added + cache_.whole)
        return save();
    auto const line = serialise(record);
    auto const written = ::write(cache_.file.get(), line.data(), line.size());
    if (written != static_cast<ssize_t>(line.size())) {
        int const error = written < 0 ? errno : ENOSPC;
        [[maybe_unused]] auto const cut = ::ftruncate(cache_.file.get(), static_cast<off_t>(cache_.size));
        fail(error, "write journal", file_.path());
    }
    cache_.size += line.size();
}

}  // namespace gpurx::detail
