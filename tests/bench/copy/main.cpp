// SPDX-License-Identifier: Apache-2.0
//
// Counts what transport copy asks of the kernel and of the fake driver to receive into a GPU's memory over loopback.
//
// Usage: copy_bench WAY MIB BYTES_PER_SECOND ROUNDS. WAY: read, receive, lanes (eight reads, each on a thread), forked
// (lanes with a stream each).
// BYTES_PER_SECOND: of each sender; 0 queues. Prints a line `NAME VALUE...` for each count, a value for each round.
#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gpurx/gpurx.hpp>

#include "../../gpu/bench/clock.hpp"
#include "../../gpu/bench/feeder.hpp"
#include "fake_cuda.hpp"
#include "locks.hpp"

namespace gpurx::bench {

namespace {

using asio::ip::tcp;

constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr std::size_t tensor_size = 64 * mebibyte;
constexpr unsigned lanes = 8;
constexpr auto warm_up = 32 * mebibyte;

CUdeviceptr allocate(std::size_t size)
{
    CUcontext context = nullptr;
    CUdeviceptr address = 0;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxPushCurrent(context);
    cuMemAlloc(&address, size);
    cuCtxPopCurrent(nullptr);
    return address;
}

void check(error_code code)
{
    if (code)
        throw boost::system::system_error{code};
}

class lane {
  public:
    lane(rx_session& session, tcp::acceptor& acceptor, feeder& from, cuda_stream_ref stream)
        : from_{from}, stream_{stream}
    {
        from_.connect(acceptor.local_endpoint().port());
        rx_ = std::make_unique<receiver>(io_, session, acceptor.accept(io_));
    }
    void run(bool lends, std::uint64_t bytes, std::uint64_t rate)
    {
        from_.send(bytes, rate);
        left_ = bytes;
        lends ? receive() : read();
        io_.restart();
        io_.run();
    }
    [[nodiscard]] gpurx::stats stats() const { return rx_->stats(); }
    [[nodiscard]] std::size_t loans() const { return loans_; }

  private:
    void read()
    {
        auto const size = std::min<std::uint64_t>(tensor_size, left_);
        async_read(*rx_, memory_span{memory_kind::device, tensor_, static_cast<std::size_t>(size)}, stream_,
                   [this](error_code code, std::size_t bytes) {
                       check(code);
                       if ((left_ -= bytes) > 0)
                           read();
                   });
    }
    void receive()
    {
        rx_->async_receive([this](error_code code, rx_buffer loan) {
            check(code);
            ++loans_;
            left_ -= loan.size();
            loan.acquire(stream_);
            loan.release_after(stream_);
            if (left_ > 0)
                receive();
        });
    }

    asio::io_context io_{1};
    feeder& from_;
    cuda_stream_ref stream_;
    std::unique_ptr<receiver> rx_;
    CUdeviceptr tensor_ = allocate(tensor_size);
    std::uint64_t left_ = 0;
    std::size_t loans_ = 0;
};

using counts = std::map<std::string, double>;

// Returns the counts of the process and of the lanes so far.
counts count(std::vector<std::unique_ptr<lane>> const& all)
{
    counts now{{"copies", fake_cuda::calls("cuMemcpyHtoDAsync")},
               {"pageable copies", fake_cuda::pageable_copies()},
               {"events recorded", fake_cuda::calls("cuEventRecord")},
               {"events created", fake_cuda::calls("cuEventCreate")},
               {"under shared locks", calls_under_shared_locks()}};
    for (auto const& one : all) {
        auto const stats = one->stats();
        now["recvs"] += static_cast<double>(stats.receive_calls);
        now["waits"] += static_cast<double>(stats.waits);
        now["pauses"] += static_cast<double>(stats.loan_waits);
        now["loans"] += static_cast<double>(one->loans());
    }
    return now;
}

void run(std::string const& way, std::vector<std::unique_ptr<lane>> const& all, std::uint64_t bytes, std::uint64_t rate)
{
    if (all.size() == 1)
        return all.front()->run(way == "receive", bytes, rate);
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < all.size(); ++i)
        threads.emplace_back([&, i] {
            count_as_lane(i);
            all[i]->run(false, bytes, rate);
        });
}

}  // namespace

}  // namespace gpurx::bench

int main(int argc, char** argv)
{
    using namespace gpurx::bench;
    namespace asio = gpurx::asio;
    if (argc != 5) {
        std::fprintf(stderr, "usage: copy_bench read|receive|lanes|forked MIB BYTES_PER_SECOND ROUNDS\n");
        return 2;
    }
    std::string const way{argv[1]};
    auto const bytes = std::strtoull(argv[2], nullptr, 10) * mebibyte;
    auto const rate = std::strtoull(argv[3], nullptr, 10);
    auto const flows = way == "lanes" || way == "forked" ? lanes : 1;
    std::vector<feeder> feeders(flows);  // first, because they fork
    asio::io_context accepts{1};
    gpurx::rx_session session{{.transport = gpurx::transport::copy, .max_flows = 2 * flows},
                              gpurx::device_memory::on_gpu(0, 64 * mebibyte)};
    tcp::acceptor acceptor{accepts};
    acceptor.open(tcp::v4());
    acceptor.bind({asio::ip::address_v4::loopback(), 0});
    session.steer(acceptor);
    acceptor.listen();
    auto stream = gpurx::cuda_stream::on(0);
    gpurx::memory_span const memory{gpurx::memory_kind::device, allocate(1), 1};
    gpurx::stream_fork const fork{stream, {&memory, 1}, way == "forked" ? flows : 1};
    std::vector<std::unique_ptr<lane>> all;
    for (auto& from : feeders)
        all.push_back(std::make_unique<lane>(session, acceptor, from, fork[all.size()]));
    run(way, all, warm_up, 0);
    // The stream of several flows falls behind them, so that they look at its backlog.
    if (flows > 1)
        fake_cuda::set_delay_per_byte(std::chrono::duration<double, std::nano>{0.5});
    std::map<std::string, std::vector<double>> rows;
    for (auto rounds = std::atoi(argv[4]); rounds > 0; --rounds) {
        auto const before = count(all);
        auto const start = times::now();
        run(way, all, bytes, rate);
        auto const took = times::now().since(start);
        auto const gibibytes = static_cast<double>(bytes * flows) / static_cast<double>(1U << 30);
        for (auto const& [name, value] : count(all))
            rows[name].push_back((value - before.at(name)) / gibibytes);
        rows["CPU s, process"].push_back(took.process / gibibytes);
        rows["CPU s, thread"].push_back(took.thread / gibibytes);
        rows["GB/s"].push_back(static_cast<double>(bytes * flows) / took.wall * 1e-9);
    }
    for (auto const& [name, values] : rows) {
        std::printf("%s", name.c_str());
        for (auto const value : values)
            std::printf("\t%.7g", value);
        std::printf("\n");
    }
    return 0;
}
