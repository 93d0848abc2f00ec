// SPDX-License-Identifier: Apache-2.0
#include "shared_counters.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/failure.hpp"
#include "lease/daemon_protocol.hpp"
#include "lease/device_journal.hpp"

namespace gpurx::gpurxd {

using detail::fail;
using detail::unique_fd;

namespace {

using shared_number = std::atomic<std::uint64_t>;
static_assert(shared_number::is_always_lock_free);

constexpr std::size_t name_words = 2;
constexpr std::size_t ids_in_word = 4;
constexpr std::size_t most_shown = 1024;

// All zero: nobody has been here.
struct shared_client {
    shared_number edition;  // odd: is being written; 0: never was
    std::array<shared_number, name_words> interface;
    shared_number uid;
    shared_number most_queues;
    shared_number most_memory;
    shared_number most_flows;
    shared_number most_rules;
    shared_number most_clients;
    shared_number most_opens;
    shared_number memory;
    shared_number dmabuf;
    shared_number page_size;
    shared_number rules;
    shared_number queue_count;
    std::array<shared_number, detail::daemon_queue_limit / ids_in_word> queues;
};

}  // namespace

struct counter_table {
    shared_number version;
    shared_number connections;
    shared_number rules_made;
    shared_number rules_taken_away;
    std::array<std::array<shared_number, refusal_reasons>, request_kinds> refusals;
    std::array<shared_client, most_shown> clients;
};

namespace {

// Of the layout: another one is another file.
constexpr std::uint64_t this_version = 0x6770'7572'7864'0002;

// The lock of a slot's byte: its owner has the slot.
struct flock slot_lock(std::size_t slot)
{
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = static_cast<off_t>(slot);
    lock.l_len = 1;
    return lock;
}

bool is_taken(int file, std::size_t slot)
{
    auto lock = slot_lock(slot);
    return ::fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// Null: it is of another version.
counter_table* map_this_version(unique_fd const& file, std::string const& path)
{
    struct stat what {};
    if (::fstat(file.get(), &what) != 0 || (what.st_size == 0 && ::ftruncate(file.get(), sizeof(counter_table)) != 0))
        fail(errno, "make", path);
    if (what.st_size != 0 && what.st_size != sizeof(counter_table))
        return nullptr;
    auto* const at = ::mmap(nullptr, sizeof(counter_table), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (at == MAP_FAILED)
        fail(errno, "map", path);
    auto* const shared = static_cast<counter_table*>(at);
    if (what.st_size == 0)
        shared->version = this_version;
    if (shared->version == this_version)
        return shared;
    ::munmap(shared, sizeof *shared);
    return nullptr;
}

void write(client_metrics const& from, shared_client& to)
{
    ++to.edition;
    std::array<char, name_words * sizeof(std::uint64_t)> name{};
    std::copy_n(from.interface.begin(), std::min(from.interface.size(), name.size() - 1), name.begin());
    for (std::size_t i = 0; i < name_words; ++i) {
        std::uint64_t word = 0;
        std::memcpy(&word, name.data() + i * sizeof word, sizeof word);
        to.interface[i] = word;
    }
    to.uid = from.uid;
    to.most_queues = from.most.queues;
    to.most_memory = from.most.memory;
    to.most_flows = from.most.flows;
    to.most_rules = from.most.rules;
    to.most_clients = from.most.clients;
    to.most_opens = from.most.opens;
    to.memory = from.memory;
    to.dmabuf = from.dmabuf;
    to.page_size = from.page_size;
    to.rules = from.rules;
    auto const count = std::min(from.queues.size(), detail::daemon_queue_limit);
    for (auto& word : to.queues)
        word = 0;
    for (std::size_t i = 0; i < count; ++i)
        to.queues[i / ids_in_word] |= std::uint64_t{from.queues[i] & 0xffffU} << (i % ids_in_word * 16);
    to.queue_count = count;
    ++to.edition;
}

client_metrics read_client(shared_client const& from)
{
    client_metrics to;
    std::array<char, name_words * sizeof(std::uint64_t) + 1> name{};
    for (std::size_t i = 0; i < name_words; ++i) {
        std::uint64_t const word = from.interface[i];
        std::memcpy(name.data() + i * sizeof word, &word, sizeof word);
    }
    to.interface = name.data();
    auto const narrow = [](shared_number const& number) { return static_cast<unsigned>(number); };
    to.uid = narrow(from.uid);
    to.most = {.queues = narrow(from.most_queues),
               .memory = from.most_memory,
               .flows = narrow(from.most_flows),
               .rules = narrow(from.most_rules),
               .clients = narrow(from.most_clients),
               .opens = narrow(from.most_opens)};
    to.memory = from.memory;
    to.dmabuf = narrow(from.dmabuf);
    to.page_size = narrow(from.page_size);
    to.rules = from.rules;
    auto const count = std::min<std::uint64_t>(from.queue_count, detail::daemon_queue_limit);
    for (std::size_t i = 0; i < count; ++i)
        to.queues.push_back(static_cast<unsigned>(from.queues[i / ids_in_word] >> (i % ids_in_word * 16) & 0xffffU));
    return to;
}

}  // namespace

shared_counters::shared_counters(unique_fd file, counter_table* shared) noexcept
    : file_{std::move(file)}, shared_{shared}
{}

shared_counters::shared_counters(shared_counters&& other) noexcept
    : file_{std::move(other.file_)},
      shared_{std::exchange(other.shared_, nullptr)},
      slot_{std::exchange(other.slot_, std::nullopt)}
{}

shared_counters::~shared_counters()
{
    if (shared_ != nullptr)
        ::munmap(shared_, sizeof *shared_);
}

std::string clients_directory(std::string const& state_directory)
{
    return state_directory + "-clients";
}

shared_counters shared_counters::open(std::string const& state_directory)
{
    auto const path = clients_directory(state_directory) + "/figures";
    auto const directory = detail::open_state_directory(clients_directory(state_directory));
    for (;;) {
        unique_fd file{::openat(directory.get(), "figures", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
        if (!file)
            fail(errno, "open", path);
        // Whoever is first writes the version.
        if (::flock(file.get(), LOCK_EX) != 0)
            fail(errno, "lock", path);
        auto* const shared = map_this_version(file, path);
        ::flock(file.get(), LOCK_UN);
        if (shared != nullptr)
            return {std::move(file), shared};
        if (::unlinkat(directory.get(), "figures", 0) != 0 && errno != ENOENT)
            fail(errno, "remove", path);
    }
}

void shared_counters::count_connection() noexcept
{
    ++shared_->connections;
}

void shared_counters::count_refusal(request_kind what, refusal_reason why) noexcept
{
    ++shared_->refusals[static_cast<std::size_t>(what)][static_cast<std::size_t>(why)];
}

void shared_counters::show(client_metrics const& who)
{
    for (std::size_t slot = 0; slot < most_shown && !slot_; ++slot) {
        auto lock = slot_lock(slot);
        if (::fcntl(file_.get(), F_OFD_SETLK, &lock) == 0)
            slot_ = slot;
    }
    if (!slot_)
        return;
    auto& mine = shared_->clients[*slot_];
    // Whoever had the slot before may have been killed while it wrote.
    if (mine.edition % 2 != 0)
        ++mine.edition;
    write(who, mine);
}

void shared_counters::show_rules(std::uint64_t now, std::uint64_t made, std::uint64_t taken_away) noexcept
{
    shared_->rules_made += made;
    shared_->rules_taken_away += taken_away;
    if (slot_)
        shared_->clients[*slot_].rules = now;
}

daemon_metrics shared_counters::read() const
{
    daemon_metrics all;
    all.connections = shared_->connections;
    all.rules_made = shared_->rules_made;
    all.rules_taken_away = shared_->rules_taken_away;
    for (std::size_t what = 0; what < request_kinds; ++what)
        std::ranges::copy(shared_->refusals[what], all.refusals[what].begin());
    for (std::size_t slot = 0; slot < most_shown; ++slot) {
        auto const& client = shared_->clients[slot];
        auto const edition = client.edition.load();
        // A slot that was never written needs no question to the kernel.
        if (edition == 0 || edition % 2 != 0 || !is_taken(file_.get(), slot))
            continue;
        auto found = read_client(client);
        if (client.edition == edition)
            all.clients.push_back(std::move(found));
    }
    return all;
}

}  // namespace gpurx::gpurxd
