// SPDX-License-Identifier: Apache-2.0
#include "server.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <gpurx/gpurx.hpp>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "async.hpp"
#include "protocol.hpp"

namespace gpurx::perf {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using clock = std::chrono::steady_clock;

// A connection that does not say in this time what it is for is none of ours.
constexpr std::chrono::seconds request_timeout{5};

void check(error_code code, char const* operation, std::string object, std::string advice = {})
{
    if (code)
        throw system_error{
            code,
            {.operation = operation, .object = std::move(object), .kernel_message = {}, .advice = std::move(advice)}};
}

device_memory memory_for(setting const& of, std::uint64_t bytes)
{
    return of.gpu ? device_memory::on_gpu(*of.gpu, bytes) : device_memory::on_host(bytes);
}

// The time that cores have worked.
struct cpu_time {
    std::chrono::nanoseconds process;  // of this one: in user space and in its system calls
    std::chrono::nanoseconds machine;  // of all, and of interrupts; in steps of 10 ms. 0 if /proc does not say
};

std::chrono::nanoseconds duration_of(timeval const& time)
{
    return std::chrono::seconds{time.tv_sec} + std::chrono::microseconds{time.tv_usec};
}

// proc(5): user, nice, system, idle, iowait, irq, softirq, steal.
std::chrono::nanoseconds busy_time()
{
    std::ifstream file{"/proc/stat"};
    std::string name;
    file >> name;
    std::int64_t busy = 0;
    for (auto column = 0; column < 8; ++column) {
        std::int64_t ticks = 0;
        file >> ticks;
        busy += column == 3 || column == 4 ? 0 : ticks;
    }
    return file ? std::chrono::nanoseconds{busy * (1'000'000'000 / ::sysconf(_SC_CLK_TCK))}
                : std::chrono::nanoseconds{0};
}

cpu_time cpu_time_now()
{
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return {duration_of(used.ru_utime) + duration_of(used.ru_stime), busy_time()};
}

struct incoming {
    receiver rx;
    request what;
    pattern_check check;
    memory_span landing = {};
    std::uint64_t bytes = 0;
    std::uint64_t acknowledged = 0;
};

class receiving_round {
  public:
    receiving_round(server_options const& wanted, setting const& how, asio::any_io_executor const& executor)
        : wanted_{wanted},
          how_{how},
          session_{how.session, memory_for(how, how.memory)},
          acceptor_{std::in_place, executor, session_,
                    tcp::endpoint{asio::ip::make_address(wanted.address), wanted.port}},
          executor_{executor},
          clock_{executor}
    {}

    [[nodiscard]] asio::awaitable<result> run();

  private:
    [[nodiscard]] asio::awaitable<void> accept_all();
    [[nodiscard]] asio::awaitable<std::optional<request>> read_request(receiver& from);
    [[nodiscard]] asio::awaitable<void> receive(incoming& from);
    [[nodiscard]] asio::awaitable<bool> read_message(incoming& from);
    [[nodiscard]] asio::awaitable<bool> take_loan(incoming& from);
    [[nodiscard]] asio::awaitable<void> acknowledge(incoming& to);
    [[nodiscard]] asio::awaitable<void> measure(request what);
    [[nodiscard]] asio::awaitable<void> write_result();
    void count(incoming& of, std::span<fragment const> arrived) const;
    [[nodiscard]] std::uint64_t received() const noexcept;

    server_options const& wanted_;
    setting const& how_;
    rx_session session_;
    std::optional<acceptor> acceptor_;
    asio::any_io_executor executor_;
    device_memory landing_;
    std::list<incoming> flows_;
    std::size_t ended_ = 0;
    asio::steady_timer clock_;
    result measured_;
};

asio::awaitable<result> receiving_round::run()
{
    fmt::print(stderr, "listening on port {}, {}, transport {}\n", acceptor_->local_endpoint().port(), how_.name,
               to_string(session_.transport()));
    co_await accept_all();
    // Connections of the next round are to wait for it.
    acceptor_.reset();
    auto const what = flows_.front().what;
    if (!how_.loans)
        landing_ = memory_for(how_, std::uint64_t{what.message_size} * what.flows);
    auto const hello = encode(greeting{how_.name, std::string{to_string(session_.transport())}});
    for (auto& each : flows_) {
        auto const [code, size] = co_await asio::async_write(each.rx, asio::buffer(hello), deferred_tuple);
        check(code, "greet", "the client");
    }
    using operation = decltype(asio::co_spawn(executor_, receive(flows_.front()), asio::deferred));
    std::vector<operation> operations;
    operations.reserve(flows_.size() + 1);
    operations.push_back(asio::co_spawn(executor_, measure(what), asio::deferred));
    for (auto& each : flows_) {
        if (!how_.loans)
            each.landing = landing_.span().subspan(std::size_t{each.what.flow} * what.message_size, what.message_size);
        operations.push_back(asio::co_spawn(executor_, receive(each), asio::deferred));
    }
    co_await await_all(std::move(operations));
    measured_.wrong_words = 0;
    for (auto const& each : flows_) {
        measured_.wrong_words += each.check.wrong_words();
        measured_.verified += each.check.bytes();
    }
    co_await write_result();
    co_return measured_;
}

// Whoever else connects is sent away.
asio::awaitable<void> receiving_round::accept_all()
{
    for (std::optional<std::size_t> expected; flows_.size() != expected;) {
        auto [failed, rx] = co_await acceptor_->async_accept(deferred_tuple);
        check(failed, "accept", "a connection");
        auto const what = co_await read_request(rx);
        if (!what || (expected && what->flows != *expected)) {
            fmt::print(stderr, "gpurx-perf closed a connection that does not belong to this round\n");
            continue;
        }
        expected = what->flows;
        flows_.push_back({.rx = std::move(rx), .what = *what, .check = pattern_check{what->flow}});
    }
}

asio::awaitable<std::optional<request>> receiving_round::read_request(receiver& from)
{
    std::array<std::byte, request_size> text{};
    asio::steady_timer limit{executor_, request_timeout};
    auto const [order, too_late, code, size] =
        co_await asio::experimental::make_parallel_group(limit.async_wait(asio::deferred),
                                                         async_read(from, host_span{text}, asio::deferred))
            .async_wait(asio::experimental::wait_for_one(), deferred_tuple);
    if (code)
        co_return std::nullopt;
    co_return decode_request(text);
}

asio::awaitable<void> receiving_round::receive(incoming& from)
{
    for (auto goes_on = true; goes_on;) {
        if (how_.loans)
            goes_on = co_await take_loan(from);
        else
            goes_on = co_await read_message(from);
        co_await acknowledge(from);
    }
    if (++ended_ == flows_.size())
        clock_.cancel();
}

// False: that was the end.
asio::awaitable<bool> receiving_round::read_message(incoming& from)
{
    auto const [code, size] = co_await async_read(from.rx, from.landing, deferred_tuple);
    if (size > 0) {
        fragment const arrived{from.landing.address(), size, from.landing.kind()};
        count(from, {&arrived, 1});
    }
    if (code != asio::error::eof)
        check(code, "read", fmt::format("flow {}", from.what.flow));
    co_return !code;
}

asio::awaitable<bool> receiving_round::take_loan(incoming& from)
{
    auto [code, loan] = co_await from.rx.async_receive(deferred_tuple);
    if (code != asio::error::eof)
        check(code, "receive", fmt::format("flow {}", from.what.flow));
    loan.acquire();
    count(from, loan.fragments());
    co_return !code;
}

void receiving_round::count(incoming& of, std::span<fragment const> arrived) const
{
    for (auto const& each : arrived) {
        of.bytes += each.size;
        if (wanted_.verify)
            of.check.take({reinterpret_cast<std::byte const*>(each.address), each.size});
    }
}

asio::awaitable<void> receiving_round::acknowledge(incoming& to)
{
    auto const messages = to.bytes / to.what.message_size;
    if (messages == to.acknowledged)
        co_return;
    to.acknowledged = messages;
    auto const text = encode(messages);
    auto const [code, size] = co_await asio::async_write(to.rx, asio::buffer(text), deferred_tuple);
    check(code, "acknowledge", fmt::format("messages of flow {}", to.what.flow));
}

// Sets what is measured, but for what the bytes were like.
asio::awaitable<void> receiving_round::measure(request what)
{
    std::chrono::milliseconds const wanted{what.measured_ms};
    clock_.expires_after(std::chrono::milliseconds{what.warm_up_ms});
    auto const [cut] = co_await clock_.async_wait(deferred_tuple);
    auto const begin = clock::now();
    auto const cpu = cpu_time_now();
    auto const bytes = received();
    if (!cut) {
        clock_.expires_at(begin + wanted);
        auto const [cut_too] = co_await clock_.async_wait(deferred_tuple);
        static_cast<void>(cut_too);
    }
    auto const time = clock::now() - begin;
    if (time < wanted / 2)
        check(asio::error::connection_aborted, "measure", "the load",
              "the client disconnected before the end of the round");
    auto const used = cpu_time_now();
    measured_.nanoseconds = static_cast<std::uint64_t>(time.count());
    measured_.bytes = received() - bytes;
    measured_.process_cpu_ns = static_cast<std::uint64_t>((used.process - cpu.process).count());
    measured_.machine_cpu_ns = static_cast<std::uint64_t>((used.machine - cpu.machine).count());
}

std::uint64_t receiving_round::received() const noexcept
{
    std::uint64_t bytes = 0;
    for (auto const& each : flows_)
        bytes += each.bytes;
    return bytes;
}

asio::awaitable<void> receiving_round::write_result()
{
    auto const end = encode(end_of_load);
    auto const text = encode(measured_);
    for (auto& each : flows_) {
        auto [code, size] = co_await asio::async_write(each.rx, asio::buffer(end), deferred_tuple);
        if (!code && each.what.flow == 0)
            std::tie(code, size) = co_await asio::async_write(each.rx, asio::buffer(text), deferred_tuple);
        check(code, "send the result to", "the client");
    }
}

struct outcome {
    std::optional<result> made;  // neither: somebody wants it to end
    std::exception_ptr failure;
};

outcome run_round(asio::io_context& context, server_options const& wanted, setting const& how)
{
    receiving_round one{wanted, how, context.get_executor()};
    outcome of;
    asio::co_spawn(context, one.run(), [&](std::exception_ptr failure, result measured) {
        context.stop();
        of.failure = failure;
        if (!failure)
            of.made = measured;
    });
    context.restart();
    context.run();
    return of;
}

void say(unsigned number, setting const& how, outcome const& of)
try {
    if (of.failure)
        std::rethrow_exception(of.failure);
    fmt::print(stderr, "round {}: {}: {} bytes, {:.3f} s of CPU\n", number + 1, how.name, of.made->bytes,
               static_cast<double>(of.made->process_cpu_ns) * 1e-9);
    if (of.made->wrong_words > 0)
        fmt::print(stderr, "error: {} words of the payload differ from the sent ones\n", of.made->wrong_words);
} catch (system_error const& error) {
    fmt::print(stderr, "error: round {}: {}\n", number + 1, error.what());
}

}  // namespace

exit_status serve(server_options const& wanted)
{
    asio::io_context context{1};
    auto told_to_end = false;
    // For all rounds: one that comes between two of them is not to be lost.
    asio::signal_set signals{context, SIGINT, SIGTERM};
    signals.async_wait([&](error_code /*stopped*/, int /*number*/) {
        told_to_end = true;
        context.stop();
    });
    auto status = measured;
    for (unsigned number = 0; !told_to_end && (wanted.rounds == 0 || number < wanted.rounds); ++number) {
        auto const& how = wanted.settings[number % wanted.settings.size()];
        auto const of = run_round(context, wanted, how);
        if (!of.made && !of.failure)
            break;
        say(number, how, of);
        if (of.failure && wanted.rounds > 0)
            return failed;
        if (of.made && of.made->wrong_words > 0)
            status = wrong_bytes;
    }
    return status;
}

}  // namespace gpurx::perf
