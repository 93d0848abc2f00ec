// SPDX-License-Identifier: Apache-2.0
//
// What it costs to give pages back behind a stream: CPU time for each buffer, and time from the stream's having passed
// to the pages' being free.
#include <fmt/format.h>
#include <sys/prctl.h>

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gpurx/gpurx.hpp>

#include "bench.hpp"
#include "clock.hpp"
#include "cuda/gpu_work.hpp"
#include "memory/page_pool.hpp"
#include "session/session_state.hpp"

namespace gpurx::bench {

namespace {

using asio::ip::tcp;

constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr std::size_t buffers = 256;

// A receiver and its peer, both in this thread.
class bench {
  public:
    explicit bench(device const& on);

    // CPU seconds for each of many buffers; `after`: behind the stream, else at once.
    [[nodiscard]] double cost(bool after);
    // From the stream's having passed to the pages' being back; 0: the gate opened by itself. `lacking`: a flow lacks
    // pages.
    [[nodiscard]] double delay(gate& held, bool lacking);
    // What part of a core the thread takes that looks at streams while buffers wait for as many streams, which stand
    // still; and the time from open() to the pages' being back, in seconds.
    struct parking {
        double core;
        double delay;
    };
    [[nodiscard]] parking park(gate& held);
    // What no thread can do better that looks at streams, however it does: it wakes every 100 us for one load of each
    // of 64 words. What part of a core it takes, and how late it wakes, in seconds. Meanwhile others work as in
    // delay().
    struct bare_look {
        double core;
        double late;
    };
    [[nodiscard]] bare_look look_at_words(gate& held);

  private:
    [[nodiscard]] rx_buffer receive(std::size_t bytes);
    [[nodiscard]] std::size_t free_pages() const { return pages_.free_count(); }
    // Spins until as many pages are free; throws after some seconds.
    void await_pages(std::size_t count) const;

    device const& on_;
    asio::io_context io_{1};
    rx_session session_;
    detail::page_pool& pages_;
    tcp::socket peer_{io_};
    receiver receiver_;
    std::vector<std::byte> bytes_;
    stream stream_;
};

receiver connected(asio::io_context& io, rx_session& session, tcp::socket& peer)
{
    tcp::acceptor acceptor{io, {asio::ip::address_v4::loopback(), 0}};
    peer.connect(acceptor.local_endpoint());
    peer.set_option(tcp::no_delay{true});
    return {io, session, acceptor.accept()};
}

bench::bench(device const& on)
    : on_{on},
      session_{{.transport = transport::copy, .max_flows = 1},
               device_memory::on_gpu(on.gpu().ordinal(), 64 * mebibyte)},
      pages_{detail::session_access::state(session_)->pages()},
      receiver_{connected(io_, session_, peer_)},
      bytes_(mebibyte / 4),
      stream_{on}
{}

rx_buffer bench::receive(std::size_t bytes)
{
    asio::write(peer_, asio::buffer(bytes_.data(), bytes));
    rx_buffer first;
    for (std::size_t got = 0; got < bytes;) {
        rx_buffer loan;
        receiver_.async_receive([&](error_code code, rx_buffer received) {
            if (code)
                throw boost::system::system_error{code, "async_receive"};
            loan = std::move(received);
        });
        io_.restart();
        io_.run();
        got += loan.size();
        if (first.empty())
            first = std::move(loan);
    }
    return first;
}

void bench::await_pages(std::size_t count) const
{
    for (auto const end = seconds_of(CLOCK_MONOTONIC) + 10; free_pages() < count;)
        if (seconds_of(CLOCK_MONOTONIC) > end)
            throw std::runtime_error{"pages did not come back"};
}

double bench::cost(bool after)
{
    std::vector<rx_buffer> loans;
    auto const before = free_pages();
    for (std::size_t i = 0; i < buffers; ++i)
        loans.push_back(receive(4096));
    stream_.finish();
    auto const start = times::now();
    for (auto& loan : loans) {
        if (after)
            loan.release_after(stream_.ref());
        else
            loan.release();
    }
    auto const called = times::now();
    // One page is being filled, whoever has it on loan.
    await_pages(before - 1);
    auto const end = times::now();
    // This thread's part of the calls, and all of the other threads' part.
    auto const waiting = end.since(called).thread;
    return (end.since(start).process - waiting) / static_cast<double>(loans.size());
}

double bench::delay(gate& held, bool lacking)
{
    auto loan = receive(bytes_.size());
    auto const lent = free_pages();
    loan.acquire(stream_.ref());
    held.close(stream_);
    loan.release_after(stream_.ref());
    if (lacking)
        detail::look_at_streams();
    // Longer than the library sleeps between its looks, and not a multiple of it: no phase is preferred.
    timespec const pause{.tv_sec = 0, .tv_nsec = 517'000};
    ::nanosleep(&pause, nullptr);
    held.open();
    // Not from open(): what holds the stream needs a while to see that, on the fake driver a processor too.
    while (on_.calls().cuStreamQuery(stream_.get()) == CUDA_ERROR_NOT_READY) {
    }
    auto const start = seconds_of(CLOCK_MONOTONIC);
    await_pages(lent + 1);
    auto const took = seconds_of(CLOCK_MONOTONIC) - start;
    stream_.finish();
    return held.expired() ? 0 : took;
}

// CPU time of the thread that looks at streams.
double watching_seconds()
{
    for (auto const& task : std::filesystem::directory_iterator{"/proc/self/task"}) {
        std::string name;
        std::getline(std::ifstream{task.path() / "comm"}, name);
        if (name != "gpurx-streams")
            continue;
        double nanoseconds = 0;
        std::ifstream{task.path() / "schedstat"} >> nanoseconds;
        return nanoseconds / 1e9;
    }
    throw std::runtime_error{"no thread looks at streams"};
}

bench::bare_look bench::look_at_words(gate& held)
{
    struct alignas(64) word {
        std::atomic<unsigned> value{0};
    };
    constexpr long every = 100'000;
    constexpr unsigned wakes = 5'000;
    std::array<word, 64> words;
    bare_look found{};
    std::atomic<bool> over{false};
    held.close(stream_);
    std::jthread const looks{[&] {
        ::prctl(PR_SET_TIMERSLACK, 1);
        std::vector<double> lateness(wakes);
        unsigned sum = 0;
        auto const start = times::now();
        timespec const pause{.tv_sec = 0, .tv_nsec = every};
        for (auto& late : lateness) {
            auto const slept = seconds_of(CLOCK_MONOTONIC);
            ::nanosleep(&pause, nullptr);
            late = seconds_of(CLOCK_MONOTONIC) - slept - static_cast<double>(every) * 1e-9;
            for (auto const& each : words)
                sum += each.value.load(std::memory_order_acquire);
        }
        auto const all = times::now().since(start);
        samples late;
        for (auto const each : lateness)
            late.add(each);
        found = {sum == 0 ? all.thread / all.wall : 0, late.median()};
        over = true;
    }};
    while (!over) {
    }
    held.open();
    stream_.finish();
    return found;
}

bench::parking bench::park(gate& held)
{
    constexpr std::size_t count = 64;
    auto const before = free_pages();
    std::vector<cuda_stream> streams;
    std::vector<rx_buffer> loans;
    for (std::size_t i = 0; i < count; ++i) {
        streams.push_back(cuda_stream::on(on_.gpu().ordinal()));
        loans.push_back(receive(4096));
    }
    auto const closed = seconds_of(CLOCK_MONOTONIC);
    held.close(stream_);
    for (std::size_t i = 0; i < count; ++i) {
        order_after(streams[i], stream_.ref());
        loans[i].release_after(streams[i]);
    }
    auto const parked = seconds_of(CLOCK_MONOTONIC);
    // Of the second that begins 300 ms later: the gate opens by itself after two.
    timespec const first{.tv_sec = 0, .tv_nsec = 300'000'000};
    timespec const second{.tv_sec = 1, .tv_nsec = 0};
    ::nanosleep(&first, nullptr);
    auto const start = watching_seconds();
    ::nanosleep(&second, nullptr);
    auto const taken = watching_seconds() - start;
    auto const opened = seconds_of(CLOCK_MONOTONIC);
    held.open();
    await_pages(before - 1);
    auto const delay = seconds_of(CLOCK_MONOTONIC) - opened;
    stream_.finish();
    if (held.expired())
        throw std::runtime_error{
            fmt::format("the gate opened by itself: {:.3f} s to park {} streams, open {:.3f} s later", parked - closed,
                        count, opened - parked)};
    return {taken, delay};
}

// Returns how late a thread wakes.
double add_bare_look(bench& in, gate& held, int rounds, section& table)
{
    samples core;
    samples late;
    for (int round = 0; round < rounds; ++round) {
        auto const measured = in.look_at_words(held);
        core.add(measured.core * 100);
        late.add(measured.late * 1e6);
    }
    for (auto const& [name, of] : {std::pair{"a bare thread: wakes each 100 us for 64 loads, % of a core", &core},
                                   {"a bare thread: wakes late by, us", &late}})
        table.rows.push_back({{"what", name}, {"median", of->median()}, {"min", of->min()}, {"max", of->max()}});
    return late.median();
}

void add_parking(bench& in, gate& held, int rounds, report& into, section& table)
{
    samples core;
    samples delay;
    for (int round = 0; round < rounds; ++round) {
        auto const measured = in.park(held);
        core.add(measured.core * 100);
        delay.add(measured.delay * 1e3);
    }
    for (auto const& [name, of] : {std::pair{"64 streams parked, % of a core", &core},
                                   {"64 streams parked for 1.3 s: pages back after, ms", &delay}})
        table.rows.push_back({{"what", name}, {"median", of->median()}, {"min", of->min()}, {"max", of->max()}});
    into.add({"CPU while 64 streams stand still", core.median(), " % of a core", 1, false});
}

void add_cost(bench& in, int rounds, report& into, section& table)
{
    samples now;
    samples behind;
    for (int round = -1; round < rounds; ++round) {
        auto const plain = in.cost(false) * 1e6;
        auto const after = in.cost(true) * 1e6;
        if (round < 0)
            continue;
        now.add(plain);
        behind.add(after);
    }
    for (auto const& [name, of] : {std::pair{"CPU of release, us", &now}, {"CPU of release_after, us", &behind}})
        table.rows.push_back({{"what", name}, {"median", of->median()}, {"min", of->min()}, {"max", of->max()}});
    into.add({"CPU that release_after adds per buffer", behind.median() - now.median(), " us", 2, false});
}

// Pages that no flow lacks may be later, so those are not judged.
void add_delay(bench& in, gate& held, char const* name, bool lacking, bool judged, int rounds, report& into,
               section& table)
{
    samples delays;
    for (int round = -5; round < rounds; ++round) {
        auto const took = in.delay(held, lacking);
        if (round >= 0 && took > 0)
            delays.add(took * 1e6);
    }
    table.rows.push_back({{"what", name}, {"median", delays.median()}, {"min", delays.min()}, {"max", delays.max()}});
    if (judged)
        into.add({"from the stream's passing to pages back", delays.median(), " us", 100, false});
}

}  // namespace

void bench_release(device const& on, options const& how, report& into)
{
    auto& table = into.begin("release",
                             "giving pages back behind a stream; the CPU's work for it in all threads, and how "
                             "long pages take to be free once the stream is let go");
    gate by_kernel{on};
    gate by_function{on, false};
    bench in{on};
    add_cost(in, how.quick ? 2 : 15, into, table);
    auto const rounds = how.quick ? 10 : 200;
    // Where a thread does not wake in time, others have the processors: how late the library is says nothing then.
    constexpr double too_late = 30;
    auto const late = add_bare_look(in, by_kernel, how.quick ? 1 : 3, table);
    if (late > too_late)
        into.skip("how soon pages are back",
                  fmt::format("threads wake {:.0f} us late here: the machine is at work", late));
    if (by_kernel.is_kernel()) {
        add_delay(in, by_kernel, "behind a kernel: pages that a flow lacks are back after, us", true, late <= too_late,
                  rounds, into, table);
        add_delay(in, by_kernel, "behind a kernel: pages that no flow lacks are back after, us", false, false, rounds,
                  into, table);
    } else {
        into.skip("pages back behind a kernel", "the benchmark's kernels cannot be loaded");
    }
    add_parking(in, by_function, how.quick ? 2 : 7, into, table);
    // Has the driver's own delay after a host function in it.
    add_delay(in, by_function, "behind a host function: pages that a flow lacks are back after, us", true, false,
              rounds, into, table);
    into.print_section();
}

}  // namespace gpurx::bench
