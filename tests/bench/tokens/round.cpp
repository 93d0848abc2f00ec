// SPDX-License-Identifier: Apache-2.0
#include "round.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "packet_ends.hpp"
#include "receive_queue.hpp"

namespace bench {
namespace {

constexpr unsigned largest_batch = release_most_ranges;
constexpr std::uint32_t xarray_tokens = 15u << 27;  // and all above

[[noreturn]] void fail(char const* what)
{
    throw std::system_error{errno, std::system_category(), what};
}

}  // namespace

round::round(token_kind kind, std::string label, series const& what, unsigned number)
    : kind_{kind},
      label_{std::move(label)},
      what_{what},
      number_{number},
      control_(control_for(what.control)),
      host_((what.control + packet_ends::most_fragments) * std::size_t{what.page_size})
{}

void round::fill(int listener, std::deque<sender>& senders)
{
    for (unsigned i = 0; i < what_.flows; ++i) {
        senders.at(i).connect("10.77.0.1", port);
        gpurx::detail::unique_fd accepted{::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)};
        if (accepted.get() < 0)
            fail("accept");
        flows_.push_back({std::move(accepted), what_.bytes});
    }
    for (unsigned i = 0; i < what_.flows; ++i)
        senders.at(i).send(what_.bytes, what_.bytes, 0);
    for (flow const& one : flows_)
        wait_until_queued(one.socket.get(), what_.bytes);
    ::usleep(50'000);  // the last acknowledgements
    for (unsigned i = 0; i < what_.flows; ++i)
        senders.at(i).close();
}

void round::drain()
{
    receive();
    check_kind();
    for (std::size_t i = 0; i < what_.released.size(); ++i)
        release(what_.released[(i + number_) % what_.released.size()], i);
    for (flow const& one : flows_) {
        release_unmeasured(one, one.tokens, one.released);
        release_unmeasured(one, one.peeked, 0);
    }
}

void round::close_with_one()
{
    receive();
    check_kind();
    flow& only = flows_.front();
    release_unmeasured(only, only.tokens, 1);
    linger const at_once{1, 0};
    if (::setsockopt(only.socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) != 0)
        fail("SO_LINGER");
    std::uint64_t const start = read_clock();
    only.socket.reset();
    std::uint64_t const instructions = read_clock() - start;
    fmt::print("close {} instructions={}\n", label_, instructions);
}

void round::race()
{
    auto const half = [this](std::size_t first) {
        for (std::size_t i = first; i < flows_.size(); i += 2)
            drain_alone(flows_[i]);
    };
    auto const start = std::chrono::steady_clock::now();
    std::thread other{half, 1};
    half(0);
    other.join();
    std::chrono::nanoseconds const took = std::chrono::steady_clock::now() - start;
    std::size_t fragments = 0;
    for (flow const& one : flows_)
        fragments += one.released;
    fmt::print("race {} nanoseconds={} fragments={} bytes={}\n", label_, took.count(), fragments,
               what_.bytes * what_.flows);
}

// An error ends the program: there is nothing to go on with.
void round::drain_alone(flow& one) const
{
    std::array<fragment, whole_control> taken;
    std::array<std::uint32_t, whole_control> tokens;
    std::vector<char> control(control_.size()), host(host_.size());
    receive_buffers const buffers{control.data(), control.size(), host.data(), host.size()};
    while (one.queued != 0) {
        unsigned fragments = 0, ranges = 0;
        std::uint64_t instructions = 0;
        ssize_t const received = receive_once(one.socket.get(), 0, &buffers, taken.data(), &fragments, &instructions);
        if (received <= 0)
            std::abort();
        for (unsigned i = 0; i < fragments; ++i)
            tokens[i] = taken[i].token;
        if (release_once(one.socket.get(), tokens.data(), fragments, &ranges, &instructions) != 0)
            std::abort();
        one.queued -= static_cast<std::uint64_t>(received);
        one.released += fragments;
    }
}

// One call of each flow in turn.
void round::receive()
{
    std::vector<call> calls;
    std::uint64_t instructions = 0, fragments = 0;
    for (bool more = true; std::exchange(more, false);) {
        for (flow& one : flows_) {
            if (one.queued == 0)
                continue;
            if (kind_ == token_kind::again)
                peek(one);
            call const done = receive_from(one);
            calls.push_back(done);
            instructions += done.instructions;
            fragments += done.fragments;
            more = true;
        }
    }
    if (what_.closed)
        return;
    fmt::print("receive {} instructions={} fragments={} bytes={} calls={}\n", label_, instructions, fragments,
               what_.bytes * what_.flows, calls.size());
    if (what_.control != whole_control)
        print_calls(calls);
}

round::call round::receive_from(flow& from)
{
    std::array<fragment, whole_control> taken;
    receive_buffers const buffers{control_.data(), control_.size(), host_.data(), host_.size()};
    call result{};
    ssize_t const received =
        receive_once(from.socket.get(), 0, &buffers, taken.data(), &result.fragments, &result.instructions);
    if (received <= 0)
        fail("recvmsg");
    from.queued -= static_cast<std::uint64_t>(received);
    for (unsigned i = 0; i < result.fragments; ++i) {
        from.sizes.push_back(taken[i].size);
        from.tokens.push_back(taken[i].token);
    }
    return result;
}

// What recvmsg is going to take, so that its pages are out when it does.
void round::peek(flow& at)
{
    std::array<fragment, whole_control> seen;
    receive_buffers const buffers{control_.data(), control_.size(), host_.data(), host_.size()};
    unsigned fragments = 0;
    std::uint64_t instructions = 0;
    if (receive_once(at.socket.get(), MSG_PEEK, &buffers, seen.data(), &fragments, &instructions) <= 0)
        fail("recvmsg with MSG_PEEK");
    for (unsigned i = 0; i < fragments; ++i)
        at.peeked.push_back(seen[i].token);
}

void round::print_calls(std::vector<call> const& calls) const
{
    packet_ends const packets{flows_.front().sizes, what_.segmented ? 0 : what_.page_size};
    std::size_t position = 0;
    for (call const& one : calls) {
        std::size_t const before = std::exchange(position, position + one.fragments);
        fmt::print("call {} instructions={} delivered={} finished={} left={}\n", label_, one.instructions,
                   one.fragments, packets.finished(before, position), packets.left_at(position));
    }
}

void round::check_kind() const
{
    // Packets of several flows share pages, and a page has one owner
    if (kind_ != token_kind::shared && what_.packing != 0 && what_.flows > 1)
        return;
    if (kind_ == token_kind::stock)
        return;
    for (flow const& one : flows_)
        for (std::uint32_t const token : one.tokens)
            if (token >= xarray_tokens)
                throw std::runtime_error{fmt::format("{}: token {:#x} is not of the kind asked for", label_, token)};
}

// The `part`th third of what was received, in calls of each flow in turn.
void round::release(unsigned batch, std::size_t part)
{
    std::uint64_t instructions = 0, fragments = 0, bytes = 0, calls = 0, ranges = 0;
    for (bool more = true; std::exchange(more, false);) {
        for (flow& one : flows_) {
            std::size_t const third = one.tokens.size() / what_.released.size() / largest_batch * largest_batch;
            if (one.released == (part + 1) * third)
                continue;
            std::uint64_t taken = 0;
            unsigned used = 0;
            if (release_once(one.socket.get(), &one.tokens[one.released], batch, &used, &taken) != 0)
                fail("SO_DEVMEM_DONTNEED");
            for (unsigned i = 0; i < batch; ++i)
                bytes += one.sizes[one.released + i];
            one.released += batch;
            instructions += taken;
            fragments += batch;
            ranges += used;
            ++calls;
            more = true;
        }
    }
    fmt::print("release {} batch={} instructions={} fragments={} bytes={} calls={} ranges={}\n", label_, batch,
               instructions, fragments, bytes, calls, ranges);
}

void round::release_unmeasured(flow const& of, std::vector<std::uint32_t> const& tokens, std::size_t from)
{
    while (from != tokens.size()) {
        auto const count = static_cast<unsigned>(std::min<std::size_t>(tokens.size() - from, largest_batch));
        std::uint64_t instructions = 0;
        unsigned ranges = 0;
        if (release_once(of.socket.get(), &tokens[from], count, &ranges, &instructions) != 0)
            fail("SO_DEVMEM_DONTNEED");
        from += count;
    }
}

}  // namespace bench
