// SPDX-License-Identifier: Apache-2.0
//
// The NIC writes memory that a CUDA driver allocated and exported: the fake one, whose memory is udmabuf's here. No
// byte of it can be touched by the CPU.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <gpurx/gather.hpp>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../gpu/bed.hpp"
#include "bed.hpp"
#include "daemon.hpp"
#include "fake_cuda.hpp"
#include "nic.hpp"
#include "parts.hpp"
#include "rights.hpp"

using namespace gpurx::lab;
using gpurx::detail::cuda::gpu;
using gpurx::test::gpu_bytes;
using gpurx::test::gpu_or_skip;
using gpurx::test::gpu_test_stream;

namespace {

using gpu_streams = std::vector<std::unique_ptr<gpu_test_stream>>;

gpu_streams streams_on(gpu& on)
{
    gpu_streams all;
    for (int i = 0; i < 3; ++i)
        all.push_back(std::make_unique<gpu_test_stream>(on));
    return all;
}

void finish(gpu_streams const& streams)
{
    for (auto const& each : streams)
        each->finish();
}

// One connection's bytes, on their way into memory of a GPU.
struct gpu_flow {
    gpu_flow(gpu& on, std::uint64_t bytes) : tensor{on, bytes} {}

    gpu_bytes tensor;
    bool only_lent = false;  // its loans are given back as they are
    std::uint64_t seed = 0;
    std::uint64_t position = 0;  // enqueued so far
    gpurx::error_code error;
    gpurx::stats stats;
};

// Once all of the streams have run.
bool holds(gpu_flow const& flow)
{
    auto const bytes = flow.tensor.read();
    for (std::size_t at = 0; at < bytes.size(); at += pattern_period) {
        auto const expected = pattern(flow.seed, at).first(std::min(pattern_period, bytes.size() - at));
        if (!std::ranges::equal(expected, std::span{bytes}.subspan(at, expected.size())))
            return false;
    }
    return flow.position == bytes.size();
}

// Reads and loans in turn, each on the next of the streams, until an error: the peer's end, too.
asio::awaitable<void> consume_on_gpu(gpurx::receiver rx, gpu_streams const& streams, std::size_t largest,
                                     gpu_flow& flow)
{
    co_await gpurx::async_read(rx, gpurx::host_span(flow.seed));
    std::mt19937 random{10};
    auto const all = flow.tensor.span();
    for (std::size_t i = 0; !flow.error; ++i) {
        auto const stream = streams[i % streams.size()]->ref();
        auto const there = all.subspan(flow.position, all.size() - flow.position);
        if (i % 2 == 0 && !flow.only_lent) {
            auto const wanted = std::min<std::size_t>(1 + random() % largest, there.size());
            auto const [error, size] = co_await gpurx::async_read(rx, there.first(wanted), stream, token);
            flow.position += size;
            flow.error = error;
        } else {
            auto [error, loan] = co_await rx.async_receive(token);
            flow.error = error;
            if (flow.only_lent) {
                flow.position += loan.size();
                continue;
            }
            if (!error)
                flow.position += gpurx::gather(loan.fragments(), there, stream, flow.error);
            loan.release_after(stream);
        }
    }
    flow.stats = rx.stats();
}

bool says(std::string const& text, std::string_view words)
{
    return text.find(words) != std::string::npos;
}

// One connection that the NIC writes into the memory, and streams of the GPU read there. The session's words.
std::string receive_through(gpurx::device_memory const& memory, gpu& on)
{
    constexpr std::uint64_t bytes = 6 * mebibyte + 123;
    auto const streams = streams_on(on);
    gpu_flow flow{on, bytes};
    std::string explained;
    {
        auto session = open_session(memory, {.max_flows = 2});
        explained = session.explain();
        INFO(explained);
        asio::io_context context{1};
        auto acceptor = listen_on(session, context.get_executor(), family::v4);
        peer_sender const sender{acceptor.local_endpoint(), {77, bytes}};
        asio::co_spawn(context, consume_on_gpu({context, session, acceptor.accept()}, streams, 200'000, flow), rethrow);
        context.run();
        finish(streams);
    }
    CHECK(flow.error == asio::error::eof);
    CHECK(flow.seed == 77);
    CHECK(holds(flow));
    CHECK(flow.stats.device_bytes == bytes + sizeof flow.seed);
    CHECK(flow.stats.release_failures == 0);
    CHECK(flow.stats.release_shortfalls == 0);
    CHECK(fake_cuda::violations().empty());
    return explained;
}

// The third is for one test: what a GPU can is read once.
bool const three_gpus = (fake_cuda::set_devices(3), true);

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "the NIC writes a GPU's memory, and streams read it before its pages go back",
                 "[smoke][gpu]")
{
    auto& on = gpu_or_skip();
    auto const memory = gpurx::device_memory::on_gpu(0, 16 * mebibyte);
    INFO(memory.explain());
    REQUIRE(memory.dmabuf_fd() >= 0);
    REQUIRE(says(memory.explain(), "exported by udmabuf"));
    static_cast<void>(receive_through(memory, on));
}

TEST_CASE_METHOD(unchanged_nic, "the NIC writes pinned memory of the host, and kernels read it where it lies", "[gpu]")
{
    REQUIRE(three_gpus);
    fake_cuda::set_attribute(2, CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED, 0);  // as an H100's
    auto& on = gpu_or_skip(2);
    auto const pinned = [] { return fake_cuda::live().host_registrations; };
    auto const copies = [] { return fake_cuda::calls("cuMemcpyAsync") + fake_cuda::calls("cuMemcpyHtoDAsync"); };
    auto const before = pinned();
    {
        auto const memory = gpurx::device_memory::on_pinned_host(16 * mebibyte, 2);
        INFO(memory.explain());
        REQUIRE(memory.dmabuf_fd() >= 0);
        REQUIRE(says(memory.explain(), "host memory pinned for GPU 2"));
        REQUIRE(says(memory.explain(), "exported by udmabuf"));
        CHECK(pinned() == before + 1);
        auto const copied = copies();
        static_cast<void>(receive_through(memory, on));
        CHECK(copies() == copied);
    }
    CHECK(pinned() == before);
}

TEST_CASE_METHOD(unchanged_nic, "memory whose export for PCIe no NIC can be attached to is bound by its other one",
                 "[gpu]")
{
    auto& on = gpu_or_skip();
    fake_cuda::set_pcie_mapping(0, true);
    fake_cuda::set_pcie_attaches(0, false);
    auto const memory = gpurx::device_memory::on_gpu(0, 16 * mebibyte);
    fake_cuda::reset_settings();
    REQUIRE(says(memory.explain(), "for PCIe"));
    auto const exports = [] { return fake_cuda::calls("cuMemGetHandleForAddressRange"); };
    // It is not tried where the first one is not the reason.
    gpurx::error_code code;
    gpurx::diagnostics why;
    gpurx::rx_session_options const too_much{
        .interface = near_interface, .rx_queues = 100, .transport = gpurx::transport::devmem};
    CHECK_FALSE(gpurx::rx_session::open(too_much, memory, code, why).has_value());
    INFO(describe(code, why));
    CHECK(why.operation != "bind-rx");
    CHECK(exports() == 0);

    CHECK(says(receive_through(memory, on), "exported again, as the NIC cannot attach to the first dmabuf"));
    CHECK(exports() == 1);
}

#ifdef GPURX_GPURXD
TEST_CASE_METHOD(unchanged_nic, "the NIC writes a GPU's memory for a process without rights, by gpurxd",
                 "[gpu][gpurxd]")
{
    running_daemon const daemon{"allow user 0 interface dms0 memory 64MiB\n"};
    auto& on = gpu_or_skip();
    auto const memory = gpurx::device_memory::on_gpu(0, 16 * mebibyte);
    {
        without_net_admin const rights;
        CHECK(says(receive_through(memory, on), "set up by gpurxd"));
    }
    CHECK(settled(settings_before()));
}
#endif

namespace {

// Two GPUs behind one port, and flows that take turns on them.
class two_gpus {
  public:
    explicit two_gpus(unsigned flows) : session_{open_parts(memories(), flows)}
    {
        for (int ordinal = 0; ordinal < 2; ++ordinal)
            streams_.push_back(streams_on(gpu_or_skip(ordinal)));
    }

    gpurx::rx_session& session() { return session_; }
    gpu_flow& flow(std::size_t i) { return *std::next(flows_.begin(), static_cast<std::ptrdiff_t>(i)); }
    [[nodiscard]] std::size_t ended() const { return ended_; }
    [[nodiscard]] std::uint16_t port() const { return from_.local_endpoint().port(); }
    peer_sender& peer(std::size_t i) { return *std::next(peers_.begin(), static_cast<std::ptrdiff_t>(i)); }
    bool run(std::function<bool()> const& ready) { return run_until(context_, ready); }
    void finish_streams(int ordinal) { finish(streams_[static_cast<std::size_t>(ordinal)]); }

    // A connection that goes on GPU `ordinal`: it sends so many bytes, and holds on after the first `at_once`.
    gpu_flow& connect(int ordinal, std::uint64_t bytes, std::uint64_t at_once = peer_sender::no_pause)
    {
        auto& flow = flows_.emplace_back(gpu_or_skip(ordinal), bytes);
        peers_.emplace_back(from_.local_endpoint(), stream{.seed = 100 + flows_.size(), .bytes = bytes}, at_once);
        gpurx::receiver rx{context_, session_};
        bool accepted = false;
        from_.async_accept(rx, [&](gpurx::error_code code) {
            CHECK_FALSE(code);
            accepted = true;
        });
        REQUIRE(run_until(context_, [&] { return accepted; }));
        auto const& streams = streams_[static_cast<std::size_t>(ordinal)];
        asio::co_spawn(context_, consume_on_gpu(std::move(rx), streams, 20'000, flow), [&](std::exception_ptr failure) {
            ++ended_;
            rethrow(failure);
        });
        return flow;
    }

  private:
    static std::vector<gpurx::device_memory> memories()
    {
        std::vector<gpurx::device_memory> all;
        all.reserve(2);
        for (int ordinal = 0; ordinal < 2; ++ordinal)
            all.push_back(gpurx::device_memory::on_gpu(ordinal, 32 * mebibyte));
        return all;
    }

    std::vector<gpu_streams> streams_;
    gpurx::rx_session session_;
    std::list<gpu_flow> flows_;
    asio::io_context context_{1};
    gpurx::acceptor from_{context_, session_, tcp::endpoint{near_address(family::v4), 0}};
    std::list<peer_sender> peers_;
    std::size_t ended_ = 0;
};

void check_arrived(gpu_flow const& flow)
{
    CHECK(flow.error == asio::error::eof);
    CHECK(holds(flow));
    CHECK(flow.stats.host_bytes == 0);
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "64 flows of one port take turns on two GPUs, moved while bytes are under way", "[gpu]")
{
    constexpr std::size_t flows = 64;
    constexpr std::uint64_t each = mebibyte / 8;
    constexpr std::uint64_t at_once = each / 2;
    two_gpus on{flows};
    INFO(on.session().explain());
    for (std::size_t i = 0; i < flows; ++i)
        on.connect(static_cast<int>(i % 2), each, at_once);
    REQUIRE(on.run([&] { return rules_of_flows(on.port()) == flows / 2; }));
    for (std::size_t i = 0; i < flows; ++i)
        on.peer(i).resume();
    REQUIRE(on.run([&] { return on.ended() == flows; }));
    on.finish_streams(0);
    on.finish_streams(1);
    for (std::size_t i = 0; i < flows; ++i) {
        CAPTURE(i);
        check_arrived(on.flow(i));
        auto const& stats = on.flow(i).stats;
        CHECK(stats.device_bytes + stats.resteered_bytes == each + sizeof(std::uint64_t));
        CHECK((i % 2 == 0 ? stats.resteered_bytes == 0 : stats.device_bytes >= each - at_once));
    }
    CHECK(on.session().part(1).stats().resteered_bytes > 0);
    CHECK(on.run([&] { return rules_of_flows(on.port()) == 0; }));
    check_empty(on.session().part(0));
    check_empty(on.session().part(1));
    CHECK(fake_cuda::violations().empty());
}

TEST_CASE_METHOD(unchanged_nic, "one of two GPUs in error for good ends its flows and no others", "[gpu]")
{
    constexpr std::size_t flows = 8;
    constexpr std::uint64_t each = mebibyte / 2;
    two_gpus on{2 * flows};
    for (std::size_t i = 0; i < flows; ++i)
        on.connect(static_cast<int>(i % 2), each, each / 2).only_lent = i % 4 == 3;
    REQUIRE(on.run([&] { return rules_of_flows(on.port()) == flows / 2; }));
    for (std::size_t i = 0; i < flows; ++i)
        REQUIRE(on.run([&] { return on.flow(i).position > 0; }));
    // On a slow machine all of that came before the rule that takes a flow to the second GPU's memory.
    for (std::size_t i = 0; i < flows; ++i)
        on.peer(i).pause_at(each / 4 * 3);
    REQUIRE(on.run([&] { return on.session().part(1).stats().device_bytes > 0; }));

    fake_cuda::break_context(1, CUDA_ERROR_ILLEGAL_ADDRESS);
    // It would be the second one's turn for one of them.
    on.connect(0, each);
    on.connect(0, each);
    for (std::size_t i = 0; i < flows; ++i)
        on.peer(i).resume();
    REQUIRE(on.run([&] { return on.ended() == flows + 2; }));

    on.finish_streams(0);
    for (std::size_t i = 0; i < flows + 2; ++i) {
        CAPTURE(i);
        if (i % 2 == 0 || i >= flows)
            check_arrived(on.flow(i));
        else
            CHECK(on.flow(i).error == gpurx::detail::cuda::error_of(CUDA_ERROR_ILLEGAL_ADDRESS));
    }
    CHECK(on.run([&] { return rules_of_flows(on.port()) == 0; }));
    check_empty(on.session().part(0));
    check_empty(on.session().part(1));
    fake_cuda::break_context(1, CUDA_SUCCESS);
    CHECK(gpu_or_skip(1).failure(true) == CUDA_SUCCESS);
    CHECK(fake_cuda::violations().empty());
}
