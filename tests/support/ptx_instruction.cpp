// SPDX-License-Identifier: Apache-2.0
#include "ptx_instruction.hpp"

#include <algorithm>
#include <iterator>

namespace ptx::inside {

// ---- operands ----

operand instruction_reader::constant(std::uint64_t value)
{
    auto const found = std::ranges::find(constants_, value);
    auto const index = static_cast<std::uint32_t>(found - constants_.begin());
    if (found == constants_.end())
        constants_.push_back(value);
    return {true, index};
}

std::uint32_t instruction_reader::destination()
{
    auto const word = from_.take();
    if (word == "_")
        return instruction::nowhere;
    auto const found = known_.registers.find(word);
    if (found == known_.registers.end())
        refuse(from_.line(), "unknown register " + std::string{word});
    if (found->second < static_cast<std::uint32_t>(special::count))
        refuse(from_.line(), std::string{word} + " cannot be written");
    return found->second;
}

operand instruction_reader::input()
{
    auto const word = from_.next();
    if (word == "-" || number_in(word))
        return constant(from_.number());
    from_.take();
    if (auto const found = known_.registers.find(word); found != known_.registers.end())
        return {false, found->second};
    if (auto const found = known_.symbols.find(word); found != known_.symbols.end())
        return constant(found->second);
    refuse(from_.line(), "unknown operand " + std::string{word});
}

// One, or {several}.
std::vector<std::uint32_t> instruction_reader::destinations()
{
    if (!from_.take_if("{"))
        return {destination()};
    std::vector<std::uint32_t> list;
    do
        list.push_back(destination());
    while (from_.take_if(","));
    from_.expect("}");
    return list;
}

std::vector<operand> instruction_reader::inputs_in_a_row()
{
    if (!from_.take_if("{"))
        return {input()};
    std::vector<operand> list;
    do
        list.push_back(input());
    while (from_.take_if(","));
    from_.expect("}");
    return list;
}

// [base], [base+number], [base+-number]
void instruction_reader::address(instruction& into)
{
    from_.expect("[");
    into.in.push_back(input());
    if (from_.take_if("+"))
        into.offset = static_cast<std::int64_t>(from_.number());
    else if (from_.next() == "-")
        into.offset = static_cast<std::int64_t>(from_.number());
    from_.expect("]");
}

// ---- instructions ----

void instruction_reader::read_compute(instruction& into, std::string_view mnemonic)
{
    auto const known = find_arithmetic(mnemonic);
    if (!known)
        unknown(into);
    into.combine = known->run;
    into.out = {destination()};
    for (unsigned i = 0; i < known->inputs; ++i) {
        from_.expect(",");
        into.in.push_back(input());
    }
}

// mov.b64 {%r1,%r2}, %rd3; mov.b64 %rd3, {%r1,%r2};
void instruction_reader::read_move_of_several(instruction& into, std::vector<std::string_view> const& parts)
{
    auto const type = parts.size() == 2 ? type_of(parts[1]) : std::nullopt;
    if (!type)
        unknown(into);
    into.does = from_.next() == "{" ? action::unpack : action::pack;
    into.out = destinations();
    from_.expect(",");
    into.in = inputs_in_a_row();
    into.width = type->width / static_cast<unsigned>(std::max(into.out.size(), into.in.size()));
}

// mov.u64 %rd1, %globaltimer;
void instruction_reader::read_timer(instruction& into)
{
    into.does = action::read_time;
    into.out = {destination()};
    from_.expect(",");
    from_.expect("%globaltimer");
}

void instruction_reader::read_memory(instruction& into, std::vector<std::string_view> const& parts)
{
    auto const type = type_of(parts.back());
    if (!type || type->width == 0)
        unknown(into);
    into.does = parts.front() == "ld" ? action::load : action::store;
    into.width = type->width;
    into.is_signed = type->is_signed;
    auto elements = std::size_t{1};
    for (auto i = std::size_t{1}; i + 1 < parts.size(); ++i) {
        auto const part = parts[i];
        if (part == "param")
            into.where = space::parameter;
        else if (part == "shared")
            into.where = space::shared;
        else if (part == "v2" || part == "v4")
            elements = part == "v2" ? 2 : 4;
        else if (part != "global" && part != "nc" && part != "volatile" && part != "L1::no_allocate")
            unknown(into);
    }
    if (into.does == action::load) {
        into.out = destinations();
        from_.expect(",");
        address(into);
    } else {
        address(into);
        from_.expect(",");
        for (auto const& value : inputs_in_a_row())
            into.in.push_back(value);
    }
    if (std::max(into.out.size(), into.in.size() - 1) != elements)
        refuse(into.line, "as many registers as elements expected: " + into.text);
}

// atom.global.add.u32 %r1, [%rd2], %r3; red.… without the first.
void instruction_reader::read_atomic(instruction& into, std::vector<std::string_view> const& parts)
{
    auto const type = type_of(parts.back());
    if (parts.size() < 3 || !type || (type->width != 4 && type->width != 8))
        unknown(into);
    into.does = action::atomic;
    into.width = type->width;
    for (auto i = std::size_t{1}; i + 2 < parts.size(); ++i) {
        if (parts[i] == "shared")
            into.where = space::shared;
        else if (parts[i] != "global" && parts[i] != "gpu" && parts[i] != "relaxed")
            unknown(into);
    }
    auto const& operation = parts[parts.size() - 2];
    auto const swaps = operation == "cas";
    into.exchanges = operation == "exch";
    if (!swaps) {
        auto const known =
            find_arithmetic(std::string{into.exchanges ? "mov" : operation} + '.' + std::string{parts.back()});
        if (!known || (known->inputs != 2 && !into.exchanges))
            unknown(into);
        into.combine = known->run;
    }
    if (parts.front() == "atom") {
        into.out = {destination()};
        from_.expect(",");
    }
    address(into);
    for (auto values = swaps ? 2 : 1; values > 0; --values) {
        from_.expect(",");
        into.in.push_back(input());
    }
}

// shfl.sync.idx.b32 %r1|%p2, %r3, lane, clamp, mask
void instruction_reader::read_shuffle(instruction& into, std::vector<std::string_view> const& parts)
{
    static constexpr std::string_view modes[] = {"idx", "up", "down", "bfly"};
    auto const mode = std::ranges::find(modes, parts.size() == 4 ? parts[2] : "");
    if (mode == std::end(modes) || parts[1] != "sync" || parts[3] != "b32")
        unknown(into);
    into.does = action::shuffle;
    into.shuffles = static_cast<shuffle_mode>(mode - std::begin(modes));
    into.out = {destination(), instruction::nowhere};
    if (from_.take_if("|"))
        into.out[1] = destination();
    for (unsigned i = 0; i < 4; ++i) {
        from_.expect(",");
        into.in.push_back(input());
    }
}

// redux.sync.xor.b32 %r1, %r2, mask
void instruction_reader::read_reduction(instruction& into, std::vector<std::string_view> const& parts)
{
    auto const known = parts.size() == 4 && parts[1] == "sync"
                           ? find_arithmetic(std::string{parts[2]} + '.' + std::string{parts[3]})
                           : std::nullopt;
    if (!known || known->inputs != 2 || !parts[3].ends_with("32"))
        unknown(into);
    into.does = action::reduce;
    into.combine = known->run;
    into.out = {destination()};
    for (unsigned i = 0; i < 2; ++i) {
        from_.expect(",");
        into.in.push_back(input());
    }
}

// vote.sync.ballot.b32 %r1, %p2, mask; vote.sync.any.pred %p1, %p2, mask
void instruction_reader::read_vote(instruction& into, std::vector<std::string_view> const& parts)
{
    static constexpr std::string_view modes[] = {"all", "any", "ballot"};
    auto const mode = std::ranges::find(modes, parts.size() == 4 ? parts[2] : "");
    if (mode == std::end(modes) || parts[1] != "sync" || parts[3] != (*mode == "ballot" ? "b32" : "pred"))
        unknown(into);
    into.does = action::vote;
    into.votes = static_cast<vote_mode>(mode - std::begin(modes));
    into.out = {destination()};
    for (unsigned i = 0; i < 2; ++i) {
        from_.expect(",");
        into.in.push_back(input());
    }
}

// mma.….and.popc {4 sums}, {4 of 16 rows}, {2 of 8 columns}, {4 that are added}
void instruction_reader::read_matrices(instruction& into, std::string_view mnemonic)
{
    if (mnemonic != "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc")
        unknown(into);
    into.does = action::multiply_bits;
    into.out = destinations();
    for (auto const count : {4U, 2U, 4U}) {
        from_.expect(",");
        auto const some = inputs_in_a_row();
        if (some.size() != count || into.out.size() != 4)
            refuse(into.line, "as many registers as a lane has of a matrix expected: " + into.text);
        into.in.insert(into.in.end(), some.begin(), some.end());
    }
}

// Of all threads of the block: one with a count is another instruction.
void instruction_reader::read_block_barrier(instruction& into)
{
    into.does = action::block_barrier;
    from_.number();
    if (from_.next() == ",")
        unknown(into);
}

// What may follow the name, with it.
void instruction_reader::read_body(instruction& into, std::string_view mnemonic, std::optional<std::string>& label)
{
    auto const parts = parts_of(mnemonic);
    auto const& head = parts.front();
    if (head == "ld" || head == "st") {
        read_memory(into, parts);
    } else if (head == "mov" && (from_.next() == "{" || from_.next(2) == "{")) {
        read_move_of_several(into, parts);
    } else if (mnemonic == "mov.u64" && from_.next(2) == "%globaltimer") {
        read_timer(into);
    } else if (head == "atom" || head == "red") {
        read_atomic(into, parts);
    } else if (head == "shfl") {
        read_shuffle(into, parts);
    } else if (head == "redux") {
        read_reduction(into, parts);
    } else if (head == "vote") {
        read_vote(into, parts);
    } else if (head == "mma") {
        read_matrices(into, mnemonic);
    } else if (mnemonic == "bar.sync" || mnemonic == "barrier.sync.aligned") {
        read_block_barrier(into);
    } else if (mnemonic == "bar.warp.sync") {
        into.does = action::warp_barrier;
        into.in = {input()};
    } else if (mnemonic == "membar.gl" || mnemonic == "membar.cta" || mnemonic == "membar.sys" ||
               mnemonic == "fence.acq_rel.gpu") {
        into.does = action::fence;
    } else if (mnemonic == "bra" || mnemonic == "bra.uni") {
        into.does = action::branch;
        label = from_.take();
    } else if (mnemonic == "ret" || mnemonic == "exit") {
        into.does = action::end;
    } else {
        read_compute(into, mnemonic);
    }
}

instruction instruction_reader::read(std::optional<std::string>& label)
{
    instruction made;
    made.line = from_.line();
    if (from_.take_if("@")) {
        made.guarded = true;
        made.guard_inverted = from_.take_if("!");
        made.guard = destination();
    }
    auto const mnemonic = from_.take();
    made.text = mnemonic;
    read_body(made, mnemonic, label);
    from_.expect(";");
    return made;
}

}  // namespace ptx::inside
