// SPDX-License-Identifier: Apache-2.0
//
// Records where a real run put its bytes, for tests/gpu/trace.txt. Not a test; run by name:
//   GPURX_TRACE=FILE tests/lab/run.sh '[.trace]'
#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <fstream>

#include "bed.hpp"
#include "nic.hpp"

using namespace gpurx::lab;

namespace {

// The fragments of one flow beside others, loans kept for a while: as a busy program has them.
asio::awaitable<void> record(gpurx::receiver rx, std::uintptr_t memory, std::ostream& out)
{
    std::vector<gpurx::rx_buffer> kept;
    for (;;) {
        auto [error, loan] = co_await rx.async_receive(token);
        if (error)
            co_return;
        for (auto const& piece : loan.fragments())
            if (piece.kind == gpurx::memory_kind::host && piece.address >= memory)
                out << fmt::format("{} {}\n", piece.address - memory, piece.size);
        kept.push_back(std::move(loan));
        if (kept.size() > 3)
            kept.erase(kept.begin());
    }
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "record where the bytes of a run lie", "[.trace]")
{
    auto const* const path = std::getenv("GPURX_TRACE");
    if (path == nullptr)
        SKIP("GPURX_TRACE names no file");
    std::ofstream out{path};
    constexpr std::size_t size = 32 * mebibyte;
    auto session = open_session(size, {.max_flows = 4});
    asio::io_context context{1};
    auto acceptor = listen_on(session, context.get_executor(), family::v4);
    std::vector<std::unique_ptr<peer_sender>> senders;
    std::vector<outcome> others(3);
    for (std::uint64_t i = 0; i < 4; ++i)
        senders.push_back(std::make_unique<peer_sender>(acceptor.local_endpoint(), stream{i + 1, 6 * mebibyte}));
    for (std::size_t i = 0; i < 4; ++i) {
        gpurx::receiver rx{context, session, acceptor.accept()};
        if (i == 0)
            asio::co_spawn(context, record(std::move(rx), session.memory().span().address(), out), rethrow);
        else
            asio::co_spawn(context, consume(std::move(rx), way::loan, others[i - 1]), rethrow);
    }
    context.run();
    CHECK(out.good());
}
