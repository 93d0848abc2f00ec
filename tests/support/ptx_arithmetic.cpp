// SPDX-License-Identifier: Apache-2.0
#include "ptx_arithmetic.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

namespace ptx {

namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

using table = std::map<std::string, arithmetic, std::less<>>;

template <auto Function, class Out, class... In>
void apply(lanes& out, inputs const& in)
{
    [&]<std::size_t... I>(std::index_sequence<I...>)
    {
        for (unsigned lane = 0; lane < warp_lanes; ++lane)
            out[lane] = static_cast<u64>(static_cast<Out>(Function(static_cast<In>((*in[I])[lane])...)));
    }
    (std::index_sequence_for<In...>{});
}

template <auto Function, class Out, class... In>
void put(table& into, std::string name)
{
    into.emplace(std::move(name), arithmetic{&apply<Function, Out, In...>, sizeof...(In)});
}

template <class T>
std::string name_of(char kind)
{
    return '.' + std::string{kind} + std::to_string(sizeof(T) * 8);
}
template <class T>
std::string name_of()
{
    return name_of<T>(std::is_signed_v<T> ? 's' : 'u');
}

template <class... T>
struct types {};
using unsigned_types = types<u16, u32, u64>;
using all_types = types<u16, u32, u64, s16, s32, s64>;

template <auto Function, class... T>
void put_binary(table& into, std::string const& name, types<T...>)
{
    (put<Function, T, T, T>(into, name + name_of<T>()), ...);
}

// Bits, whose type is written as .b32, and is none of numbers.
template <auto Function, class... T>
void put_bits(table& into, std::string const& name, types<T...>)
{
    (put<Function, T, T, T>(into, name + name_of<T>('b')), ...);
}

// ---- numbers ----

// In unsigned arithmetic, which wraps around; 16 bits not in `int`, whose product could overflow.
template <class T>
using wrapping = std::conditional_t<(sizeof(T) < 4), u32, std::make_unsigned_t<T>>;

constexpr auto sum = []<class T>(T a, T b) { return static_cast<wrapping<T>>(a) + static_cast<wrapping<T>>(b); };
constexpr auto difference = []<class T>(T a, T b) { return static_cast<wrapping<T>>(a) - static_cast<wrapping<T>>(b); };
constexpr auto product = []<class T>(T a, T b) { return static_cast<wrapping<T>>(a) * static_cast<wrapping<T>>(b); };
constexpr auto product_and_sum = []<class T>(T a, T b, T c) { return product(a, b) + static_cast<wrapping<T>>(c); };

__extension__ using u128 = unsigned __int128;
__extension__ using s128 = __int128;
constexpr auto upper_product = []<class T>(T a, T b) {
    using wide = std::conditional_t<std::is_signed_v<T>, s128, u128>;
    return static_cast<T>(static_cast<wide>(a) * static_cast<wide>(b) >> sizeof(T) * 8);
};

// PTX does not say what a division by 0 gives: here all ones, as on the GPUs that there are.
constexpr auto quotient = []<class T>(T a, T b) {
    if (b == 0)
        return static_cast<T>(~T{});
    if (std::is_signed_v<T> && b == static_cast<T>(-1))
        return static_cast<T>(wrapping<T>{} - static_cast<wrapping<T>>(a));
    return static_cast<T>(a / b);
};
constexpr auto remainder_of = []<class T>(T a, T b) {
    if (b == 0)
        return a;
    return std::is_signed_v<T> && b == static_cast<T>(-1) ? T{} : static_cast<T>(a % b);
};
constexpr auto smaller = []<class T>(T a, T b) { return std::min(a, b); };
constexpr auto larger = []<class T>(T a, T b) { return std::max(a, b); };
constexpr auto negated = []<class T>(T a) { return wrapping<T>{} - static_cast<wrapping<T>>(a); };
constexpr auto magnitude = []<class T>(T a) { return a < 0 ? negated(a) : static_cast<wrapping<T>>(a); };

void put_numbers(table& t)
{
    put_binary<sum>(t, "add", all_types{});
    put_binary<difference>(t, "sub", all_types{});
    put_binary<product>(t, "mul.lo", all_types{});
    put_binary<upper_product>(t, "mul.hi", all_types{});
    put_binary<quotient>(t, "div", all_types{});
    put_binary<remainder_of>(t, "rem", all_types{});
    put_binary<smaller>(t, "min", all_types{});
    put_binary<larger>(t, "max", all_types{});
    []<class... T>(table& into, types<T...>) {
        (put<product_and_sum, T, T, T, T>(into, "mad.lo" + name_of<T>()), ...);
    }(t, all_types{});
    []<class... T>(table& into, types<T...>) {
        (put<negated, T, T>(into, "neg" + name_of<T>()), ...);
        (put<magnitude, T, T>(into, "abs" + name_of<T>()), ...);
    }(t, types<s16, s32, s64>{});
    // The factors are half as wide as the product.
    put<[](u16 a, u16 b) { return u32{a} * u32{b}; }, u32, u16, u16>(t, "mul.wide.u16");
    put<[](s16 a, s16 b) { return s32{a} * s32{b}; }, s32, s16, s16>(t, "mul.wide.s16");
    put<[](u32 a, u32 b) { return u64{a} * u64{b}; }, u64, u32, u32>(t, "mul.wide.u32");
    put<[](s32 a, s32 b) { return s64{a} * s64{b}; }, s64, s32, s32>(t, "mul.wide.s32");
    put<[](u32 a, u32 b, u64 c) { return u64{a} * u64{b} + c; }, u64, u32, u32, u64>(t, "mad.wide.u32");
}

// ---- bits ----

// A shift by more than the width is one by the width.
constexpr auto shifted_left = []<class T>(T a, u32 by) {
    return by < sizeof(T) * 8 ? static_cast<T>(static_cast<u64>(a) << by) : T{};
};
constexpr auto shifted_right = []<class T>(T a, u32 by) {
    return static_cast<T>(a >> std::min(by, static_cast<u32>(sizeof(T) * 8 - 1)) >> (by < sizeof(T) * 8 ? 0 : 1));
};

// The lowest `length` bits.
constexpr u64 low_bits(u32 length)
{
    return length < 64 ? (u64{1} << length) - 1 : ~u64{};
}

constexpr auto inserted = []<class T>(T a, T into, u32 position, u32 length) {
    position &= 0xff;
    length &= 0xff;
    if (position >= sizeof(T) * 8)
        return into;
    auto const mask = static_cast<T>(low_bits(length) << position);
    return static_cast<T>((into & ~mask) | (static_cast<T>(a << position) & mask));
};

// Beyond the top of a signed source is its sign.
constexpr auto extracted = []<class T>(T a, u32 position, u32 length) {
    position &= 0xff;
    length &= 0xff;
    if (length == 0)
        return T{};
    auto const bits = static_cast<u64>(shifted_right(a, position)) & low_bits(length);
    auto const top = std::min(position + length - 1, static_cast<u32>(sizeof(T) * 8 - 1));
    auto const negative = std::is_signed_v<T> && (a >> top & 1) != 0;
    return static_cast<T>(negative ? bits | ~low_bits(length) : bits);
};

// Each four bits of `selector` choose a byte of `b`:`a`, or with the highest of them eight times its sign.
constexpr u32 permuted(u32 a, u32 b, u32 selector)
{
    auto const bytes = u64{b} << 32 | a;
    u32 result = 0;
    for (unsigned i = 0; i < 4; ++i) {
        auto const choice = selector >> 4 * i;
        auto const byte = static_cast<u32>(bytes >> 8 * (choice & 7)) & 0xff;
        auto const value = (choice & 8) == 0 ? byte : byte >> 7 != 0 ? u32{0xff} : u32{0};
        result |= value << 8 * i;
    }
    return result;
}

// Any function of three bits, by its eight values.
constexpr u32 logic(u32 a, u32 b, u32 c, u32 values)
{
    u32 result = 0;
    for (u32 of = 0; of < 8; ++of)
        if ((values >> of & 1) != 0)
            result |= ((of & 4) != 0 ? a : ~a) & ((of & 2) != 0 ? b : ~b) & ((of & 1) != 0 ? c : ~c);
    return result;
}

constexpr u32 funnel_left(u32 low, u32 high, u32 by)
{
    return static_cast<u32>((u64{high} << 32 | low) << by >> 32);
}
constexpr u32 funnel_right(u32 low, u32 high, u32 by)
{
    return static_cast<u32>((u64{high} << 32 | low) >> by);
}

constexpr u32 reversed(u32 a)
{
    u32 result = 0;
    for (unsigned bit = 0; bit < 32; ++bit)
        result |= (a >> bit & 1) << (31 - bit);
    return result;
}

template <class... T>
void put_shifts(table& t, types<T...>)
{
    (put<shifted_left, T, T, u32>(t, "shl" + name_of<T>('b')), ...);
    (put<shifted_right, T, T, u32>(t, "shr" + name_of<T>('b')), ...);
    (put<shifted_right, T, T, u32>(t, "shr" + name_of<T>()), ...);
    (put<shifted_right, std::make_signed_t<T>, std::make_signed_t<T>, u32>(t, "shr" + name_of<T>('s')), ...);
}

void put_bit_functions(table& t)
{
    put_bits<[](auto a, auto b) { return a & b; }>(t, "and", unsigned_types{});
    put_bits<[](auto a, auto b) { return a | b; }>(t, "or", unsigned_types{});
    put_bits<[](auto a, auto b) { return a ^ b; }>(t, "xor", unsigned_types{});
    put<[](bool a, bool b) { return a && b; }, bool, bool, bool>(t, "and.pred");
    put<[](bool a, bool b) { return a || b; }, bool, bool, bool>(t, "or.pred");
    put<[](bool a, bool b) { return a != b; }, bool, bool, bool>(t, "xor.pred");
    put<[](bool a) { return !a; }, bool, bool>(t, "not.pred");
    []<class... T>(table& into, types<T...>) {
        (put<[](T a) { return ~a; }, T, T>(into, "not" + name_of<T>('b')), ...);
    }(t, unsigned_types{});
    put_shifts(t, unsigned_types{});
    put<inserted, u32, u32, u32, u32, u32>(t, "bfi.b32");
    put<inserted, u64, u64, u64, u32, u32>(t, "bfi.b64");
    put<extracted, u32, u32, u32, u32>(t, "bfe.u32");
    put<extracted, s32, s32, u32, u32>(t, "bfe.s32");
    put<extracted, u64, u64, u32, u32>(t, "bfe.u64");
    put<extracted, s64, s64, u32, u32>(t, "bfe.s64");
    put<permuted, u32, u32, u32, u32>(t, "prmt.b32");
    put<logic, u32, u32, u32, u32, u32>(t, "lop3.b32");
    put<[](u32 a, u32 b, u32 c) { return funnel_left(a, b, c & 31); }, u32, u32, u32, u32>(t, "shf.l.wrap.b32");
    put<[](u32 a, u32 b, u32 c) { return funnel_right(a, b, c & 31); }, u32, u32, u32, u32>(t, "shf.r.wrap.b32");
    put<[](u32 a, u32 b, u32 c) { return funnel_left(a, b, std::min(c, 32U)); }, u32, u32, u32, u32>(t,
                                                                                                     "shf.l.clamp.b32");
    put<[](u32 a, u32 b, u32 c) { return funnel_right(a, b, std::min(c, 32U)); }, u32, u32, u32, u32>(
        t, "shf.r.clamp.b32");
    put<[](u32 a) { return std::popcount(a); }, u32, u32>(t, "popc.b32");
    put<[](u64 a) { return std::popcount(a); }, u32, u64>(t, "popc.b64");
    put<[](u32 a) { return std::countl_zero(a); }, u32, u32>(t, "clz.b32");
    put<[](u64 a) { return std::countl_zero(a); }, u32, u64>(t, "clz.b64");
    put<reversed, u32, u32>(t, "brev.b32");
}

// ---- comparisons, choices and conversions ----

template <class T>
void put_order(table& t, std::string const& type)
{
    put<[](T a, T b) { return (a < b); }, bool, T, T>(t, "setp.lt" + type);
    put<[](T a, T b) { return (a <= b); }, bool, T, T>(t, "setp.le" + type);
    put<[](T a, T b) { return (a > b); }, bool, T, T>(t, "setp.gt" + type);
    put<[](T a, T b) { return (a >= b); }, bool, T, T>(t, "setp.ge" + type);
}

template <class T>
void put_equality_and_moves(table& t, std::string const& type)
{
    put<[](T a, T b) { return a == b; }, bool, T, T>(t, "setp.eq" + type);
    put<[](T a, T b) { return a != b; }, bool, T, T>(t, "setp.ne" + type);
    put<[](T a, T b, bool first) { return first ? a : b; }, T, T, T, bool>(t, "selp" + type);
    put<[](T a) { return a; }, T, T>(t, "mov" + type);
}

template <class... T>
void put_comparisons(table& t, types<T...>)
{
    (put_order<T>(t, name_of<T>()), ...);
    (put_equality_and_moves<T>(t, name_of<T>()), ...);
}
template <class... T>
void put_comparisons_of_bits(table& t, types<T...>)
{
    (put_equality_and_moves<T>(t, name_of<T>('b')), ...);
}

template <class From, class... To>
void put_conversions_from(table& t, types<To...>)
{
    (put<[](From a) { return static_cast<To>(a); }, To, From>(t, "cvt" + name_of<To>() + name_of<From>()), ...);
}
template <class... From>
void put_conversions(table& t, types<From...> all)
{
    (put_conversions_from<From>(t, all), ...);
}

table make_table()
{
    table t;
    put_numbers(t);
    put_bit_functions(t);
    put_comparisons(t, all_types{});
    put_comparisons_of_bits(t, unsigned_types{});
    put<[](bool a) { return a; }, bool, bool>(t, "mov.pred");
    put_conversions(t, types<u8, u16, u32, u64, s8, s16, s32, s64>{});
    // Generic addresses of global memory are its own.
    put<[](u64 a) { return a; }, u64, u64>(t, "cvta.global.u64");
    put<[](u64 a) { return a; }, u64, u64>(t, "cvta.to.global.u64");
    return t;
}

}  // namespace

std::optional<arithmetic> find_arithmetic(std::string_view mnemonic)
{
    static auto const all = make_table();
    auto const found = all.find(mnemonic);
    return found == all.end() ? std::nullopt : std::optional{found->second};
}

}  // namespace ptx
