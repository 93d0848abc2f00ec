// SPDX-License-Identifier: Apache-2.0
#include "ptx_machine.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "ptx_execution.hpp"

namespace ptx {

namespace inside {

machine::machine(kernel const& code, launch const& how, memory& in, report& into)
    : code_{code}, how_{how}, report_{into}, memory_{in}, chance_{how.seed.value_or(0)}
{
    report_.executed.assign(code.code.size(), 0);
    for (auto const constant : code.constants)
        constants_.emplace_back().fill(constant);
    if (how.threads == 0 || how.threads > code.max_threads)
        throw fault{"blocks of " + std::to_string(how.threads) + " threads"};
    if (how.parameters.size() < code.parameter_bytes)
        throw fault{"parameters are missing"};
}

// ---- blocks and warps ----

block machine::make_block(unsigned index) const
{
    block made{index, shared_memory{code_.shared_bytes}, {}};
    made.warps.resize((how_.threads + warp_lanes - 1) / warp_lanes);
    for (unsigned i = 0; i < made.warps.size(); ++i) {
        auto& of = made.warps[i];
        of.index = i;
        of.registers = register_file{code_.registers.size()};
        start(of, made);
    }
    return made;
}

// With the registers of another that has ended: they count as never written.
void machine::start(warp& of, block const& in) const
{
    warp fresh;
    fresh.block = in.index;
    fresh.index = of.index;
    fresh.registers = std::move(of.registers);
    fresh.written = std::move(of.written);
    fresh.ready = std::move(of.ready);
    of = std::move(fresh);
    auto const threads = std::min(how_.threads - of.index * warp_lanes, warp_lanes);
    of.live = of.first_lanes = threads == warp_lanes ? ~lane_mask{} : bit_of(threads) - 1;
    of.written.assign(code_.registers.size(), 0);
    of.ready.assign(code_.registers.size(), 0);
    auto const put = [&](special which, auto value) {
        auto const index = static_cast<std::size_t>(which);
        for (unsigned lane = 0; lane < warp_lanes; ++lane)
            of.registers[index][lane] = value(lane);
        of.written[index] = ~lane_mask{};
    };
    put(special::tid_x, [&](unsigned lane) { return of.index * warp_lanes + lane; });
    put(special::ntid_x, [&](unsigned) { return how_.threads; });
    put(special::ctaid_x, [&](unsigned) { return in.index; });
    put(special::nctaid_x, [&](unsigned) { return how_.blocks; });
    put(special::lane, [&](unsigned lane) { return lane; });
}

// When no warp of the block can go on: it is over, or all are at a barrier, which lets them go.
void machine::settle(block& of)
{
    auto const ended = std::ranges::count_if(of.warps, &warp::over);
    if (ended == std::ssize(of.warps))
        return;
    auto const& first = *std::ranges::find_if(of.warps, [](warp const& one) { return !one.over(); });
    for (auto const& one : of.warps)
        if (one.over() || one.live != one.first_lanes || one.at != first.at)
            throw fault{"block " + std::to_string(of.index) + ": not all of its threads come to the barrier in line " +
                        std::to_string(code_.code[first.at].line)};
    of.shared.pass_barrier();
    for (auto& one : of.warps) {
        one.at_barrier = false;
        ++one.at;
    }
}

void machine::run_in_order()
{
    if (how_.blocks == 0)
        return;
    auto now = make_block(0);
    for (unsigned index = 0; index < how_.blocks; ++index) {
        now.index = index;
        now.shared = shared_memory{code_.shared_bytes};
        for (auto& one : now.warps)
            start(one, now);
        while (!std::ranges::all_of(now.warps, &warp::over)) {
            for (auto& one : now.warps)
                while (one.can_go())
                    step(now, one);
            settle(now);
        }
    }
}

void machine::run_by_chance()
{
    std::vector<block> blocks;
    for (unsigned index = 0; index < how_.blocks; ++index)
        blocks.push_back(make_block(index));
    std::vector<std::pair<block*, warp*>> going;
    for (auto& in : blocks)
        for (auto& one : in.warps)
            going.emplace_back(&in, &one);
    while (!going.empty()) {
        auto const at = choose_of(going.size());
        auto [in, one] = going[at];
        for (auto steps = 1 + choose_of(64); steps > 0 && one->can_go(); --steps)
            step(*in, *one);
        if (one->can_go())
            continue;
        going[at] = going.back();
        going.pop_back();
        if (std::ranges::any_of(in->warps, &warp::can_go))
            continue;
        settle(*in);
        for (auto& other : in->warps)
            if (other.can_go())
                going.emplace_back(in, &other);
    }
}

void machine::run()
{
    if (how_.seed)
        run_by_chance();
    else
        run_in_order();
    if (!how_.writes)
        return;
    for (auto& wrong : memory_.compare(*how_.writes, how_.may_write))
        report_.violations.push_back(std::move(wrong));
}

// ---- one instruction ----

// The lanes that go next. Among them may be some that wait, if the others have come to where they do.
lane_mask machine::choose(warp& of)
{
    if (!of.parted)
        return of.live;
    auto const can = of.live & ~of.waiting;
    if (can == 0)
        throw fault{"lanes that have parted wait for each other"};
    auto chosen = static_cast<unsigned>(std::countr_zero(can));
    if (how_.seed) {
        auto skip = choose_of(static_cast<std::size_t>(std::popcount(can)));
        for_lanes(can, [&](unsigned lane) { chosen = skip-- == 0 ? lane : chosen; });
    } else {
        for_lanes(can, [&](unsigned lane) { chosen = of.at_of[lane] < of.at_of[chosen] ? lane : chosen; });
    }
    lane_mask group = 0;
    for_lanes(of.live, [&](unsigned lane) { group |= of.at_of[lane] == of.at_of[chosen] ? bit_of(lane) : 0; });
    of.at = of.at_of[chosen];
    if (group == of.live) {
        of.parted = false;
        of.waiting = 0;
    }
    return group;
}

void machine::go_to(warp& of, lane_mask group, std::size_t to) const
{
    of.waiting &= ~group;
    if (!of.parted && (group == of.live || of.live == 0)) {
        of.at = to;
        return;
    }
    if (!of.parted)
        of.at_of.fill(of.at);
    of.parted = true;
    for_lanes(group, [&](unsigned lane) { of.at_of[lane] = to; });
}

void machine::step(block& in, warp& of)
{
    auto const group = choose(of);
    auto const at = of.at;
    auto const& what = code_.code[at];
    try {
        if (++of.instructions > how_.most_instructions)
            throw fault{"no end"};
        auto const active = guard(of, what, group);
        if (what.does == action::branch) {
            note_executed(at, group);
            branch(of, what, group, active);
            return;
        }
        if (!execute(in, of, what, group, active))
            return;
        note_executed(at, active);
        if (what.does == action::end)
            of.live &= ~active;
        auto const others = what.does == action::end ? group & ~active : group;
        if (others != 0)
            go_to(of, others, at + 1);
    } catch (fault const& wrong) {
        report_.fault_of_memory = dynamic_cast<no_memory const*>(&wrong) != nullptr;
        throw fault{code_.name + ", line " + std::to_string(what.line) + " (" + what.text + "), block " +
                    std::to_string(of.block) + ", warp " + std::to_string(of.index) + ": " + wrong.what()};
    }
}

namespace {

// Their last operand names the lanes.
bool is_of_lanes_together(action what)
{
    return what == action::shuffle || what == action::reduce || what == action::vote || what == action::warp_barrier;
}

}  // namespace

// False: the lanes wait, and come here again.
bool machine::execute(block& in, warp& of, instruction const& what, lane_mask group, lane_mask active)
{
    if (is_of_lanes_together(what.does) && !together(of, what, active, what.in.back()))
        return false;
    switch (what.does) {
        case action::compute:
            compute(of, what, active);
            break;
        case action::pack:
            pack(of, what, active);
            break;
        case action::unpack:
            unpack(of, what, active);
            break;
        case action::load:
            load(in, of, what, active);
            break;
        case action::store:
            store(in, of, what, active);
            break;
        case action::atomic:
            atomic(in, of, what, active);
            break;
        case action::shuffle:
            shuffle(of, what, active);
            break;
        case action::reduce:
            reduce(of, what, active);
            break;
        case action::vote:
            vote(of, what, active);
            break;
        case action::multiply_bits:
            multiply_bits(of, what, active);
            break;
        case action::read_time:
            read_time(of, what, active);
            break;
        case action::block_barrier:
            arrive(of, group, active);
            return false;
        case action::warp_barrier:
        case action::fence:
        case action::end:
        case action::branch:
            break;
    }
    return true;
}

// At the barrier of the block, where the warp stays until all have come.
void machine::arrive(warp& of, lane_mask group, lane_mask active)
{
    if (active != group)
        throw fault{"not for all lanes"};
    if (group == of.first_lanes) {
        note_executed(of.at, active);
        of.at_barrier = true;
        return;
    }
    if (of.live != of.first_lanes)
        throw fault{"lanes of the warp have ended"};
    of.waiting |= group;
}

// What the guard keeps all lanes from takes its time, and does nothing.
void machine::note_executed(std::size_t at, lane_mask by)
{
    ++report_.counted.instructions;
    if (by != 0)
        ++report_.executed[at];
}

lane_mask machine::guard(warp& of, instruction const& what, lane_mask group)
{
    if (!what.guarded)
        return group;
    need(of, what.guard);
    auto const& values = value(of, {false, what.guard}, group);
    lane_mask active = 0;
    for_lanes(group, [&](unsigned lane) { active |= (values[lane] != 0) != what.guard_inverted ? bit_of(lane) : 0; });
    return active;
}

void machine::branch(warp& of, instruction const& what, lane_mask group, lane_mask active) const
{
    auto const at = of.at;
    if (auto const rest = group & ~active; rest != 0)
        go_to(of, rest, at + 1);
    if (active != 0)
        go_to(of, active, what.target);
}

bool machine::together(warp& of, instruction const& what, lane_mask group, operand const& named)
{
    if (group == 0)
        return true;
    auto const& masks = value(of, named, group);
    auto const mask = static_cast<lane_mask>(masks[static_cast<unsigned>(std::countr_zero(group))]);
    for_lanes(group, [&](unsigned lane) {
        if (static_cast<lane_mask>(masks[lane]) != mask)
            throw fault{"lanes that name different lanes"};
        if ((mask & bit_of(lane)) == 0)
            throw fault{"a lane that does not name itself"};
    });
    if ((mask & ~of.live) != 0)
        throw fault{"it names lanes that have ended"};
    if ((mask & ~group) == 0)
        return true;
    // What the guard keeps off here never comes.
    if (what.guarded || !of.parted)
        throw fault{"it names lanes that do not come"};
    of.waiting |= group;
    return false;
}

}  // namespace inside

report run(kernel const& code, launch const& how, memory& in)
{
    report made;
    try {
        inside::machine{code, how, in, made}.run();
    } catch (inside::fault const& wrong) {
        made.fault = wrong.what();
    }
    return made;
}

std::vector<std::string> never_executed(kernel const& code, std::vector<std::uint64_t> const& executed)
{
    std::vector<std::string> list;
    for (std::size_t i = 0; i < code.code.size(); ++i)
        if (i >= executed.size() || executed[i] == 0)
            list.push_back("line " + std::to_string(code.code[i].line) + ": " + code.code[i].text);
    return list;
}

}  // namespace ptx
