// SPDX-License-Identifier: Apache-2.0
//
// Which transport a session uses: each is tried in order, best first, and what speaks against it is kept for explain().
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <new>
#include <stdexcept>
#include <utility>

#include <gpurx/session.hpp>

#include "base/byte_size.hpp"
#include "base/syscalls.hpp"
#include "base/zcrx_queue.hpp"
#include "base/zcrx_support.hpp"
#include "budget.hpp"
#include "lease/daemon_nic.hpp"
#include "lease/queue_lease.hpp"
#include "memory/topology.hpp"
#include "nic/kernel_nic.hpp"
#include "nic/process.hpp"
#include "session_state.hpp"
#include "transport_choice.hpp"

namespace gpurx {

namespace detail {

namespace {

std::vector<std::shared_ptr<memory_state>> states_of(std::vector<device_memory> memories)
{
    std::vector<std::shared_ptr<memory_state>> states;
    states.reserve(memories.size());
    for (auto& memory : memories)
        states.push_back(session_access::state(std::move(memory)));
    return states;
}

}  // namespace

}  // namespace detail

std::string_view to_string(transport value) noexcept
{
    switch (value) {
        case transport::automatic:
            return "automatic";
        case transport::devmem:
            return "devmem";
        case transport::zcrx:
            return "zcrx";
        case transport::copy:
            return "copy";
    }
    return "unknown";
}

rx_session::rx_session(rx_session_options options, device_memory memory)
    : rx_session{std::move(options), std::vector{std::move(memory)}}
{}

rx_session::rx_session(rx_session_options options, std::vector<device_memory> memories)
    : state_{detail::session_state::open(std::move(options), detail::states_of(std::move(memories)))}
{}

std::optional<rx_session> rx_session::open(rx_session_options options, device_memory memory, error_code& code,
                                           diagnostics& why)
{
    return open(std::move(options), std::vector{std::move(memory)}, code, why);
}

std::optional<rx_session> rx_session::open(rx_session_options options, std::vector<device_memory> memories,
                                           error_code& code, diagnostics& why)
{
    try {
        code.clear();
        why.clear();
        return rx_session{std::move(options), std::move(memories)};
    } catch (system_error const& failure) {
        code = failure.code();
        why = failure.why();
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
        why = {.operation = "open", .object = "session", .kernel_message = {}, .advice = {}};
    }
    return std::nullopt;
}

rx_session::rx_session(std::shared_ptr<detail::session_state> state, bool is_part) noexcept
    : state_{std::move(state)}, is_part_{is_part}
{}
rx_session::rx_session(rx_session&&) noexcept = default;

rx_session& rx_session::operator=(rx_session&& other) noexcept
{
    if (this != &other) {
        rx_session const before{std::exchange(state_, std::move(other.state_))};
        is_part_ = other.is_part_;
    }
    return *this;
}

rx_session::~rx_session()
{
    auto const workers = state_ == nullptr ? nullptr : state_->workers();
    state_.reset();
    if (workers == nullptr)
        return;
    for (auto const& worker : *workers)
        worker->wait_if_finishing();
}

std::size_t rx_session::parts() const noexcept
{
    return is_part_ ? 1 : state_->part_count();
}

rx_session rx_session::part(std::size_t index) const
{
    if (index >= parts())
        throw std::out_of_range{fmt::format("part {} of a session of {}", index, parts())};
    return rx_session{state_->part(index), true};
}

transport rx_session::transport() const noexcept
{
    return state_->transport();
}

std::string rx_session::explain() const
{
    return is_part_ ? state_->explain() : state_->explain_all();
}

transport_obstacle rx_session::why_not_devmem() const noexcept
{
    return state_->why_not_devmem();
}

transport_obstacle rx_session::why_not_zcrx() const noexcept
{
    return state_->why_not_zcrx();
}

stats rx_session::stats() const
{
    return is_part_ ? state_->total() : state_->total_of_all();
}

std::optional<pool_stats> rx_session::pool_stats() const
{
    return state_->pool();
}

device_memory const& rx_session::memory() const noexcept
{
    return state_->memory_handle();
}

std::vector<unsigned> rx_session::queues() const
{
    return is_part_ ? state_->queues() : state_->queues_of_all();
}

int rx_session::receive_buffer_size() const noexcept
{
    return state_->receive_buffer_size();
}

void rx_session::steer(asio::ip::tcp::acceptor& acceptor, error_code& code, diagnostics& why)
{
    state_->steer(acceptor, code, why);
}

void rx_session::steer(asio::ip::tcp::acceptor& acceptor)
{
    error_code code;
    diagnostics why;
    steer(acceptor, code, why);
    if (code)
        throw system_error{code, std::move(why)};
}

std::vector<std::string> rx_session::recover(std::string_view interface, std::string_view state_directory)
{
    return detail::queue_lease::recover(interface, state_directory);
}

}  // namespace gpurx

namespace gpurx::detail {

namespace {

[[noreturn]] void refuse(error_code code, diagnostics why)
{
    throw system_error{code, std::move(why)};
}

// Notes the obstacle, and throws its words.
[[noreturn]] void refuse(transport_obstacle& noted, transport_obstacle met, error_code code, diagnostics why)
{
    noted = met;
    refuse(code, std::move(why));
}

void check(rx_session_options const& options, std::vector<std::shared_ptr<memory_state>> const& memories)
{
    auto const invalid = make_error_code(boost::system::errc::invalid_argument);
    if (memories.empty() || std::ranges::find(memories, nullptr) != memories.end())
        refuse(invalid,
               {.operation = "open", .object = "session", .kernel_message = {}, .advice = "give the session a memory"});
    if (options.rx_queues == 0)
        refuse(invalid,
               {.operation = "open", .object = "session", .kernel_message = {}, .advice = "set rx_queues above 0"});
    if (auto const page = options.rx_page_size; page != 0 && (!std::has_single_bit(page) || page < sys::page_size()))
        refuse(invalid,
               {.operation = "open",
                .object = "session",
                .kernel_message = {},
                .advice = fmt::format("set rx_page_size to a power of two from {} on, or to 0", sys::page_size())});
    // A misspelt name would only be a line of explain() otherwise, and everything copied.
    if (!options.interface.empty())
        index_of_interface(options.interface);
}

std::size_t page_size_of(rx_session_options const& options)
{
    return options.rx_page_size != 0 ? options.rx_page_size : sys::page_size();
}

// Throws what is lacking, if the memory cannot feed these rings and the flows.
void check_budget(rx_session_options const& options, gpurx::transport kind, memory_state const& memory,
                  ring_demand const& rings, transport_obstacle& obstacle)
{
    error_code code;
    diagnostics why;
    (void)plan_budget({.memory = memory.span().size(),
                       .page_size = page_size_of(options),
                       .max_flows = options.max_flows,
                       .receive_memory = options.receive_memory,
                       .loan_limit = options.loan_limit,
                       .rings = rings,
                       .interface = options.interface,
                       .parts = kind == gpurx::transport::zcrx ? options.rx_queues : 1},
                      code, why);
    if (code)
        refuse(obstacle, transport_obstacle::memory_too_small, code, std::move(why));
}

// Throws what speaks against `kind`, which needs a NIC, before that is asked anything.
void check_memory(rx_session_options const& options, gpurx::transport kind, memory_state const& memory,
                  transport_obstacle& obstacle)
{
    if (options.interface.empty())
        refuse(obstacle, transport_obstacle::no_interface, errc::transport_unavailable,
               {.operation = "open",
                .object = fmt::format("transport {}", to_string(kind)),
                .kernel_message = {},
                .advice = "name the NIC in rx_session_options::interface"});
    if (memory.dmabuf_fd() < 0)
        refuse(obstacle, transport_obstacle::memory_not_exported, memory.export_error(), memory.why_not_exported());
    check_budget(options, kind, memory, {}, obstacle);
}

// Throws what speaks against zcrx before the NIC is asked anything.
void check_zcrx(rx_session_options const& options, bool inherits, transport_obstacle& obstacle)
{
    if (inherits && options.rx_queues != 1)
        refuse(obstacle, transport_obstacle::too_few_queues, errc::transport_unavailable,
               {.operation = "open",
                .object = "transport zcrx",
                .kernel_message = {},
                .advice =
                    fmt::format("gpurx-run hands on one queue, and rx_queues is {}: set it to 1", options.rx_queues)});
    // gpurx-run has made the rings, and imports the queue.
    if (inherits)
        return;
    auto const support = observe_zcrx();
    if (auto const lack = find_lack(support); lack != zcrx_lack::nothing)
        refuse(obstacle, obstacle_of(lack), errc::transport_unavailable,
               {.operation = "open", .object = "transport zcrx", .kernel_message = {}, .advice = describe(support)});
}

// The memory for queues of io_uring, with the descriptors in `own`: as it is for one, and cut for several.
std::vector<memory_part> parts_of(memory_state& memory, int dmabuf, unsigned count, std::vector<unique_fd>& own,
                                  error_code& code, diagnostics& why)
{
    auto const all = memory.span().size();
    if (count == 1)
        return {{.dmabuf_fd = dmabuf, .offset = 0, .size = all}};
    std::vector<memory_part> parts;
    auto const offsets = offsets_of_parts(all, memory.page_size(), count);
    if (offsets.empty()) {
        code = errc::memory_too_small;
        why = {.operation = "share out",
               .object = fmt::format("{} among {} queues", size_text(all), count),
               .kernel_message = {},
               .advice = fmt::format("each needs a page of {}: give more memory, or lower rx_queues",
                                     size_text(memory.page_size()))};
    }
    for (std::size_t i = 0; i < offsets.size() && !code; ++i) {
        auto const size = (i + 1 < offsets.size() ? offsets[i + 1] : all) - offsets[i];
        auto const& made = own.emplace_back(memory.export_part(dmabuf, offsets[i], size, code, why));
        parts.push_back({.dmabuf_fd = made.get(), .offset = offsets[i], .size = size});
    }
    return parts;
}

// Throws what speaks against `kind` here.
std::unique_ptr<session_nic> lease_for_transport(rx_session_options const& options, gpurx::transport kind,
                                                 memory_state& memory, std::string const& daemon,
                                                 std::optional<inherited_queue> const& inherited, bool& other_dmabuf,
                                                 transport_obstacle& obstacle)
{
    check_memory(options, kind, memory, obstacle);
    // Before the NIC is touched.
    auto const check_ring = [&](nic_ring const& ring) {
        check_budget(options, kind, memory, demand_of(ring, options.rx_queues, page_size_of(options)), obstacle);
    };
    auto const lease = [&](int dmabuf, error_code& failed, diagnostics& reason) -> std::unique_ptr<session_nic> {
        if (!daemon.empty() || inherited)
            return daemon_nic::open({.interface = options.interface,
                                     .rx_queues = options.rx_queues,
                                     .rx_page_size = options.rx_page_size,
                                     .dmabuf_fd = dmabuf,
                                     .socket = daemon,
                                     .inherited = inherited,
                                     .check_ring = check_ring,
                                     .notice = options.notice},
                                    failed, reason);
        std::vector<unique_fd> own;
        std::vector<memory_part> parts;
        if (kind == gpurx::transport::zcrx)
            parts = parts_of(memory, dmabuf, options.rx_queues, own, failed, reason);
        if (failed)
            return nullptr;
        return open_nic({.interface = options.interface,
                         .rx_queues = options.rx_queues,
                         .rx_page_size = options.rx_page_size,
                         .dmabuf_fd = dmabuf,
                         .parts = std::move(parts),
                         .state_directory = options.state_directory,
                         .check_ring = check_ring,
                         .notice = options.notice},
                        failed, reason);
    };
    error_code code;
    diagnostics why;
    auto nic = lease_for(memory, lease, other_dmabuf, code, why);
    if (!nic) {
        auto const which = obstacle_of(code, why.operation, !daemon.empty() || inherited);
        refuse(obstacle, which, code, std::move(why));
    }
    return nic;
}

std::string explain_lease(session_nic const& nic)
{
    if (nic.steers())
        return {};
    return "steering: not possible here: the queues are leased from a NIC outside of this network namespace; a rule "
           "there must send each flow to them, and only that namespace shows the pages in use\n";
}

// A line of its own, or nothing.
std::string explain_place(rx_session_options const& options, memory_state const& memory)
{
    if (memory.ordinal() == no_gpu)
        return {};
    return "\nplace: " + describe(find_whereabouts(memory.ordinal(), memory.pci_address(), options.interface));
}

std::string explain_devmem(rx_session_options const& options, session_nic const& nic, memory_state const& memory,
                           std::string const& daemon, bool other_dmabuf)
{
    auto const queues = nic.queues();
    return fmt::format(
        "devmem: in use: {} writes into the memory from queue{} {} in pages of {} ({}{}), with {}{}\n",
        options.interface, queues.size() == 1 ? "" : "s", fmt::join(queues, ", "), size_text(nic.page_size()),
        memory.explain(), other_dmabuf ? "; exported again, as the NIC cannot attach to the first dmabuf" : "",
        explain_tokens(nic.has_array_tokens(), memory.span().size(), nic.page_size()),
        daemon.empty() ? "" : "; set up by gpurxd (" + daemon + "), as this process has no CAP_NET_ADMIN");
}

std::string explain_zcrx(rx_session_options const& options, session_nic const& nic, memory_state const& memory,
                         bool inherited, bool other_dmabuf)
{
    auto const queues = nic.queues();
    return fmt::format("zcrx: in use: {} writes into the memory from queue{} {}{} in pages of {} ({}{}){}\n",
                       options.interface, queues.size() == 1 ? "" : "s", fmt::join(queues, ", "),
                       queues.size() == 1 ? "" : ", each into a part of it,", size_text(nic.page_size()),
                       memory.explain(),
                       other_dmabuf ? "; exported again, as the NIC cannot attach to the first dmabuf" : "",
                       inherited ? "; set up by gpurx-run" : "");
}

// The lines that follow those on the transports.
std::string explain_nic(rx_session_options const& options, session_nic const& nic, memory_state const& memory)
{
    return fmt::format("{}memory: {}; {}", explain_lease(nic), size_text(memory.span().size()),
                       describe(rings_of(nic), options.interface)) +
           explain_place(options, memory);
}

void advise_on_ring(rx_session_options const& options, session_nic const& nic, memory_state const& memory)
{
    auto const rings = rings_of(nic);
    if (options.notice && rings.is_tight(memory.span().size()))
        options.notice(advice_on_tight_ring(rings, options.interface, memory.span().size()));
}

std::string explain_copy(rx_session_options const& options, transport_choice const& choice, memory_state const& memory)
{
    auto text = fmt::format("copy: in use: the CPU copies each byte from the socket into the memory ({})\n{}",
                            size_text(memory.span().size()), explain_others(choice));
    text.pop_back();  // the last line has no end
    return text + explain_place(options, memory);
}

// Without the part that says "asked for": automatic asks for nothing.
std::string reason(system_error const& failure)
{
    return failure.code() == errc::transport_unavailable ? failure.why().advice : failure.what();
}

// Another part's port rule brings the flows, so this one must be able to take them over.
void check_that_it_moves_flows(session_nic const& nic, gpurx::transport kind, transport_obstacle& obstacle)
{
    if (!nic.moves_flows())
        refuse(obstacle, transport_obstacle::flows_not_movable, errc::transport_unavailable,
               {.operation = "open",
                .object = fmt::format("transport {}", to_string(kind)),
                .kernel_message = {},
                .advice = "open a session for each memory, each with a port of its own: the queues are leased, and no "
                          "flow can be moved from here"});
}

// `choice` has the transport; the rest of it is noted.
std::shared_ptr<session_state> open_on_nic(rx_session_options const& options,
                                           std::shared_ptr<memory_state> const& memory, bool is_one_of_several,
                                           transport_choice& choice, transport_obstacle& obstacle)
{
    auto claim = session_state::claim(memory->span(), choice.in_use);
    bool other_dmabuf = false;
    auto const kind = choice.in_use;
    auto const zcrx = kind == gpurx::transport::zcrx;
    auto const inherited = zcrx ? find_inherited_queue(options.interface) : std::nullopt;
    if (zcrx)
        check_zcrx(options, inherited.has_value(), obstacle);
    // gpurxd binds for devmem only: a queue of io_uring cannot be taken back from a client.
    auto const daemon = zcrx || may_configure_nics() ? std::string{} : find_daemon();
    auto nic = lease_for_transport(options, kind, *memory, daemon, inherited, other_dmabuf, obstacle);
    if (!inherited)
        for (auto const& queue : nic->zcrx())
            queue->add_spare_rings(options.zcrx_spare_rings);
    if (is_one_of_several)
        check_that_it_moves_flows(*nic, kind, obstacle);
    choice.array_tokens =
        !zcrx && nic->has_array_tokens() && fits_array_tokens(memory->span().size(), nic->page_size());
    auto explanation = (zcrx ? explain_zcrx(options, *nic, *memory, inherited.has_value(), other_dmabuf)
                             : explain_devmem(options, *nic, *memory, daemon, other_dmabuf)) +
                       explain_others(choice) + explain_nic(options, *nic, *memory);
    advise_on_ring(options, *nic, *memory);
    return session_state::create(options, memory, std::move(nic), std::move(explanation), std::move(claim));
}

// Whether devmem would have them here, as far as that can be told before the NIC is set up.
bool expects_array_tokens(rx_session_options const& options, std::vector<std::shared_ptr<memory_state>> const& memories)
{
    auto const fits = [&](auto const& one) { return fits_array_tokens(one->span().size(), page_size_of(options)); };
    if (options.interface.empty() || !std::ranges::all_of(memories, fits))
        return false;
    try {
        return kernel_nic{options.interface}.has_array_tokens();
    } catch (system_error const&) {
        return false;  // what the NIC lacks, each attempt says
    }
}

// Calls open(memory) for each: all or none. Of several the error says which.
template <class Open>
std::shared_ptr<session_state> open_each(std::vector<std::shared_ptr<memory_state>> const& memories, Open open)
{
    if (memories.size() == 1)
        return open(memories.front());
    std::vector<std::shared_ptr<session_state>> parts;
    try {
        for (auto const& memory : memories)
            parts.push_back(open(memory));
    } catch (system_error const& failure) {
        auto why = failure.why();
        why.object +=
            fmt::format(" for memory {} of {} ({})", parts.size(), memories.size(), memories[parts.size()]->explain());
        throw system_error{failure.code(), std::move(why)};
    }
    return session_state::join(std::move(parts));
}

}  // namespace

std::shared_ptr<session_state> session_state::open(rx_session_options options,
                                                   std::vector<std::shared_ptr<memory_state>> const& memories)
{
    check(options, memories);
    transport_choice choice{.asked = options.transport};
    // The kernel is asked only where the order depends on it.
    auto const asks = options.transport == gpurx::transport::automatic && options.allow_zcrx;
    auto const order =
        transports_to_try(options.transport, options.allow_zcrx, asks && expects_array_tokens(options, memories));
    for (auto const kind : order) {
        choice.in_use = kind;
        if (kind == gpurx::transport::copy)
            break;
        auto obstacle = transport_obstacle::other;
        try {
            return open_each(memories, [&](auto const& memory) {
                return open_on_nic(options, memory, memories.size() > 1, choice, obstacle)->note(choice);
            });
        } catch (system_error const& failure) {
            if (order.size() == 1)
                throw;
            if (obstacle == transport_obstacle::other)
                obstacle = obstacle_of(failure.code(), failure.why().operation, false);
            choice.refused.push_back({kind, obstacle, reason(failure)});
        }
    }
    return open_each(memories, [&](auto const& memory) {
        return create(options, memory, nullptr, explain_copy(options, choice, *memory))->note(choice);
    });
}

std::shared_ptr<session_state> session_state::note(transport_choice const& choice)
{
    not_devmem_ = why_not(gpurx::transport::devmem, choice).obstacle;
    not_zcrx_ = why_not(gpurx::transport::zcrx, choice).obstacle;
    return shared_from_this();
}

}  // namespace gpurx::detail
