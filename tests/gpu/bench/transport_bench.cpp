// SPDX-License-Identifier: Apache-2.0
//
// Transport copy over loopback into a GPU's memory: its rate and its CPU time, beside a recv loop that copies nothing
// to the GPU (what the kernel's TCP allows) and one that copies and waits. All sockets have the same receive buffer.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <functional>
#include <map>
#include <stdexcept>
#include <system_error>

#include <gpurx/gpurx.hpp>

#include "bench.hpp"
#include "clock.hpp"

namespace gpurx::bench {

namespace {

using asio::ip::tcp;

constexpr std::size_t mebibyte = std::size_t{1} << 20;
// As much as the library asks for at a time.
constexpr std::size_t one_receive = 512 << 10;

struct load {
    std::string name;
    std::uint64_t bytes;
    std::uint64_t rate;  // of the sender, bytes per second; 0: as fast as it can
    bool judged;
};

struct results {
    samples rate;     // GB/s
    samples process;  // CPU seconds per GiB
    samples thread;
};

class bench {
  public:
    bench(device const& on, feeder& from);
    void run(load const& what, int rounds, report& into, section& table);

  private:
    // Receives so many bytes from a connection; they are where they belong when it returns.
    using receive = std::function<void(std::uint64_t)>;
    using way = void (bench::*)(tcp::socket, std::function<void(receive const&)> const&);

    void measure(load const& what, way by, results& into);

    void in_place(tcp::socket from, std::function<void(receive const&)> const& run);
    void into_tensor(tcp::socket from, std::function<void(receive const&)> const& run);
    void plain(tcp::socket from, std::function<void(receive const&)> const& run);
    void plain_and_copy(tcp::socket from, std::function<void(receive const&)> const& run);

    void receive_in_place(receiver& rx);
    void read_into_tensor(receiver& rx);
    template <class Start>
    void run_io(std::uint64_t bytes, Start start);
    [[nodiscard]] std::size_t receive_some(int fd, std::uint64_t most) const;

    feeder& from_;
    asio::io_context io_{1};
    rx_session session_;
    tcp::acceptor acceptor_{io_};
    stream stream_;
    device_bytes tensor_;
    pinned_bytes pinned_;
    std::uint64_t left_ = 0;
};

bench::bench(device const& on, feeder& from)
    : from_{from},
      session_{{.transport = transport::copy, .max_flows = 4},  // the last ones may wait for their streams
               device_memory::on_gpu(on.gpu().ordinal(), 64 * mebibyte)},
      stream_{on},
      tensor_{on, 64 * mebibyte},
      pinned_{on, one_receive}
{
    acceptor_.open(tcp::v4());
    acceptor_.bind({asio::ip::address_v4::loopback(), 0});
    session_.steer(acceptor_);
    acceptor_.listen();
}

void bench::run(load const& what, int rounds, report& into, section& table)
{
    static std::vector<std::pair<std::string, way>> const ways{
        {"recv, nothing to the GPU", &bench::plain},
        {"async_receive, release_after", &bench::in_place},
        {"async_read into a tensor", &bench::into_tensor},
        {"recv, blocking cuMemcpy", &bench::plain_and_copy},
    };
    std::map<std::string, results> by_way;
    for (int round = -1; round < rounds; ++round)
        for (auto const& [name, by] : ways) {
            results unused;
            measure(what, by, round < 0 ? unused : by_way[name]);
        }
    for (auto const& [name, by] : ways) {
        auto const& got = by_way[name];
        fields row{{"sender", what.name}, {"receiver", name}};
        add_samples(row, "gb_per_s", got.rate);
        add_samples(row, "process_cpu_s_per_gib", got.process);
        add_samples(row, "thread_cpu_s_per_gib", got.thread);
        table.rows.push_back(std::move(row));
    }
    if (!what.judged)
        return;
    auto const& bound = by_way[ways[0].first];
    auto const& blocking = by_way[ways[3].first];
    for (auto const i : {1U, 2U}) {
        auto const& [name, by] = ways[i];
        auto const& ours = by_way[name];
        auto const rate = ours.rate.median();
        auto const cpu = ours.process.median();
        into.add({name + ": rate / recv without GPU", rate / bound.rate.median(), "x", 0.95, true});
        into.add({name + ": CPU / recv without GPU", cpu / bound.process.median(), "x", 1.05, false});
        into.add({name + ": rate / recv with blocking cuMemcpy", rate / blocking.rate.median(), "x", 1, true});
        into.add({name + ": CPU / recv with blocking cuMemcpy", cpu / blocking.process.median(), "x", 1, false});
    }
}

void bench::measure(load const& what, way by, results& into)
{
    from_.connect(acceptor_.local_endpoint().port());
    auto const run = [&](receive const& get) {
        // The connection's windows open, and what is made on first use is made.
        constexpr auto warm_up = 32 * mebibyte;
        from_.send(warm_up);
        get(warm_up);
        auto const start = times::now();
        from_.send(what.bytes, what.rate);
        get(what.bytes);
        auto const took = times::now().since(start);
        auto const gibibytes = static_cast<double>(what.bytes) / static_cast<double>(1U << 30);
        into.rate.add(static_cast<double>(what.bytes) / took.wall * 1e-9);
        into.process.add(took.process / gibibytes);
        into.thread.add(took.thread / gibibytes);
    };
    (this->*by)(acceptor_.accept(), run);
    from_.close();
}

template <class Start>
void bench::run_io(std::uint64_t bytes, Start start)
{
    left_ = bytes;
    start();
    io_.restart();
    io_.run();
    stream_.finish();
}

void bench::in_place(tcp::socket from, std::function<void(receive const&)> const& run)
{
    receiver rx{io_, session_, std::move(from)};
    run([&](std::uint64_t bytes) { run_io(bytes, [&] { receive_in_place(rx); }); });
}

void bench::receive_in_place(receiver& rx)
{
    rx.async_receive([this, &rx](error_code code, rx_buffer loan) {
        if (code)
            throw boost::system::system_error{code, "async_receive"};
        left_ -= loan.size();
        loan.acquire(stream_.ref());
        loan.release_after(stream_.ref());
        if (left_ > 0)
            receive_in_place(rx);
    });
}

void bench::into_tensor(tcp::socket from, std::function<void(receive const&)> const& run)
{
    receiver rx{io_, session_, std::move(from)};
    run([&](std::uint64_t bytes) { run_io(bytes, [&] { read_into_tensor(rx); }); });
}

void bench::read_into_tensor(receiver& rx)
{
    auto const all = tensor_.span();
    auto const part = all.first(static_cast<std::size_t>(std::min<std::uint64_t>(all.size(), left_)));
    async_read(rx, part, stream_.ref(), [this, &rx](error_code code, std::size_t bytes) {
        if (code)
            throw boost::system::system_error{code, "async_read"};
        left_ -= bytes;
        if (left_ > 0)
            read_into_tensor(rx);
    });
}

std::size_t bench::receive_some(int fd, std::uint64_t most) const
{
    for (;;) {
        auto const got = ::recv(fd, pinned_.data(), std::min<std::uint64_t>(most, pinned_.size()), 0);
        if (got > 0)
            return static_cast<std::size_t>(got);
        if (got == 0)
            throw std::runtime_error{"the sender has gone"};
        if (errno != EINTR)
            throw std::system_error{errno, std::system_category(), "recv"};
    }
}

void bench::plain(tcp::socket from, std::function<void(receive const&)> const& run)
{
    run([&](std::uint64_t bytes) {
        while (bytes > 0)
            bytes -= receive_some(from.native_handle(), bytes);
    });
}

void bench::plain_and_copy(tcp::socket from, std::function<void(receive const&)> const& run)
{
    run([&](std::uint64_t bytes) {
        for (std::size_t at = 0; bytes > 0;) {
            auto const got = receive_some(from.native_handle(), bytes);
            at = at + got > tensor_.span().size() ? 0 : at;
            tensor_.write({pinned_.data(), got}, at);
            at += got;
            bytes -= got;
        }
    });
}

}  // namespace

void bench_transport(device const& on, options const& how, feeder& from, report& into)
{
    auto& table = into.begin("transport",
                             "one flow over loopback; GB/s, and CPU seconds per GiB of the receiving process "
                             "and thread, median (min-max)");
    bench all{on, from};
    std::uint64_t const fast = how.quick ? 64 : 2048;
    std::uint64_t const paced = how.quick ? 16 : 256;
    all.run({.name = "as fast as it can", .bytes = fast * mebibyte, .rate = 0, .judged = true}, how.quick ? 2 : 9, into,
            table);
    all.run({.name = "1 GB/s", .bytes = paced * mebibyte, .rate = 1'000'000'000, .judged = false}, how.quick ? 1 : 7,
            into, table);
    into.print_section();
}

}  // namespace gpurx::bench
