// SPDX-License-Identifier: Apache-2.0
//
// The corners of PTX's arithmetic: the values are those that its specification says.
#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "ptx_arithmetic.hpp"

namespace {

std::uint64_t result_of(std::string const& name, std::initializer_list<std::uint64_t> values)
{
    auto const known = ptx::find_arithmetic(name);
    INFO(name);
    REQUIRE(known);
    REQUIRE(known->inputs == values.size());
    ptx::lanes in[4]{};
    ptx::inputs pointers{};
    for (std::size_t i = 0; i < values.size(); ++i) {
        in[i].fill(values.begin()[i]);
        pointers[i] = &in[i];
    }
    ptx::lanes out{};
    known->run(out, pointers);
    CHECK(out.front() == out.back());
    return out.back();
}

std::uint32_t narrow(std::string const& name, std::initializer_list<std::uint64_t> values)
{
    return static_cast<std::uint32_t>(result_of(name, values));
}

}  // namespace

TEST_CASE("PTX: sums and products wrap around at their width")
{
    CHECK(narrow("add.s32", {0x7fffffff, 1}) == 0x80000000);
    CHECK(narrow("sub.u32", {0, 1}) == 0xffffffff);
    CHECK(narrow("mul.lo.s32", {0x80000000, 0xffffffff}) == 0x80000000);
    CHECK(static_cast<std::uint16_t>(result_of("mul.lo.u16", {0xffff, 0xffff})) == 1);
    CHECK(result_of("add.s64", {0xffffffffffffffff, 2}) == 1);
    CHECK(result_of("mul.wide.u32", {0xffffffff, 0xffffffff}) == 0xfffffffe00000001);
    CHECK(result_of("mul.wide.s32", {0xffffffff, 3}) == 0xfffffffffffffffd);
    CHECK(narrow("mul.hi.u32", {0xffffffff, 0xffffffff}) == 0xfffffffe);
    CHECK(narrow("mul.hi.s32", {0xffffffff, 0xffffffff}) == 0);
    CHECK(result_of("mul.hi.u64", {0xffffffffffffffff, 0xffffffffffffffff}) == 0xfffffffffffffffe);
    CHECK(narrow("mad.lo.s32", {0x10000, 0x10000, 7}) == 7);
    CHECK(result_of("mad.wide.u32", {0xffffffff, 2, 2}) == 0x200000000);
    CHECK(narrow("neg.s32", {0x80000000}) == 0x80000000);
    CHECK(narrow("abs.s32", {0xfffffffb}) == 5);
}

TEST_CASE("PTX: the bits above a register's width do not count")
{
    CHECK(narrow("add.u32", {0xdead00000001, 0xbeef00000002}) == 3);
    CHECK(result_of("setp.eq.u32", {0xdead00000001, 1}) == 1);
    CHECK(narrow("shr.u32", {0xdead80000000, 31}) == 1);
    CHECK(result_of("cvt.u64.u32", {0xdead80000000}) == 0x80000000);
}

TEST_CASE("PTX: divisions")
{
    CHECK(narrow("div.u32", {0xffffffff, 2}) == 0x7fffffff);
    CHECK(narrow("div.s32", {0xfffffff9, 2}) == 0xfffffffd);
    CHECK(narrow("rem.s32", {0xfffffff9, 2}) == 0xffffffff);
    CHECK(narrow("div.s32", {0x80000000, 0xffffffff}) == 0x80000000);
    CHECK(narrow("div.u32", {1, 0}) == 0xffffffff);
    CHECK(result_of("div.u64", {0xffffffffffffffff, 3}) == 0x5555555555555555);
    CHECK(narrow("rem.u32", {17, 5}) == 2);
}

TEST_CASE("PTX: shifts by the width and more")
{
    CHECK(narrow("shl.b32", {1, 31}) == 0x80000000);
    CHECK(narrow("shl.b32", {1, 32}) == 0);
    CHECK(narrow("shl.b32", {1, 0xffffffff}) == 0);
    CHECK(result_of("shl.b64", {1, 63}) == 0x8000000000000000);
    CHECK(result_of("shl.b64", {1, 64}) == 0);
    CHECK(narrow("shr.u32", {0x80000000, 32}) == 0);
    CHECK(narrow("shr.s32", {0x80000000, 31}) == 0xffffffff);
    CHECK(narrow("shr.s32", {0x80000000, 32}) == 0xffffffff);
    CHECK(narrow("shr.s32", {0x80000000, 1}) == 0xc0000000);
    CHECK(result_of("shr.u64", {0x8000000000000000, 64}) == 0);
    CHECK(narrow("shf.r.wrap.b32", {0x11111111, 0x22222222, 36}) == 0x21111111);
    CHECK(narrow("shf.r.clamp.b32", {0x11111111, 0x22222222, 36}) == 0x22222222);
    CHECK(narrow("shf.l.wrap.b32", {0x80000000, 0x22222222, 1}) == 0x44444445);
}

TEST_CASE("PTX: comparisons of either sign")
{
    CHECK(result_of("setp.gt.u32", {0x80000000, 1}) == 1);
    CHECK(result_of("setp.gt.s32", {0x80000000, 1}) == 0);
    CHECK(result_of("setp.gt.s16", {0x8000, 0xffff}) == 0);
    CHECK(result_of("setp.gt.s16", {0x7f, 0xffff}) == 1);
    CHECK(result_of("setp.le.s64", {0xffffffffffffffff, 0}) == 1);
    CHECK(result_of("setp.ne.s32", {5, 5}) == 0);
    CHECK(narrow("min.s32", {0xffffffff, 1}) == 0xffffffff);
    CHECK(narrow("min.u32", {0xffffffff, 1}) == 1);
    CHECK(narrow("selp.b32", {1, 2, 1}) == 1);
    CHECK(narrow("selp.b32", {1, 2, 0}) == 2);
}

TEST_CASE("PTX: predicates")
{
    CHECK(result_of("and.pred", {1, 0}) == 0);
    CHECK(result_of("or.pred", {1, 0}) == 1);
    CHECK(result_of("xor.pred", {1, 1}) == 0);
    CHECK(result_of("not.pred", {0}) == 1);
}

TEST_CASE("PTX: conversions")
{
    CHECK(narrow("cvt.u16.u32", {0x12345678}) == 0x5678);
    CHECK(narrow("cvt.u32.u16", {0xdead8000}) == 0x8000);
    CHECK(narrow("cvt.s32.s16", {0x8000}) == 0xffff8000);
    CHECK(narrow("cvt.s32.s8", {0x80}) == 0xffffff80);
    CHECK(result_of("cvt.s64.s32", {0x80000000}) == 0xffffffff80000000);
    CHECK(narrow("cvt.u32.u64", {0x1234567890}) == 0x34567890);
}

TEST_CASE("PTX: fields of bits")
{
    CHECK(narrow("bfi.b32", {0xff, 0, 8, 4}) == 0xf00);
    CHECK(narrow("bfi.b32", {0, 0xffffffff, 28, 8}) == 0x0fffffff);
    CHECK(narrow("bfi.b32", {0xff, 0x11, 32, 4}) == 0x11);
    CHECK(narrow("bfi.b32", {0xff, 0x11, 4, 0}) == 0x11);
    CHECK(result_of("bfi.b64", {0x89abcdef, 0x01234567, 32, 32}) == 0x89abcdef01234567);
    CHECK(narrow("bfe.u32", {0x12345678, 8, 8}) == 0x56);
    CHECK(narrow("bfe.s32", {0x0000f000, 12, 4}) == 0xffffffff);
    CHECK(narrow("bfe.s32", {0x80000000, 30, 8}) == 0xfffffffe);
    CHECK(narrow("bfe.u32", {0xffffffff, 40, 8}) == 0);
    CHECK(narrow("bfe.s32", {0xffffffff, 0, 0}) == 0);
}

TEST_CASE("PTX: bytes by a selector")
{
    CHECK(narrow("prmt.b32", {0x33221100, 0x77665544, 0x3210}) == 0x33221100);
    CHECK(narrow("prmt.b32", {0x33221100, 0x77665544, 0x7604}) == 0x77660044);
    // 8 and above: the byte's sign.
    CHECK(narrow("prmt.b32", {0x800000ff, 0, 0x9b98}) == 0x00ff00ff);
    CHECK(narrow("lop3.b32", {0xff00ff00, 0xf0f0f0f0, 0xcccccccc, 0x96}) == (0xff00ff00 ^ 0xf0f0f0f0 ^ 0xcccccccc));
    CHECK(narrow("lop3.b32", {0xff00ff00, 0xf0f0f0f0, 0xcccccccc, 0xca}) ==
          ((0xff00ff00 & 0xf0f0f0f0) | (0x00ff00ff & 0xcccccccc)));
    CHECK(narrow("brev.b32", {1}) == 0x80000000);
    CHECK(narrow("clz.b32", {0}) == 32);
    CHECK(narrow("popc.b64", {0xffffffffffffffff}) == 64);
}

TEST_CASE("PTX: an instruction that is not known is not there")
{
    CHECK_FALSE(ptx::find_arithmetic("add.f32"));
    CHECK_FALSE(ptx::find_arithmetic("cvt.rn.f32.u32"));
    CHECK_FALSE(ptx::find_arithmetic("add.cc.u32"));
    CHECK_FALSE(ptx::find_arithmetic(""));
}
