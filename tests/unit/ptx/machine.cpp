// SPDX-License-Identifier: Apache-2.0
//
// Lanes, warps, barriers and memory of the interpreter: what it runs, and what it refuses.
#include <chrono>
#include <random>

#include "ptx_bench.hpp"

namespace ptx::test {

namespace {

std::vector<std::uint32_t> words_after(std::string const& body, launch const& how = launch_of(),
                                       std::string const& declarations = "")
{
    bench_memory memory{4096};
    auto const done = run(kernel_of(body, declarations), how, memory);
    INFO(done.fault.value_or(""));
    CHECK_FALSE(done.fault);
    CHECK(done.violations.empty());
    std::vector<std::uint32_t> words;
    for (unsigned i = 0; i < how.threads * how.blocks; ++i)
        words.push_back(memory.at<std::uint32_t>(i));
    return words;
}

report run_of(std::string const& body, launch const& how = launch_of(), std::string const& declarations = "")
{
    bench_memory memory{4096};
    return run(kernel_of(body, declarations), how, memory);
}

// Each thread's own word gets %r1.
constexpr auto store_result = "st.global.u32 [%rd1], %r1;\n";
constexpr auto shared_words = ".shared .align 4 .b8 words[512];\n";
constexpr auto own_shared_word = R"(
    mov.u32 %r10, words;
    shl.b32 %r11, %r0, 2;
    add.s32 %r12, %r10, %r11;
)";

}  // namespace

namespace {

constexpr auto matrices = R"(
    shl.b32 %r2, %r0, 6;
    cvt.u64.u32 %rd2, %r2;
    add.s64 %rd3, %rd0, %rd2;
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd3];
    ld.global.v2.u32 {%r6, %r7}, [%rd3+16];
    ld.global.v4.u32 {%r8, %r9, %r10, %r11}, [%rd3+32];
    mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%r12, %r13, %r14, %r15}, {%r2, %r3, %r4, %r5}, {%r6, %r7}, {%r8, %r9, %r10, %r11};
    st.global.v4.u32 [%rd3+48], {%r12, %r13, %r14, %r15};
)";

// Bit `bit` (0 to 255) of a row of the first matrix, or a column of the second, of which a lane has words 4 words
// apart.
// `lower` and `upper`: where a lane has them in its 64 bytes.
bool bit_of_matrix(bench_memory const& memory, unsigned line, unsigned bit, std::size_t lower, std::size_t upper)
{
    auto const word = bit / 32;
    auto const lane = line % 8 * 4 + word % 4;
    return memory.at<std::uint32_t>(lane * 16 + (word < 4 ? lower : upper)) >> bit % 32 & 1;
}

}  // namespace

TEST_CASE("PTX: matrices of bits are multiplied, each row with each column")
{
    bench_memory memory{4096};
    std::mt19937 random{7};
    for (std::size_t i = 0; i < 1024; ++i)
        memory.put<std::uint32_t>(i, static_cast<std::uint32_t>(random()));
    auto const before = memory;
    auto const done = run(kernel_of(matrices), launch_of(), memory);
    INFO(done.fault.value_or(""));
    REQUIRE_FALSE(done.fault);
    for (unsigned row = 0; row < 16; ++row)
        for (unsigned column = 0; column < 8; ++column) {
            auto const place = row % 8 * 64 + column / 2 * 16 + row / 8 * 2 + column % 2;
            auto sum = before.at<std::uint32_t>(place + 8);
            for (unsigned bit = 0; bit < 256; ++bit) {
                auto const left = bit_of_matrix(before, row, bit, row / 8, row / 8 + 2);
                sum += left && bit_of_matrix(before, column, bit, 4, 5) ? 1 : 0;
            }
            REQUIRE(memory.at<std::uint32_t>(place + 12) == sum);
        }
}

TEST_CASE("PTX: matrices of bits need all lanes at once")
{
    auto const some = "setp.lt.u32 %p1, %r0, 31;\n@%p1 bra go;\nret;\ngo:\n" + std::string{matrices};
    CHECK(faults_with(run_of(some), "not for all lanes"));
}

TEST_CASE("PTX: lanes that part come together")
{
    auto const words = words_after(R"(
        mov.u32 %r1, 100;
        setp.lt.u32 %p1, %r0, 8;
        @%p1 bra low;
        mov.u32 %r2, 0;
    again:
        add.u32 %r2, %r2, 1;
        add.u32 %r1, %r1, 10;
        setp.lt.u32 %p2, %r2, %r0;
        @%p2 bra again;
        bra.uni done;
    low:
        mov.u32 %r1, 1;
    done:
        add.u32 %r1, %r1, 1;
    )" + std::string{store_result});
    for (unsigned i = 0; i < 32; ++i)
        CHECK(words[i] == (i < 8 ? 2 : 101 + 10 * i));
}

TEST_CASE("PTX: a guard, and its opposite")
{
    auto const words = words_after(R"(
        setp.eq.u32 %p1, %r0, 3;
        @%p1 mov.u32 %r1, 7;
        @!%p1 mov.u32 %r1, 8;
    )" + std::string{store_result});
    for (unsigned i = 0; i < 32; ++i)
        CHECK(words[i] == (i == 3 ? 7 : 8));
}

TEST_CASE("PTX: memory of each width, and of several elements")
{
    bench_memory memory{64};
    memory.put<std::uint64_t>(0, 0x8899aabbccddeeff);
    auto const done = run(kernel_of(R"(
        setp.ne.u32 %p1, %r0, 0;
        @%p1 bra over;
        ld.global.u8 %rs1, [%rd0];
        ld.global.s8 %r1, [%rd0+1];
        ld.global.u16 %rs2, [%rd0+2];
        ld.v2.u32 {%r2, %r3}, [%rd0];
        st.global.u8 [%rd0+8], %rs1;
        st.global.u32 [%rd0+12], %r1;
        st.global.u16 [%rd0+10], %rs2;
        st.v4.u32 [%rd0+16], {%r2, %r3, %r2, 5};
        mov.b64 %rd2, {%r3, %r2};
        st.global.u64 [%rd0+32], %rd2;
        mov.b64 {%r4, %r5}, %rd2;
        st.global.u32 [%rd0+40], %r5;
        add.s64 %rd3, %rd0, 48;
        st.global.u32 [%rd3+-4], %r4;
    over:)"),
                          launch_of(), memory);
    CHECK_FALSE(done.fault);
    CHECK(memory.at<std::uint8_t>(8) == 0xff);
    CHECK(memory.at<std::uint8_t>(9) == 0);
    CHECK(memory.at<std::uint16_t>(5) == 0xccdd);
    CHECK(memory.at<std::uint32_t>(3) == 0xffffffee);
    CHECK(memory.at<std::uint32_t>(4) == 0xccddeeff);
    CHECK(memory.at<std::uint32_t>(7) == 5);
    CHECK(memory.at<std::uint64_t>(4) == 0xccddeeff8899aabb);
    CHECK(memory.at<std::uint32_t>(10) == 0xccddeeff);
    CHECK(memory.at<std::uint32_t>(11) == 0x8899aabb);
}

TEST_CASE("PTX: shuffles")
{
    auto const shuffled = [](std::string const& instruction) {
        return words_after("add.u32 %r2, %r0, 100;\n" + instruction + "\nselp.u32 %r4, 1000, 0, %p1;\n" +
                           "add.u32 %r1, %r1, %r4;\n" + store_result);
    };
    auto const from_five = shuffled("shfl.sync.idx.b32 %r1|%p1, %r2, 5, 31, -1;");
    auto const up = shuffled("shfl.sync.up.b32 %r1|%p1, %r2, 1, 0, -1;");
    auto const down = shuffled("shfl.sync.down.b32 %r1|%p1, %r2, 2, 31, -1;");
    auto const across = shuffled("shfl.sync.bfly.b32 %r1|%p1, %r2, 16, 31, -1;");
    // In segments of 8 lanes.
    auto const segment = shuffled("shfl.sync.idx.b32 %r1|%p1, %r2, 9, 6175, -1;");
    for (unsigned i = 0; i < 32; ++i) {
        CHECK(from_five[i] == 1105);
        CHECK(up[i] == (i == 0 ? 100 : 1099 + i));
        CHECK(down[i] == (i > 29 ? 100 + i : 1102 + i));
        CHECK(across[i] == 1100 + (i ^ 16));
        CHECK(segment[i] == 1100 + (i & 24) + 1);
    }
}

TEST_CASE("PTX: a shuffle waits for the lanes that it names")
{
    auto const words = words_after(R"(
        mov.u32 %r2, %r0;
        setp.gt.u32 %p1, %r0, 15;
        @%p1 bra other;
        mov.u32 %r2, 50;
    other:
        shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;
    )" + std::string{store_result});
    CHECK(words == std::vector<std::uint32_t>(32, 50));
}

TEST_CASE("PTX: a shuffle that not all lanes come to")
{
    auto const body = R"(
        setp.gt.u32 %p1, %r0, 15;
        @%p1 bra other;
        shfl.sync.idx.b32 %r1, %r0, 0, 31, -1;
        bra.uni done;
    other:
        shfl.sync.idx.b32 %r1, %r0, 0, 31, -1;
    done:
    )";
    CHECK(faults_with(run_of(body), "wait for each other"));
    CHECK(faults_with(run_of("setp.gt.u32 %p1, %r0, 15; @%p1 ret; shfl.sync.idx.b32 %r1, %r0, 0, 31, -1;"),
                      "lanes that have ended"));
    CHECK(faults_with(run_of("shfl.sync.idx.b32 %r1, %r0, 0, 31, 65535;"), "does not name itself"));
    CHECK(faults_with(run_of("setp.gt.u32 %p1, %r0, 15; @%p1 shfl.sync.idx.b32 %r1, %r0, 0, 31, -1;"),
                      "lanes that do not come"));
    CHECK(faults_with(run_of("setp.gt.u32 %p1, %r0, 15; @%p1 ret; shfl.sync.idx.b32 %r1, %r0, 20, 31, 65535;"),
                      "takes from lane 20"));
}

TEST_CASE("PTX: reductions and votes")
{
    auto const words = words_after(R"(
        redux.sync.xor.b32 %r2, %r0, -1;
        redux.sync.add.u32 %r3, %r0, -1;
        setp.lt.u32 %p1, %r0, 4;
        vote.sync.ballot.b32 %r4, %p1, -1;
        vote.sync.any.pred %p2, %p1, -1;
        vote.sync.all.pred %p3, %p1, -1;
        selp.u32 %r5, 1000, 0, %p2;
        selp.u32 %r6, 2000, 0, %p3;
        add.u32 %r1, %r2, %r3;
        add.u32 %r1, %r1, %r4;
        add.u32 %r1, %r1, %r5;
        add.u32 %r1, %r1, %r6;
    )" + std::string{store_result});
    CHECK(words == std::vector<std::uint32_t>(32, 0 + 496 + 15 + 1000));
}

TEST_CASE("PTX: atomic instructions, in any order")
{
    bench_memory memory{64};
    auto const code = kernel_of(R"(
        atom.global.add.u32 %r1, [%rd0], 2;
        red.global.max.u32 [%rd0+4], %r0;
        atom.global.cas.b32 %r2, [%rd0+8], 0, 9;
        atom.global.exch.b32 %r3, [%rd0+12], 4;
        atom.global.xor.b32 %r4, [%rd0+16], %r0;
    )");
    auto how = launch_of(64, 3);
    how.seed = GENERATE(1, 2, 3);
    auto const done = run(code, how, memory);
    CHECK_FALSE(done.fault);
    CHECK(memory.at<std::uint32_t>(0) == 2 * 64 * 3);
    CHECK(memory.at<std::uint32_t>(1) == 63);
    CHECK(memory.at<std::uint32_t>(2) == 9);
    CHECK(memory.at<std::uint32_t>(3) == 4);
    CHECK(memory.at<std::uint32_t>(4) == 0);
    CHECK(done.counted.atomics == 5 * 64 * 3);
    CHECK(done.violations.empty());
}

TEST_CASE("PTX: shared memory, and a barrier between its writers and readers")
{
    auto const exchange = [](std::string const& barrier) {
        return own_shared_word + ("st.shared.u32 [%r12], %r0;\n" + barrier + R"(
            xor.b32 %r2, %r11, 256;
            add.s32 %r3, %r10, %r2;
            ld.shared.u32 %r1, [%r3];
        )" + store_result);
    };
    auto how = launch_of(128);
    for (std::optional<std::uint64_t> const seed : {std::optional<std::uint64_t>{}, {1}, {2}, {3}}) {
        how.seed = seed;
        auto const words = words_after(exchange("bar.sync 0;"), how, shared_words);
        for (unsigned i = 0; i < 128; ++i)
            CHECK(words[i] == (i ^ 64));
    }
    how.seed.reset();
    CHECK(faults_with(run_of(exchange(""), how, shared_words), "nothing was written to"));
    // Each warp sees what the others wrote before the first barrier, and what they may write now.
    auto const late = exchange("bar.sync 0;") + "st.shared.u32 [%r12], %r0;\nld.shared.u32 %r1, [%r3];\n";
    CHECK(faults_with(run_of(late, how, shared_words), "without a barrier"));
}

TEST_CASE("PTX: a barrier that not all threads come to")
{
    auto const how = launch_of(64);
    CHECK(faults_with(run_of("setp.gt.u32 %p1, %r0, 31; @%p1 ret; bar.sync 0;", how), "not all of its threads"));
    CHECK(faults_with(run_of("setp.eq.u32 %p1, %r0, 3; @%p1 ret; bar.sync 0;", how), "have ended"));
    CHECK(faults_with(run_of("setp.eq.u32 %p1, %r0, 3; @%p1 bar.sync 0;", how), "not for all lanes"));
    auto const two_ways = [](std::string const& limit) {
        return "setp.gt.u32 %p1, %r0, " + limit + "; @%p1 bra b; bar.sync 0; bra.uni c; b: bar.sync 0; c:";
    };
    CHECK(faults_with(run_of(two_ways("31"), how), "not all of its threads"));
    CHECK(faults_with(run_of(two_ways("3"), how), "wait for each other"));
    CHECK_FALSE(run_of(two_ways("63"), how).fault);
}

TEST_CASE("PTX: memory that is not there")
{
    CHECK_FALSE(run_of("ld.global.u32 %r1, [%rd0+4092];").fault);
    CHECK(faults_with(run_of("ld.global.u32 %r1, [%rd0+4096];"), "no such memory: 4 bytes"));
    CHECK(faults_with(run_of("ld.global.u8 %rs1, [%rd0+-1];"), "no such memory: 1 bytes"));
    CHECK(faults_with(run_of("mov.u64 %rd2, 0; st.global.u32 [%rd2], %r0;"), "no such memory"));
    CHECK(faults_with(run_of("ld.global.u32 %r1, [%rd0+2];"), "not aligned"));
    CHECK(faults_with(run_of("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0+8];"), "not aligned"));
    CHECK(faults_with(run_of("mov.u32 %r2, words; st.shared.u32 [%r2+512], %r0;", launch_of(), shared_words),
                      "beyond shared memory"));
    CHECK(faults_with(run_of("ld.param.u64 %rd2, [base+8];"), "beyond the parameters"));
    // One that ends in the middle of the access.
    bench_memory odd{10};
    CHECK(faults_with(run(kernel_of("ld.global.u32 %r1, [%rd0+8];"), launch_of(), odd), "no such memory"));
    // Who it was.
    CHECK(faults_with(run_of("setp.eq.u32 %p1, %r0, 40; @%p1 ld.global.u32 %r1, [%rd0+4096];", launch_of(64, 2)),
                      "(ld.global.u32), block 0, warp 1"));
}

TEST_CASE("PTX: a register that was not written")
{
    CHECK(faults_with(run_of("add.u32 %r1, %r2, 1;"), "%r2 is read"));
    auto const in_one_lane = "setp.eq.u32 %p1, %r0, 0; @%p1 mov.u32 %r1, 1; ";
    CHECK(faults_with(run_of(in_one_lane + std::string{store_result}), "%r1 is read"));
    CHECK_FALSE(run_of(in_one_lane + std::string{"@%p1 st.global.u32 [%rd1], %r1;"}).fault);
}

TEST_CASE("PTX: bytes that are written twice, not at all, or where none may be")
{
    auto how = launch_of();
    how.writes = {{bench_memory::base, 128}};
    CHECK(run_of("st.global.u32 [%rd1], %r0;", how).violations.empty());
    auto const twice = run_of(
        "st.global.u32 [%rd1], %r0; and.b32 %r1, %r0, 31; setp.eq.u32 %p1, %r1, 9;"
        "@%p1 st.global.u8 [%rd0+5], 1;",
        how);
    REQUIRE(twice.violations.size() == 1);
    CHECK(twice.violations[0].find("a second time") != std::string::npos);
    auto const missing = run_of("setp.ne.u32 %p1, %r0, 9; @%p1 st.global.u32 [%rd1], %r0;", how);
    REQUIRE(missing.violations.size() == 1);
    CHECK(missing.violations[0] == "the byte at " + std::to_string(bench_memory::base + 36) + " is not written");
    auto const beyond = "st.global.u32 [%rd1], %r0; setp.eq.u32 %p1, %r0, 0; @%p1 st.global.u16 [%rd0+200], %r0;";
    REQUIRE(run_of(beyond, how).violations.size() == 1);
    CHECK(run_of(beyond, how).violations[0] ==
          "the byte at " + std::to_string(bench_memory::base + 200) + " is written");
    how.may_write = {{bench_memory::base + 200, 2}};
    CHECK(run_of(beyond, how).violations.empty());
}

TEST_CASE("PTX: a kernel that does not end")
{
    auto how = launch_of();
    how.most_instructions = 1000;
    CHECK(faults_with(run_of("again: bra again;", how), "no end"));
}

TEST_CASE("PTX: time passes, for a kernel that waits")
{
    auto const nanoseconds = [] {
        return static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
                .count());
    };
    bench_memory memory{4096};
    auto const before = nanoseconds();
    auto const done = run(kernel_of(R"(
        mov.u64 %rd2, %globaltimer;
        again: mov.u64 %rd3, %globaltimer;
        sub.s64 %rd4, %rd3, %rd2;
        setp.lt.u64 %p1, %rd4, 200000;
        @%p1 bra again;
        st.global.u64 [%rd0], %rd2;
        st.global.u64 [%rd0+8], %rd3;
    )"),
                          launch_of(1), memory);
    INFO(done.fault.value_or(""));
    REQUIRE_FALSE(done.fault);
    CHECK(memory.at<std::uint64_t>(0) >= before);
    CHECK(memory.at<std::uint64_t>(1) >= memory.at<std::uint64_t>(0) + 200000);
    CHECK(memory.at<std::uint64_t>(1) <= nanoseconds());
}

TEST_CASE("PTX: the counts of instructions")
{
    SECTION("sectors of global memory")
    {
        auto const words = run_of("ld.global.u32 %r1, [%rd1];").counted;
        CHECK(words.load_requests == 1);
        CHECK(words.load_sectors == 4);
        auto const vectors = run_of(
                                 "mul.wide.u32 %rd2, %r0, 16; add.s64 %rd2, %rd0, %rd2;"
                                 "st.v4.u32 [%rd2], {%r0, %r0, %r0, %r0};")
                                 .counted;
        CHECK(vectors.store_sectors == 16);
        auto const apart = run_of("mul.wide.u32 %rd2, %r0, 64; add.s64 %rd2, %rd0, %rd2; ld.u8 %rs1, [%rd2];").counted;
        CHECK(apart.load_sectors == 32);
    }
    SECTION("conflicts of shared memory")
    {
        auto const conflicts = [](unsigned stride) {
            auto const done = run_of("mul.lo.u32 %r2, %r0, " + std::to_string(stride) + R"(;
                    and.b32 %r2, %r2, 508; mov.u32 %r3, words; add.u32 %r2, %r2, %r3; st.shared.u32 [%r2], %r0;)",
                                     launch_of(), shared_words);
            CHECK_FALSE(done.fault);
            CHECK(done.counted.shared_requests == 1);
            return done.counted.shared_conflicts;
        };
        CHECK(conflicts(4) == 0);
        CHECK(conflicts(0) == 0);
        CHECK(conflicts(8) == 1);
        CHECK(conflicts(16) == 3);
    }
    SECTION("loads that wait for loads")
    {
        auto const chain = [](std::string const& body) { return run_of(body).counted.loads_in_series; };
        CHECK(chain("ld.global.u32 %r1, [%rd0]; ld.global.u32 %r2, [%rd0+4]; add.u32 %r3, %r1, %r2;") == 1);
        CHECK(chain("ld.global.u32 %r1, [%rd0]; add.u32 %r3, %r1, 1; ld.global.u32 %r2, [%rd0+4];") == 2);
        CHECK(chain("ld.global.u64 %rd2, [%rd0]; add.s64 %rd2, %rd0, %rd2; ld.global.u64 %rd3, [%rd2];"
                    "add.s64 %rd3, %rd0, %rd3; ld.global.u32 %r1, [%rd3];") == 3);
    }
    SECTION("both ways of lanes that part, and once where they are together again")
    {
        auto const done = run_of(
            "setp.lt.u32 %p1, %r0, 8; @%p1 bra low; mov.u32 %r1, 1; mov.u32 %r1, 2; bra done;"
            "low: mov.u32 %r1, 3; done: add.u32 %r1, %r1, 1;");
        CHECK(done.counted.instructions == 4 + 2 + 3 + 1 + 1 + 1);
    }
    SECTION("instructions, and those that never were")
    {
        auto const code = kernel_of("bra.uni over; add.u32 %r1, %r0, 1; over:");
        bench_memory memory{16};
        auto const done = run(code, launch_of(64), memory);
        CHECK(done.counted.instructions == 2 * 6);
        auto const never = never_executed(code, done.executed);
        REQUIRE(never.size() == 1);
        CHECK(never[0].ends_with(": add.u32"));
    }
    SECTION("what the guard keeps every lane from was not executed, and took its time")
    {
        auto const code = kernel_of(
            "setp.eq.u32 %p1, %r0, 9; @%p1 add.u32 %r1, %r0, 1; @%p1 bra end; @!%p1 xor.b32 %r2, %r0, 1; end:");
        bench_memory memory{16};
        auto const some = run(code, launch_of(), memory);
        CHECK(never_executed(code, some.executed).empty());
        auto const none = run(code, launch_of(9), memory);
        CHECK(none.counted.instructions == 4 + 4 + 1);
        auto const never = never_executed(code, none.executed);
        REQUIRE(never.size() == 1);
        CHECK(never[0].ends_with(": add.u32"));
    }
}

TEST_CASE("PTX: text that is refused, by its name")
{
    auto const refusal = [](std::string const& body) -> std::string {
        try {
            static_cast<void>(kernel_of(body));
        } catch (parse_error const& wrong) {
            return wrong.what();
        }
        return "none";
    };
    CHECK(refusal("fma.rn.f32 %r1, %r2, %r3, %r4;").ends_with("unknown instruction: fma.rn.f32"));
    CHECK(refusal("ld.local.u32 %r1, [%rd0];").ends_with("unknown instruction: ld.local.u32"));
    CHECK(refusal("bar.sync 0, 64;").ends_with("unknown instruction: bar.sync"));
    CHECK(refusal("shfl.idx.b32 %r1, %r2, 0, 31;").ends_with("unknown instruction: shfl.idx.b32"));
    CHECK(refusal("atom.global.add.f32 %r1, [%rd0], %r2;").ends_with("unknown instruction: atom.global.add.f32"));
    CHECK(refusal(".local .align 8 .b8 depot[16];").ends_with("unknown directive .local"));
    CHECK(refusal("bra nowhere;").ends_with("unknown label nowhere"));
    CHECK(refusal("add.u32 %r1, %r99, 1;").ends_with("unknown operand %r99"));
    CHECK(refusal("mov.u32 %tid.x, 1;").ends_with("cannot be written"));
    CHECK(refusal("mov.u32 %r1, %clock;").ends_with("unknown operand %clock"));
    CHECK_THROWS_AS(parse(".visible .func f () { ret; }"), parse_error);
    CHECK_THROWS_AS(parse(".visible .entry f ()"), parse_error);
}

}  // namespace ptx::test
