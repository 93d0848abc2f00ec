// SPDX-License-Identifier: Apache-2.0
//
// rx_session: NIC queues set aside, memory bound to them, header split on, flows steered; all of it undone at the end.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/error.hpp>
#include <gpurx/memory.hpp>
#include <gpurx/stats.hpp>

namespace gpurx {

namespace detail {
class session_state;
struct session_access;
}  // namespace detail

enum class transport : std::uint8_t {
    automatic,  // the best that works; rx_session::explain() says which, and why not a better one
    devmem,     // the NIC writes into the memory (devmem TCP). Needs an interface, CAP_NET_ADMIN or gpurxd, a driver
    copy,       // recv() into the memory. Works everywhere, needs no privilege
};

[[nodiscard]] std::string_view to_string(transport value) noexcept;

// Which prerequisite of transport devmem a session is without, for programs and metrics. rx_session::explain() has the
// words, and what to change. Values may be added.
enum class devmem_obstacle : std::uint8_t {
    none,                 // devmem is in use
    copy_asked_for,       // rx_session_options::transport is copy
    no_interface,         // rx_session_options::interface is empty
    interface_down,       // or it is gone
    memory_not_exported,  // the memory has no dmabuf: device_memory::dmabuf_fd() is -1
    memory_too_small,     // for max_flows flows and what the NIC's rings keep
    no_rights,            // neither CAP_NET_ADMIN nor a gpurxd
    refused_by_gpurxd,    // by its policy or its limits, or it does not answer
    state_directory,      // the journal in rx_session_options::state_directory cannot be read, written or locked
    no_header_split,      // NIC or driver cannot split headers, or another setting keeps it from that
    too_few_queues,       // the NIC has no more, or others use them
    not_bound,            // driver or kernel does not bind this memory to queues (bind-rx)
    flows_not_movable,  // of a session with several memories: its queues are leased, and no rule can be made from here
    other,              // the kernel or the driver refused something else
};

// Its name, as above: "no_rights".
[[nodiscard]] std::string_view to_string(devmem_obstacle value) noexcept;

struct rx_session_options {
    // The NIC, or in a container a netkit device that has queues of one (docs/leased-queues.md): then nothing but the
    // memory is set up. Empty: only transport copy can work. One that is named has to be there, whatever the transport.
    std::string interface = {};

    // How many RX queues to set aside. They are taken from the top: with 8 queues and rx_queues 2, queues 6 and 7.
    unsigned rx_queues = 1;

    // automatic falls back to copy, and explain() says why. A transport named here that cannot work is an error.
    gpurx::transport transport = gpurx::transport::automatic;

    // Bytes of a page at the NIC. 0: a page of the kernel (4 KiB; 64 KiB on some arm64 kernels). Otherwise a power of
    // two, at least a page of the kernel, that the driver supports and that divides the memory's own pages (2 MiB with
    // huge pages). Transport copy has no such pages.
    std::uint32_t rx_page_size = 0;

    // Flows that may exist at one time, connections that wait to be accepted included (see steer). The memory is
    // shared out between them in advance, see receive_memory.
    unsigned max_flows = 16;

    // The receive buffers of all flows together, in bytes, counted as the kernel counts them (whole pages per segment).
    // 0: half of what the NIC's rings leave. Each flow gets receive_memory / max_flows, as SO_RCVBUF before it begins.
    // More than the memory can hold invites the lock-up that errc::memory_locked_up ends.
    std::size_t receive_memory = 0;

    // A flow for which nothing arrives this long, while every page of the memory is in flight and none is on loan, is
    // ended with errc::memory_locked_up. If some are on loan, `notice` is told who holds them, and the flow waits on.
    // Zero: never; milliseconds::max(): as good as never. Checked by one thread of the session (transport devmem only),
    // which sleeps unless an operation waits.
    std::chrono::milliseconds lock_up_limit{5000};

    // Bytes that one flow may have on loan (alive rx_buffers). At the limit async_receive waits until a loan returns.
    // Counted, with transport devmem, in the pages that a loan's fragments take, each once: a page holds one packet
    // with many drivers, so 1 MiB of them may be 362 KiB of data. One call may go beyond it by a segment, and bytes
    // that an async_read has left over by their batch. 0: half of what receive_memory leaves, shared by max_flows. The
    // other half is for async_read: what waits for the streams of a flow's reads takes nothing from its loans, nor
    // from other flows (docs/memory-budget.md).
    std::size_t loan_limit = 0;

    // Where the journal of changes is kept, so that a later run can undo what a killed one left. Must survive the
    // process, and should not survive a reboot.
    std::string state_directory = "/run/gpurx";

    // Told, in one sentence each, what a user should know and no error reports: a NIC's ring that takes much of the
    // memory, a setting found changed by somebody
    // else at the end and so left alone, a rule that could only be made by port, flows that starve because loans hold
    // every page. Called from the thread that opens the session, and from threads of the session's own; must not throw,
    // and not wait for one that ends the session. Empty: nobody is told.
    std::function<void(std::string_view)> notice{};
};

// A handle to shared state. Receivers, operations and rx_buffers keep the state alive: destroying the session
// early is safe, and the NIC is restored when the last of them is gone. With transport devmem a thread of the
// session does that (some 100 ms of netlink calls), as it makes and removes the rules of flows. If the session is
// the last, its destructor waits for that thread; a receiver or rx_buffer does not, but the end of the process
// does (exit(), not _exit()).
//
// What is changed on the NIC, in this order, each recorded in the journal before it is done: tcp-data-split on (and
// first rx-gro-hw, where the driver refuses header split without it) and hds-thresh 0; ntuple-filters on; combined
// channels raised if there are fewer than rx_queues + 1; RSS indirection table moved away from the session's queues;
// memory bound to them (bind-rx); ntuple rules per flow or port. Undone in reverse. Sessions on one interface share its
// journal: a setting goes back to what it was when the last session on the interface ends. A setting that somebody else
// changed meanwhile is left alone and reported to options.notice.
//
// Needs, for devmem: CAP_NET_ADMIN in the user namespace that owns the network namespace, Linux >= 7.2, a driver with
// queue management and header split. Blocking: opening takes some 100 ms. Without that right a session asks gpurxd, if
// it runs (/run/gpurxd.sock, or GPURXD_SOCKET): the daemon does all of the above as far as its policy allows, keeps the
// journal in a directory of its own choice, and undoes it when the session, or its process, ends. explain() says so.
//
// Thread safety: distinct sessions are safe; a shared one is unsafe, except const members.
// fork(): a session belongs to the process that opened it; a child may drop it and change
// nothing by that (docs/threads.md).
class rx_session {
  public:
    // Throws system_error. Its text holds the kernel's own words (extack) and what to change. Errors of every
    // transport: EINVAL for an option that cannot be right; ENODEV if an interface is named and this thread's network
    // namespace has none of that name now; errc::memory_too_small. With automatic what else speaks against devmem is
    // none: explain() has it.
    rx_session(rx_session_options options, device_memory memory);
    // The same without exceptions: an empty optional, and `code` and `why` set.
    [[nodiscard]] static std::optional<rx_session> open(rx_session_options options, device_memory memory,
                                                        error_code& code, diagnostics& why);

    // Several memories behind one port: of several GPUs, say. Each is a part of the session with rx_queues queues,
    // max_flows flows and a share-out of its own, all with the same options. An acceptor's connections arrive in the
    // first memory, and acceptor::choose_memory() or the program (part()) says which one a flow belongs to: its own
    // rule takes it there, and what came before that is delivered all the same, and counted as resteered_bytes
    // (docs/several-gpus.md). All parts use the same transport; where devmem fails for one, the error names it. Errors
    // besides: transport_unavailable with leased queues, as nobody here can move a flow to another.
    rx_session(rx_session_options options, std::vector<device_memory> memories);
    [[nodiscard]] static std::optional<rx_session> open(rx_session_options options, std::vector<device_memory> memories,
                                                        error_code& code, diagnostics& why);

    rx_session(rx_session&&) noexcept;
    rx_session& operator=(rx_session&&) noexcept;
    ~rx_session();

    // How many memories it has.
    [[nodiscard]] std::size_t parts() const noexcept;
    // One of them, as a session: what a receiver is made of to be a flow of just this memory. Each member then speaks
    // of this memory alone. It keeps the part alive, but not the others. Throws std::out_of_range.
    [[nodiscard]] rx_session part(std::size_t index) const;

    // ---- of a session with several memories: of all of them, unless it says that it is of the first ----

    // The transport in use: never automatic.
    [[nodiscard]] gpurx::transport transport() const noexcept;
    // For people, one line per transport: in use (with which tokens), or why not and what would make it work.
    // First line: what is in use. With transport devmem then how much of the memory the NIC's ring keeps posted,
    // where the pages are (pool_stats()), and a line for each flow that does not wait for its sender, but for loans of
    // its own, for GPU streams, or for pages that others hold, and who holds them; that costs some netlink calls.
    [[nodiscard]] std::string explain() const;
    // Why devmem is not in use. Of several memories: of the first that could not have it; all use the same transport.
    [[nodiscard]] devmem_obstacle why_not_devmem() const noexcept;
    // Counters of all flows that this session ever had, added up; tokens_high_water is the session's own (of several
    // memories: the largest).
    [[nodiscard]] gpurx::stats stats() const;
    // Where the pages of the memory are, of several: of the first. Costs netlink calls (some 100 microseconds), and
    // holds up flows that begin or end, but none that receives. Empty: the kernel does not say, as when the interface
    // is gone, or has its queues leased to it; or a child that was forked.
    [[nodiscard]] std::optional<gpurx::pool_stats> pool_stats() const;
    // The memory, or the first.
    [[nodiscard]] device_memory const& memory() const noexcept;
    // RX queues that belong to this session; empty with transport copy.
    [[nodiscard]] std::vector<unsigned> queues() const;
    // SO_RCVBUF for one flow (see receive_memory), in bytes as setsockopt takes them. 0: left to the system.
    [[nodiscard]] int receive_buffer_size() const noexcept;

    // Makes connections to this acceptor's port arrive on the session's queues, and gives them their share of
    // receive_memory. Call it after bind() and before listen(); then hand each accepted socket to receiver's
    // constructor. The rule lives as long as the session. With transport copy only the receive buffer is set. Of
    // several memories it is the queues of the first; a receiver made of another part() moves its flow there.
    //
    // A connection that waits to be accepted receives already: into as much of the memory as any flow, and nobody reads
    // it. So with transport devmem give listen() a small backlog: the flows that are accepted at one time, and backlog
    // + 1 of each acceptor, are max_flows together at most. With more, a program that stops accepting can starve its
    // own flows (docs/memory-budget.md).
    //
    // Errors: EINVAL if not bound; what the driver answers to the rule.
    void steer(asio::ip::tcp::acceptor& acceptor);
    void steer(asio::ip::tcp::acceptor& acceptor, error_code& code, diagnostics& why);

    // Undoes what killed processes left on the interface: needs the same rights as opening a session, touches nothing
    // that belongs to a live process, and is done by opening a session as well. Returns what was done, a sentence each;
    // nothing to do is an empty list. Errors: errc::journal_invalid, and what the kernel reports.
    static std::vector<std::string> recover(std::string_view interface,
                                            std::string_view state_directory = "/run/gpurx");

  private:
    friend struct detail::session_access;
    explicit rx_session(std::shared_ptr<detail::session_state> state, bool is_part = false) noexcept;

    std::shared_ptr<detail::session_state> state_;
    bool is_part_ = false;  // one memory of several was named
};

}  // namespace gpurx
