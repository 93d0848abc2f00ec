// SPDX-License-Identifier: Apache-2.0
#include "device_journal.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "failure.hpp"

namespace gpurx::detail {

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

device_journal::device_journal(lease_environment const& environment, nic_device const& device, known_journal& known)
    : file_{environment.state_directory, key_of(environment, device), environment.lock_patience}, known_{known}
{
    if (!file_.is_now(known_.file, known_.size))
        read(key_of(environment, device));
}

void device_journal::read(device_key const& key)
{
    known_.value = {};
    look_at_file();
    if (auto found = file_.load()) {
        if (found->device.same_device(key))
            known_.value = *std::move(found);
        else
            dropped_ = fmt::format("{}: dropped a journal of another boot or device ({})", key.interface, file_.path());
    }
    known_.value.device = key;
    find_places();
    // A line that was cut off must not run into the next one.
    char last = '\n';
    if (known_.size > 0 && ::pread(known_.file.get(), &last, 1, static_cast<off_t>(known_.size - 1)) == 1 &&
        last != '\n')
        save();
}

void device_journal::look_at_file()
{
    known_.file = file_.open_to_append();
    struct stat info {};
    if (known_.file && ::fstat(known_.file.get(), &info) != 0)
        fail(errno, "read journal", file_.path());
    known_.size = static_cast<std::uint64_t>(info.st_size);
    known_.whole = known_.size;
}

void device_journal::find_places()
{
    known_.places.clear();
    auto const& owners = known_.value.owners;
    for (std::size_t owner = 0; owner < owners.size(); ++owner) {
        for (std::size_t rule = 0; rule < owners[owner].rules.size(); ++rule)
            known_.places.try_emplace(owners[owner].rules[rule].rule.match, known_journal::place{owner, rule});
    }
}

void device_journal::save()
{
    known_.file.reset();
    file_.store(known_.value);
    look_at_file();
    find_places();
}

std::optional<device_journal::found_rule> device_journal::find(flow_match const& match) const
{
    auto const found = known_.places.find(match);
    if (found == known_.places.end())
        return std::nullopt;
    auto const& owner = known_.value.owners[found->second.owner];
    return found_rule{owner.key, owner.rules[found->second.rule]};
}

void device_journal::note(owner_key const& owner, journal_rule const& entry)
{
    auto const number = number_of(owner);
    auto& rules = known_.value.owners[number].rules;
    auto const [place, fresh] = known_.places.try_emplace(entry.rule.match, known_journal::place{number, rules.size()});
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
            known_.places.erase(place);
        }
        throw;
    }
}

void device_journal::forget(owner_key const& owner, flow_rule const& rule)
{
    auto const found = known_.places.find(rule.match);
    if (found == known_.places.end() || known_.value.owners[found->second.owner].key != owner)
        return;
    auto const [number, at] = found->second;
    auto& rules = known_.value.owners[number].rules;
    auto const gone = rules[at];
    // In any order: the last takes the free place.
    known_.places.at(rules.back().rule.match) = {number, at};
    if (at + 1 < rules.size())
        rules[at] = rules.back();
    rules.pop_back();
    auto node = known_.places.extract(rule.match);
    try {
        add({number, gone, true});
    } catch (...) {
        rules.push_back(gone);  // there is room
        node.mapped() = {number, rules.size() - 1};
        known_.places.insert(std::move(node));
        throw;
    }
}

std::size_t device_journal::number_of(owner_key const& owner) const noexcept
{
    auto const& owners = known_.value.owners;
    auto const found =
        std::find_if(owners.begin(), owners.end(), [&owner](auto const& one) { return one.key == owner; });
    return static_cast<std::size_t>(found - owners.begin());
}

// What `known_` says already.
void device_journal::add(journal_record const& record)
{
    if (!known_.file || known_.size - known_.whole > most_added + known_.whole)
        return save();
    auto const line = serialise(record);
    auto const written = ::write(known_.file.get(), line.data(), line.size());
    if (written != static_cast<ssize_t>(line.size())) {
        int const error = written < 0 ? errno : ENOSPC;
        [[maybe_unused]] auto const cut = ::ftruncate(known_.file.get(), static_cast<off_t>(known_.size));
        fail(error, "write journal", file_.path());
    }
    known_.size += line.size();
}

}  // namespace gpurx::detail
