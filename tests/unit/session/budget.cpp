// SPDX-License-Identifier: Apache-2.0
#include "session/budget.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "base/byte_size.hpp"

using Catch::Matchers::ContainsSubstring;
using gpurx::detail::budget;
using gpurx::detail::budget_request;
using gpurx::detail::demand_of;
using gpurx::detail::kibibyte;
using gpurx::detail::mebibyte;
using gpurx::detail::part_condition;
using gpurx::detail::part_turns;
using gpurx::detail::plan_budget;
using gpurx::detail::plan_copy_budget;
using gpurx::detail::ring_demand;
using gpurx::detail::smallest_share;

TEST_CASE("a frame of the ring takes whole pages, or the power of two above MTU and 512 bytes")
{
    struct row {
        std::uint32_t mtu;
        std::size_t page;
        std::size_t per_frame;
    };
    for (auto const& [mtu, page, per_frame] : {
             row{1500, 4 * kibibyte, 4 * kibibyte},
             row{1500, 1 * kibibyte, 2 * kibibyte},
             row{3584, 4 * kibibyte, 4 * kibibyte},  // with 512 exactly a power of two
             row{3585, 4 * kibibyte, 8 * kibibyte},
             row{4096, 4 * kibibyte, 8 * kibibyte},
             row{9000, 4 * kibibyte, 16 * kibibyte},
             row{9000, 16 * kibibyte, 16 * kibibyte},
             row{1500, 64 * kibibyte, 64 * kibibyte},
             row{9000, 64 * kibibyte, 64 * kibibyte},
         }) {
        CAPTURE(mtu, page);
        CHECK(demand_of({1, mtu}, 1, page).bytes() == per_frame);
    }
    // What users of mlx5 report.
    CHECK(demand_of({8192, 9000}, 1, 4 * kibibyte).bytes() == 128 * mebibyte);
    CHECK(demand_of({1024, 1500}, 3, 4 * kibibyte).bytes() == 12 * mebibyte);
}

TEST_CASE("a ring of unknown size demands nothing, and the text states that")
{
    auto const unknown = demand_of({std::nullopt, 1500}, 2, 4 * kibibyte);
    CHECK(unknown.bytes() == 0);
    CHECK_FALSE(unknown.is_tight(4 * kibibyte));
    CHECK_THAT(describe(unknown, "eth0"), ContainsSubstring("eth0 keeps is not known"));
}

TEST_CASE("a ring that takes more than a quarter of the memory is tight")
{
    auto const one = demand_of({128, 1500}, 1, 4 * kibibyte);
    CHECK_FALSE(one.is_tight(2 * mebibyte));
    CHECK(one.is_tight(2 * mebibyte - 4 * kibibyte));
    CHECK_THAT(advice_on_tight_ring(one, "eth0", mebibyte),
               ContainsSubstring("the ring of eth0 keeps at least 512 KiB of it posted (128 frames of 4 KiB), of 1 MiB "
                                 "in all: give more memory, or make the ring smaller (ethtool -G eth0 rx 64)"));
    auto const two = demand_of({1024, 9000}, 2, 4 * kibibyte);
    CHECK_THAT(
        advice_on_tight_ring(two, "eth0", 64 * mebibyte),
        ContainsSubstring("the 2 rings of eth0 keep at least 32 MiB of it posted (1024 frames of 16 KiB each)") &&
            ContainsSubstring("rx 512)"));
    // No ring is small enough.
    CHECK_THAT(advice_on_tight_ring(two, "eth0", 64 * kibibyte), !ContainsSubstring("ethtool"));
}

TEST_CASE("the largest ring that fits is a power of two of frames")
{
    auto const ring = demand_of({1024, 1500}, 2, 4 * kibibyte);
    CHECK(ring.frames_within(mebibyte) == 128U);
    CHECK(ring.frames_within(mebibyte - 1) == 64U);
    CHECK(ring.frames_within(8 * kibibyte) == 1U);
    CHECK_FALSE(ring.frames_within(8 * kibibyte - 1));
    CHECK_FALSE(ring_demand{}.frames_within(mebibyte));
}

TEST_CASE("the smallest share holds two large segments, or eight pages where these are larger")
{
    CHECK(smallest_share(4 * kibibyte) == 128 * kibibyte);
    CHECK(smallest_share(16 * kibibyte) == 128 * kibibyte);
    CHECK(smallest_share(64 * kibibyte) == 512 * kibibyte);
    CHECK(smallest_share(2 * mebibyte) == 16 * mebibyte);
}

TEST_CASE("half of the memory is shared out evenly, SO_RCVBUF is half a share, and loans and reads halve the rest")
{
    struct row {
        budget_request request;
        budget expected;
    };
    constexpr auto page = 4 * kibibyte;
    for (auto const& [request, expected] : {
             // Defaults.
             row{{64 * mebibyte, page, 16, 0, 0},
                 {32 * mebibyte, 2 * mebibyte, 1 * mebibyte, 1 * mebibyte, 1 * mebibyte}},
             // One flow takes it all.
             row{{64 * mebibyte, page, 1, 0, 0},
                 {32 * mebibyte, 32 * mebibyte, 16 * mebibyte, 16 * mebibyte, 16 * mebibyte}},
             // Exactly the smallest share.
             row{{4 * mebibyte, page, 16, 0, 0},
                 {2 * mebibyte, 128 * kibibyte, 64 * kibibyte, 64 * kibibyte, 64 * kibibyte}},
             // As the caller says, also more than there is: a segment is left for loans and for reads.
             row{{4 * mebibyte, page, 1, 16 * mebibyte, 0},
                 {16 * mebibyte, 16 * mebibyte, 8 * mebibyte, 64 * kibibyte, 64 * kibibyte}},
             row{{64 * mebibyte, page, 4, 8 * mebibyte, 12345},
                 {8 * mebibyte, 2 * mebibyte, 1 * mebibyte, 12345, 7 * mebibyte}},
             // Not divisible.
             row{{64 * mebibyte, page, 3, 0, 0}, {32 * mebibyte, 11184810, 5592405, 5592405, 5592405}},
             // What the kernel doubles stays an int.
             row{{std::size_t{64} << 30, page, 1, 0, 0},
                 {std::size_t{32} << 30, std::size_t{32} << 30, INT32_MAX / 2, std::size_t{16} << 30,
                  std::size_t{16} << 30}},
         }) {
        CAPTURE(request.memory, request.max_flows, request.receive_memory);
        gpurx::error_code code = gpurx::errc::no_cuda;
        gpurx::diagnostics why;
        auto const plan = plan_budget(request, code, why);
        CHECK_FALSE(code.failed());
        CHECK(plan == expected);
        // The kernel counts twice what it is given: the flows together stay within the receive memory.
        CHECK(std::size_t{2} * static_cast<std::size_t>(plan.receive_buffer_size) * request.max_flows <=
              plan.receive_memory);
    }
}

TEST_CASE("too little memory is refused with the numbers that would do")
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    CHECK(plan_budget({4 * mebibyte - 4096, 4 * kibibyte, 16, 0, 0}, code, why) == budget{});
    CHECK(code == gpurx::errc::memory_too_small);
    CHECK_THAT(describe(code, why),
               ContainsSubstring("1.9 MiB among 16 flows") && ContainsSubstring("each needs 128 KiB") &&
                   ContainsSubstring("give a memory of 4 MiB") && ContainsSubstring("lower max_flows to 15"));

    (void)plan_budget({64 * mebibyte, 4 * kibibyte, 16, mebibyte, 0}, code, why);
    CHECK(code == gpurx::errc::memory_too_small);
    CHECK_THAT(describe(code, why), ContainsSubstring("raise receive_memory to 2 MiB, or lower max_flows to 8"));

    (void)plan_budget({64 * kibibyte, 4 * kibibyte, 1, 0, 0}, code, why);
    CHECK(code == gpurx::errc::memory_too_small);
    CHECK_THAT(describe(code, why), ContainsSubstring("256 KiB") && !ContainsSubstring("lower max_flows"));

    (void)plan_budget({64 * mebibyte, 4 * kibibyte, 0, 0, 0}, code, why);
    CHECK(code == boost::system::errc::invalid_argument);
    CHECK_THAT(why.advice, ContainsSubstring("max_flows"));
}

TEST_CASE("the advice of a refusal is accepted")
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    (void)plan_budget({4 * mebibyte, 4 * kibibyte, 16, 0, 0}, code, why);
    CHECK_FALSE(code.failed());
    (void)plan_budget({4 * mebibyte - 4096, 4 * kibibyte, 15, 0, 0}, code, why);
    CHECK_FALSE(code.failed());
    (void)plan_budget({64 * mebibyte, 4 * kibibyte, 8, mebibyte, 0}, code, why);
    CHECK_FALSE(code.failed());
}

namespace {

// So many frames of a page each.
gpurx::detail::ring_demand ring_of(std::uint32_t frames, std::size_t queues = 1)
{
    return gpurx::detail::demand_of({frames, 1500}, queues, 4 * kibibyte);
}

}  // namespace

TEST_CASE("queues with a part of the memory each have room for every flow in each part")
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    budget_request request{.memory = 64 * mebibyte,
                           .page_size = 4 * kibibyte,
                           .max_flows = 4,
                           .rings = ring_of(4096, 2),
                           .interface = "eth0",
                           .parts = 2};
    auto const plan = plan_budget(request, code, why);
    CHECK_FALSE(code);
    // Of each part of 32 MiB the ring leaves 16.
    CHECK(plan == budget{16 * mebibyte, 2 * mebibyte, mebibyte, mebibyte, mebibyte});
    request.receive_memory = 16 * mebibyte;
    CHECK(plan_budget(request, code, why).share == 2 * mebibyte);
    request = {.memory = 8 * mebibyte, .page_size = 4 * kibibyte, .max_flows = 20, .parts = 2};
    CHECK(plan_budget(request, code, why) == budget{});
    CHECK_THAT(describe(code, why), ContainsSubstring("4 MiB among 20 flows on any of 2 queues") &&
                                        ContainsSubstring("each needs 128 KiB") &&
                                        ContainsSubstring("give a memory of 10 MiB") &&
                                        ContainsSubstring("lower max_flows to 16"));
    request.max_flows = 16;
    CHECK(plan_budget(request, code, why).share == 128 * kibibyte);
}

TEST_CASE("a memory is cut into equal parts of whole pages")
{
    using offsets = std::vector<std::size_t>;
    CHECK(gpurx::detail::offsets_of_parts(64 * mebibyte, 4 * kibibyte, 2) == offsets{0, 32 * mebibyte});
    CHECK(gpurx::detail::offsets_of_parts(8 * mebibyte, 2 * mebibyte, 3) == offsets{0, 2 * mebibyte, 4 * mebibyte});
    CHECK(gpurx::detail::offsets_of_parts(4 * mebibyte, 2 * mebibyte, 3) == offsets{});
}

TEST_CASE("pages posted in the NIC's rings are not shared out")
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    auto const plan = plan_budget({64 * mebibyte, 4 * kibibyte, 4, 0, 0, ring_of(4096, 2), "eth0"}, code, why);
    CHECK_FALSE(code.failed());
    CHECK(plan == budget{16 * mebibyte, 4 * mebibyte, 2 * mebibyte, 2 * mebibyte, 2 * mebibyte});
    // The caller's own receive_memory is as it was; what loans and reads have is smaller.
    auto const own =
        plan_budget({64 * mebibyte, 4 * kibibyte, 4, 8 * mebibyte, 0, ring_of(4096, 2), "eth0"}, code, why);
    CHECK_FALSE(code.failed());
    CHECK(own == budget{8 * mebibyte, 2 * mebibyte, 1 * mebibyte, 3 * mebibyte, 3 * mebibyte});
}

TEST_CASE("a memory that cannot feed rings and flows is refused with the numbers and the ways out")
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    auto const plan = [&](std::size_t memory, unsigned flows, std::size_t receive, std::uint32_t frames) {
        return plan_budget({memory, 4 * kibibyte, flows, receive, 0, ring_of(frames), "eth0"}, code, why);
    };
    // Enough without the ring.
    CHECK(plan(8 * mebibyte, 16, 0, 1280) == budget{});
    CHECK(code == gpurx::errc::memory_too_small);
    CHECK_THAT(describe(code, why),
               ContainsSubstring("1.5 MiB among 16 flows, as the ring of eth0 keeps at least 5 MiB of it posted (1280 "
                                 "frames of 4 KiB)") &&
                   ContainsSubstring("each needs 128 KiB: give a memory of 9 MiB, of which half is for receiving, or a "
                                     "smaller ring (ethtool -G eth0 rx 1024), or lower max_flows to 12"));
    // What is advised is accepted.
    for (auto const& [memory, flows, frames] :
         {std::tuple{9 * mebibyte, 16U, 1280U}, {8 * mebibyte, 16U, 1024U}, {8 * mebibyte, 12U, 1280U}}) {
        CAPTURE(memory, flows, frames);
        CHECK(plan(memory, flows, 0, frames) != budget{});
        CHECK_FALSE(code.failed());
    }

    // The ring takes all, and with a receive_memory of the caller's.
    (void)plan(mebibyte, 1, 0, 8192);
    CHECK(code == gpurx::errc::memory_too_small);
    CHECK_THAT(describe(code, why), ContainsSubstring("0 bytes among 1 flows") && ContainsSubstring("33 MiB") &&
                                        ContainsSubstring("ethtool -G eth0 rx 128") &&
                                        !ContainsSubstring("lower max_flows"));
    (void)plan(mebibyte, 1, 16 * mebibyte, 256);
    CHECK(code == gpurx::errc::memory_too_small);
    (void)plan(mebibyte, 1, 16 * mebibyte, 224);
    CHECK_FALSE(code.failed());
    // Too small for its flows without any ring: no ring is small enough.
    (void)plan(mebibyte, 16, 0, 128);
    CHECK_THAT(describe(code, why), !ContainsSubstring("ethtool"));
}

TEST_CASE("transport copy leaves receive buffers to the system unless told")
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    CHECK(plan_copy_budget({mebibyte, 0, 16, 0, 0}, 128 * kibibyte, code, why) ==
          budget{512 * kibibyte, 32 * kibibyte, 0, 32 * kibibyte, 32 * kibibyte});
    CHECK_FALSE(code.failed());
    CHECK(plan_copy_budget({mebibyte, 0, 4, 2 * mebibyte, 100}, 128 * kibibyte, code, why) ==
          budget{2 * mebibyte, 512 * kibibyte, 256 * kibibyte, 100, 512 * kibibyte});
    CHECK_FALSE(code.failed());

    CHECK(plan_copy_budget({64 * kibibyte, 0, 16, 0, 0}, 128 * kibibyte, code, why) == budget{});
    CHECK(code == gpurx::errc::memory_too_small);
    CHECK_THAT(describe(code, why),
               ContainsSubstring("each needs 8 KiB: give a memory of 128 KiB, or lower max_flows to 8"));
    (void)plan_copy_budget({mebibyte, 0, 0, 0, 0}, 128 * kibibyte, code, why);
    CHECK(code == boost::system::errc::invalid_argument);
}

namespace {

std::vector<std::optional<std::size_t>> turns_among(std::vector<part_condition> const& parts, int count)
{
    part_turns turns;
    std::vector<std::optional<std::size_t>> taken;
    for (int i = 0; i < count; ++i)
        taken.push_back(turns.next(parts));
    return taken;
}

using numbers = std::vector<std::optional<std::size_t>>;

}  // namespace

TEST_CASE("parts of a session take turns")
{
    CHECK(turns_among({{4, false}, {4, false}, {4, false}}, 5) == numbers{0, 1, 2, 0, 1});
}

TEST_CASE("a part that is full, or whose GPU is in error, is left out")
{
    CHECK(turns_among({{4, false}, {0, false}, {4, false}}, 4) == numbers{0, 2, 0, 2});
    CHECK(turns_among({{4, true}, {4, false}, {0, true}}, 3) == numbers{1, 1, 1});
}

TEST_CASE("no part is chosen if none can take a flow")
{
    CHECK(turns_among({{0, false}, {4, true}}, 2) == numbers{std::nullopt, std::nullopt});
    CHECK(turns_among({}, 1) == numbers{std::nullopt});
}

TEST_CASE("turns go on where they were when a part has places again")
{
    part_turns turns;
    std::vector<part_condition> parts{{1, false}, {0, false}, {1, false}};
    CHECK(turns.next(parts) == 0U);
    CHECK(turns.next(parts) == 2U);
    parts[1].free_places = 1;
    CHECK(turns.next(parts) == 0U);
    CHECK(turns.next(parts) == 1U);
}
