// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sessions on a NIC: rx_session and its options.
///
/// A session sets queues aside, binds memory to them, turns header split on and steers flows. It undoes all of this at
/// its end.
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

/// @brief How bytes reach the memory.
enum class transport : std::uint8_t {
    /// @brief The best transport that works.
    /// @details rx_session::explain() names it, and the reason why no better transport is in use.
    automatic,
    /// @brief The NIC writes into the memory (devmem TCP).
    /// @details Needs an interface, `CAP_NET_ADMIN` or gpurxd, and a driver that supports it.
    devmem,
    /// @brief The NIC writes into the memory (io_uring zero-copy receive).
    /// @details Needs an interface, `CAP_NET_ADMIN` in the initial user namespace, and a driver as `devmem` does. The
    /// session has one queue, and gpurxd does not help (docs/transports.md).
    zcrx,
    /// @brief `recv()` into the memory. Works everywhere and needs no privilege.
    copy,
};

/// @brief Returns the enumerator's name.
[[nodiscard]] std::string_view to_string(transport value) noexcept;

/// @brief Reason against transport `devmem` or `zcrx`, for programs and metrics.
///
/// rx_session::explain() has the text for people, with advice. Later versions may add values.
enum class transport_obstacle : std::uint8_t {
    none,           ///< The transport is in use.
    not_asked_for,  ///< `rx_session_options::transport` names another transport.
    better_in_use,  ///< Transport `automatic` found a better one.
    not_allowed,    ///< `rx_session_options::allow_zcrx` is false. Only `zcrx`.

    no_interface,         ///< `rx_session_options::interface` is empty.
    interface_down,       ///< The interface is down or gone.
    memory_not_exported,  ///< The memory has no dmabuf: device_memory::dmabuf_fd() is -1.

    /// @brief The memory is too small for `max_flows` flows and the NIC's rings.
    memory_too_small,
    /// @brief The process has no `CAP_NET_ADMIN`.
    /// @details `devmem`: and no gpurxd runs. `zcrx`: it has none in the initial user namespace.
    no_rights,

    /// @brief gpurxd refuses because of its policy or its limits, or does not answer.
    refused_by_gpurxd,
    /// @brief The journal in `rx_session_options::state_directory` cannot be read, written or locked.
    state_directory,
    /// @brief The NIC or its driver cannot split headers, or another setting prevents it.
    no_header_split,
    too_few_queues,  ///< The NIC has no more queues, or others use them.

    /// @brief The driver or the kernel does not bind this memory to queues.
    not_bound,
    /// @brief A session with several memories has leased queues.
    /// @details The process cannot install rules for leased queues.
    flows_not_movable,

    leased_queues,        ///< The interface has its queues from a NIC (netkit). Only `zcrx`.
    io_uring_disabled,    ///< The setting `kernel.io_uring_disabled` forbids io_uring. Only `zcrx`.
    io_uring_filtered,    ///< A seccomp profile forbids or hides io_uring. Only `zcrx`.
    io_uring_lacks_zcrx,  ///< The kernel's io_uring receives into no dmabuf, or shares no queues. Only `zcrx`.

    other,  ///< The kernel or the driver refused something else.
};

/// @brief Returns the enumerator's name, such as "no_rights".
[[nodiscard]] std::string_view to_string(transport_obstacle value) noexcept;

/// @brief Options of a session.
struct rx_session_options {
    /// @brief Name of the NIC, or of a netkit device with leased queues.
    ///
    /// A container gets queues of a NIC through a netkit device (docs/leased-queues.md).
    ///
    /// With a netkit device the session sets up only the memory. If empty, only transport `copy` can work. If set, the
    /// interface must exist, whatever the transport.
    std::string interface = {};

    /// @brief Number of RX queues to set aside.
    ///
    /// The session takes the highest queues: with 8 queues and `rx_queues` 2, queues 6 and 7.
    ///
    /// Transport `zcrx` cuts the memory into `rx_queues` parts of equal size, one for each queue. A flow receives into
    /// the part of the queue that it arrives on, so each part has room for all `max_flows` flows (receive_memory).
    unsigned rx_queues = 1;

    /// @brief Transport to use.
    ///
    /// `automatic` falls back to `copy`, and explain() has the reason. With another value the session fails with an
    /// error if that transport cannot work.
    ///
    /// `automatic` tries in this order: `devmem` if the kernel has array tokens, `zcrx` if allow_zcrx, `devmem`,
    /// `copy`.
    gpurx::transport transport = gpurx::transport::automatic;

    /// @brief Whether `automatic` may use transport `zcrx`.
    ///
    /// Without array tokens, which is every stock kernel, `zcrx` costs less than `devmem`. No hardware NIC has run it.
    ///
    /// The session then makes a ring of io_uring. A service or container whose seccomp profile ends the process for
    /// that must permit the system calls of io_uring first. Without the option no session makes them, except with
    /// `transport::zcrx`.
    bool allow_zcrx = false;

    /// @brief Rings of each queue of transport `zcrx` to make in advance, for threads that give up `CAP_NET_ADMIN`.
    ///
    /// Each thread that receives takes one, for good, until none is left; a later thread makes its own, and needs the
    /// capability for that. The ring of a thread that ends serves no other thread. A ring takes 32 KiB.
    unsigned zcrx_spare_rings = 0;

    /// @brief Bytes of a page at the NIC.
    ///
    /// 0 means a page of the kernel: 4 KiB, or 64 KiB on some arm64 kernels. Another value must meet these conditions:
    /// - It is a power of two, and at least a page of the kernel.
    /// - The driver supports it.
    /// - It divides the memory's own pages, which are 2 MiB with huge pages.
    ///
    /// Transport `copy` has no such pages.
    std::uint32_t rx_page_size = 0;

    /// @brief Most flows at one time.
    ///
    /// Connections that wait to be accepted count (see rx_session::steer()).
    ///
    /// The session divides the memory between the flows in advance (see receive_memory).
    unsigned max_flows = 16;

    /// @brief Size of the receive buffers of all flows together, in bytes.
    ///
    /// The kernel counts whole pages per segment.
    ///
    /// 0 means half of the memory that the NIC's rings leave. Each flow gets `receive_memory / max_flows` as
    /// `SO_RCVBUF`, before it begins; with transport `zcrx`, the `rx_queues`-th part of that. If the value exceeds the
    /// memory, flows can lock up; errc::memory_locked_up ends such a flow.
    std::size_t receive_memory = 0;

    /// @brief Time without data after which a locked-up flow fails.
    ///
    /// The session ends the flow with errc::memory_locked_up.
    ///
    /// A flow is locked up if nothing arrives for it, while every page of the memory is in flight and none is on loan.
    /// If some pages are on loan, the session tells `notice` the holders, and the flow continues to wait. Zero means
    /// never. `milliseconds::max()` is practically never.
    ///
    /// A thread of the session checks, except with transport `copy`. It sleeps unless an operation waits.
    std::chrono::milliseconds lock_up_limit{5000};

    /// @brief Most bytes that one flow may have on loan, in live rx_buffers.
    ///
    /// At the limit async_receive() waits until a loan returns. One call may exceed the limit by a segment. Bytes left
    /// over from an async_read() may exceed it by their batch.
    ///
    /// Except with transport `copy`, the pages of a loan's fragments count, each page once. With many drivers a page
    /// holds one packet, so 1 MiB of pages may hold 362 KiB of data.
    ///
    /// 0 means half of the memory that receive_memory leaves, divided by `max_flows`. The other half is for
    /// async_read(). Pages that wait for the streams of a flow's reads take nothing from its loans, nor from other
    /// flows (docs/memory-budget.md).
    std::size_t loan_limit = 0;

    /// @brief Directory of the journal of changes.
    ///
    /// A later process undoes the changes of a killed process with the journal.
    ///
    /// The directory must survive the process, and should not survive a reboot.
    std::string state_directory = "/run/gpurx";

    /// @brief Function that receives notices for the user, one sentence each.
    ///
    /// A notice has a fact that the user should know and that no error reports.
    ///
    /// Such facts are:
    /// - a ring of the NIC that takes much of the memory;
    /// - a setting changed by another program, which the session leaves alone at its end;
    /// - a rule that could only be made by port;
    /// - flows that starve because loans hold every page.
    ///
    /// The thread that opens the session calls the function, and so do threads of the session. The function must not
    /// throw. It must not wait for a thread that ends the session. If empty, the session drops the notices.
    std::function<void(std::string_view)> notice{};
};

/// @brief A session on a NIC: queues, memory and rules. A handle to shared state.
///
/// With several memories, each const member refers to all of them, unless its documentation names the first.
///
/// The session records each change of the NIC in the journal before it makes the change. The changes are, in this
/// order:
/// - tcp-data-split on, after rx-gro-hw on if the driver refuses header split without it, and hds-thresh 0;
/// - ntuple-filters on;
/// - combined channels raised if there are fewer than `rx_queues` + 1;
/// - the RSS indirection table moved away from the session's queues;
/// - the memory bound to the queues (bind-rx);
/// - ntuple rules per flow or port.
///
/// The session undoes them in reverse order. Sessions on one interface share its journal: a setting returns to its
/// former value when the last session on the interface ends. If another program has changed a setting meanwhile, the
/// session leaves it alone and reports it to `rx_session_options::notice`.
///
/// Transport `devmem` needs:
/// - Linux 7.2 or later;
/// - a driver with queue management and header split;
/// - `CAP_NET_ADMIN` in the user namespace that owns the network namespace, or gpurxd.
///
/// Without the capability the session asks gpurxd, if it runs (`/run/gpurxd.sock`, or `GPURXD_SOCKET`). The daemon
/// makes the changes above as far as its policy allows. It keeps the journal in a directory of its own choice. It
/// undoes the changes when the session, or its process, ends. explain() reports the use of the daemon.
///
/// Transport `zcrx` needs:
/// - Linux 7.2 or later with `CONFIG_IO_URING_ZCRX`, and io_uring permitted to the process;
/// - a driver as `devmem` does;
/// - `CAP_NET_ADMIN` in the initial user namespace, or gpurx-run. Each thread needs the capability until it has
///   received once, except for threads that take a ring of rx_session_options::zcrx_spare_rings, or of gpurx-run;
/// - no leased queues.
///
/// @par Cost
/// Opening a session blocks for some 100 ms, except with transport `copy`.
///
/// @par Lifetime
/// Receivers, operations and rx_buffers keep the state alive, so the program may destroy the session early. When the
/// last of them is gone, the NIC is restored. A thread of the session restores it, with some 100 ms of netlink calls.
/// The same thread installs and removes the rules of flows. If the session is the last user, its destructor waits for
/// that thread. The destructors of a receiver and of an rx_buffer do not wait. The end of the process waits, with
/// `exit()` but not with `_exit()`.
///
/// @par Thread safety
/// Distinct sessions are safe. A shared session is unsafe, except for const members.
///
/// @par Processes
/// A session belongs to the process that opened it. After `fork()` a child may destroy its copy, which changes nothing
/// (docs/threads.md).
class rx_session {
  public:
    /// @brief Opens a session.
    ///
    /// The text of the exception has the kernel's own message (extack) and advice. With transport `automatic`, other
    /// obstacles to `devmem` and `zcrx` are not errors: explain() lists them.
    ///
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// With every transport:
    /// - `EINVAL`: an option has an invalid value.
    /// - `ENODEV`: the options name an interface that the network namespace of this thread does not have.
    /// - errc::memory_too_small.
    rx_session(rx_session_options options, device_memory memory);
    /// @brief Returns an empty optional instead of throwing; otherwise as above.
    ///
    /// On an error it sets `code` and `why`.
    [[nodiscard]] static std::optional<rx_session> open(rx_session_options options, device_memory memory,
                                                        error_code& code, diagnostics& why);

    /// @brief Opens a session with several memories behind one port.
    ///
    /// Use it for several GPUs.
    ///
    /// Each memory is a part of the session. A part has its own `rx_queues` queues, its own `max_flows` flows and its
    /// own division of memory, all with the same options. All parts use the same transport. If it fails for one part,
    /// the error names it.
    ///
    /// Connections of an acceptor arrive in the first memory. acceptor::choose_memory() or the program (part()) assigns
    /// a flow to a memory. The flow's own rule moves it there. The receiver also delivers bytes that came before the
    /// move, and counts them as `stats::resteered_bytes` (docs/several-gpus.md).
    ///
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - The errors for one memory.
    /// - errc::transport_unavailable: the queues are leased, so the session cannot move a flow to another queue.
    rx_session(rx_session_options options, std::vector<device_memory> memories);
    /// @brief Returns an empty optional instead of throwing; otherwise as above.
    ///
    /// On an error it sets `code` and `why`.
    [[nodiscard]] static std::optional<rx_session> open(rx_session_options options, std::vector<device_memory> memories,
                                                        error_code& code, diagnostics& why);

    /// @brief Moves the handle.
    rx_session(rx_session&&) noexcept;
    /// @brief Drops the present handle, as the destructor does, and moves the other.
    rx_session& operator=(rx_session&&) noexcept;
    /// @brief Drops the handle. The last user of the session restores the NIC (see Lifetime).
    ~rx_session();

    /// @brief Returns the number of memories.
    [[nodiscard]] std::size_t parts() const noexcept;
    /// @brief Returns one memory as a session.
    ///
    /// A receiver constructed with the returned session is a flow of this memory only. Each member of the returned
    /// session refers to this memory only.
    ///
    /// @throws std::out_of_range If `index` is not less than parts().
    ///
    /// @par Lifetime
    /// The returned session keeps the part alive, but not the others.
    [[nodiscard]] rx_session part(std::size_t index) const;

    /// @brief Returns the transport in use; never `automatic`.
    [[nodiscard]] gpurx::transport transport() const noexcept;
    /// @brief Returns a report for people, with one line per transport.
    ///
    /// The first line names the transport in use. The line of `devmem` in use names its tokens. The line of
    /// another transport has the reason why it is not in use, and advice. Except with transport `copy`, more lines
    /// follow:
    /// - the part of the memory that the NIC's ring keeps posted;
    /// - the places of the pages (pool_stats());
    /// - each flow that does not wait for its sender: it waits for its own loans, for GPU streams, or for pages of
    ///   others. The line names the holders.
    ///
    /// @par Cost
    /// Some netlink calls, except with transport `copy`.
    [[nodiscard]] std::string explain() const;
    /// @brief Returns the reason why transport `devmem` is not in use.
    ///
    /// With several memories, the value belongs to the first that could not use it. All memories use the same
    /// transport.
    [[nodiscard]] transport_obstacle why_not_devmem() const noexcept;
    /// @brief Returns the reason why transport `zcrx` is not in use; otherwise as why_not_devmem().
    [[nodiscard]] transport_obstacle why_not_zcrx() const noexcept;
    /// @brief Returns the sums of the counters of all past and present flows.
    ///
    /// `stats::tokens_high_water` is that of the session; with several memories, the largest.
    [[nodiscard]] gpurx::stats stats() const;
    /// @brief Returns the places of the memory's pages.
    ///
    /// With several memories it returns those of the first.
    ///
    /// The result is empty if the kernel does not report the pages: the interface is gone, or its queues are leased to
    /// it. It is also empty in a forked child.
    ///
    /// @par Cost
    /// Netlink calls of some 100 us. They delay flows that begin or end, but not flows that receive.
    [[nodiscard]] std::optional<gpurx::pool_stats> pool_stats() const;
    /// @brief Returns the memory; with several memories, the first.
    [[nodiscard]] device_memory const& memory() const noexcept;
    /// @brief Returns the RX queues of this session; empty with transport `copy`.
    [[nodiscard]] std::vector<unsigned> queues() const;
    /// @brief Returns `SO_RCVBUF` of one flow, in bytes.
    ///
    /// The value is the argument of `setsockopt`. 0: the system chooses.
    ///
    /// See `rx_session_options::receive_memory`.
    [[nodiscard]] int receive_buffer_size() const noexcept;

    /// @brief Steers connections of an Asio acceptor to the session's queues.
    ///
    /// Each connection to the acceptor's port gets its share of `rx_session_options::receive_memory`.
    ///
    /// Call it after `bind()` and before `listen()`. Then pass each accepted socket to the receiver's constructor. The
    /// rule lives as long as the session. With transport `copy` the call sets only the receive buffer. With several
    /// memories the queues are those of the first. A receiver constructed with another part() moves its flow there.
    ///
    /// A connection that waits to be accepted already receives. It takes as much of the memory as any flow, and no
    /// operation reads it. So pass `listen()` a small backlog, except with transport `copy`. Keep the sum of accepted
    /// flows and of backlog + 1 of each acceptor within `max_flows`. Otherwise a program that stops accepting can
    /// starve its own flows (docs/memory-budget.md).
    ///
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - `EINVAL`: the acceptor is not bound.
    /// - The driver's error if it refuses the rule.
    void steer(asio::ip::tcp::acceptor& acceptor);
    /// @brief Sets `code` and `why` instead of throwing; otherwise as the overload above.
    void steer(asio::ip::tcp::acceptor& acceptor, error_code& code, diagnostics& why);

    /// @brief Undoes the changes of killed processes on the interface.
    ///
    /// The call needs the same rights as opening a session. It does not change settings of live processes. Opening a
    /// session recovers too.
    ///
    /// @returns One sentence for each undone change; empty if there was nothing to undo.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - errc::journal_invalid.
    /// - The kernel's errors.
    static std::vector<std::string> recover(std::string_view interface,
                                            std::string_view state_directory = "/run/gpurx");

  private:
    friend struct detail::session_access;
    explicit rx_session(std::shared_ptr<detail::session_state> state, bool is_part = false) noexcept;

    std::shared_ptr<detail::session_state> state_;
    bool is_part_ = false;  // one memory of several was named
};

}  // namespace gpurx
