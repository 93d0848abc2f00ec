// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sessions on a NIC: queues set aside, memory bound, header split on, flows steered, all undone at the end.
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
    /// @brief The best transport that works. rx_session::explain() names it, and tells why no better one is in use.
    automatic,
    /// @brief The NIC writes into the memory (devmem TCP). Needs an interface, `CAP_NET_ADMIN` or gpurxd, and a driver.
    devmem,
    /// @brief `recv()` into the memory. Works everywhere and needs no privilege.
    copy,
};

/// @brief Returns the enumerator's name.
[[nodiscard]] std::string_view to_string(transport value) noexcept;

/// @brief Missing prerequisite of transport `devmem`, for programs and metrics.
///
/// rx_session::explain() has the text for people, and tells what to change. Values may be added.
enum class devmem_obstacle : std::uint8_t {
    none,                 ///< Transport `devmem` is in use.
    copy_asked_for,       ///< `rx_session_options::transport` is `copy`.
    no_interface,         ///< `rx_session_options::interface` is empty.
    interface_down,       ///< The interface is down or gone.
    memory_not_exported,  ///< The memory has no dmabuf: device_memory::dmabuf_fd() is -1.

    /// @brief The memory is too small for `max_flows` flows and the pages in the NIC's rings.
    memory_too_small,
    no_rights,  ///< The process has no `CAP_NET_ADMIN`, and no gpurxd runs.

    /// @brief gpurxd refuses by its policy or its limits, or does not answer.
    refused_by_gpurxd,
    /// @brief The journal in `rx_session_options::state_directory` cannot be read, written or locked.
    state_directory,
    /// @brief The NIC or its driver cannot split headers, or another setting prevents it.
    no_header_split,
    too_few_queues,  ///< The NIC has no more queues, or others use them.

    /// @brief The driver or the kernel does not bind this memory to queues (bind-rx).
    not_bound,
    /// @brief A session with several memories has leased queues. It can install no rule from here.
    flows_not_movable,
    other,  ///< The kernel or the driver refused something else.
};

/// @brief Returns the enumerator's name, such as "no_rights".
[[nodiscard]] std::string_view to_string(devmem_obstacle value) noexcept;

/// @brief Options of a session.
struct rx_session_options {
    /// @brief Name of the NIC, or of a netkit device that has queues of one in a container (docs/leased-queues.md).
    ///
    /// With a netkit device the session sets up nothing but the memory. If empty, only transport `copy` can work. If
    /// set, the interface must exist, whatever the transport.
    std::string interface = {};

    /// @brief Number of RX queues to set aside.
    ///
    /// They are taken from the top: with 8 queues and `rx_queues` 2, queues 6 and 7.
    unsigned rx_queues = 1;

    /// @brief Transport to use.
    ///
    /// `automatic` falls back to `copy`, and explain() tells why. Another value that cannot work is an error.
    gpurx::transport transport = gpurx::transport::automatic;

    /// @brief Bytes of a page at the NIC.
    ///
    /// 0 means a page of the kernel: 4 KiB, or 64 KiB on some arm64 kernels. Another value must be a power of two and
    /// at least a page of the kernel. The driver must support it. It must divide the memory's own pages, which are 2
    /// MiB with huge pages. Transport `copy` has no such pages.
    std::uint32_t rx_page_size = 0;

    /// @brief Most flows at one time, including connections that wait to be accepted (see rx_session::steer()).
    ///
    /// They share the memory in advance (see receive_memory).
    unsigned max_flows = 16;

    /// @brief Receive buffers of all flows together, in bytes, as the kernel counts them: whole pages per segment.
    ///
    /// 0 means half of the memory that the NIC's rings leave. Each flow gets `receive_memory / max_flows`, as
    /// `SO_RCVBUF` before it begins. More than the memory can hold invites the lock-up that errc::memory_locked_up
    /// ends.
    std::size_t receive_memory = 0;

    /// @brief Time without data after which the session ends a locked-up flow with errc::memory_locked_up.
    ///
    /// A flow is locked up if nothing arrives for it, while every page of the memory is in flight and none is on loan.
    /// If some are on loan, `notice` gets their holders, and the flow continues to wait. Zero means never;
    /// `milliseconds::max()` is as good as never.
    ///
    /// One thread of the session checks, with transport `devmem` only. It sleeps unless an operation waits.
    std::chrono::milliseconds lock_up_limit{5000};

    /// @brief Most bytes that one flow may have on loan, in live rx_buffers.
    ///
    /// At the limit async_receive() waits until a loan returns. One call may exceed the limit by a segment. Bytes that
    /// an async_read() has left over may exceed it by their batch.
    ///
    /// Transport `devmem` counts the pages of a loan's fragments, each once. With many drivers a page holds one packet,
    /// so 1 MiB of pages may be 362 KiB of data.
    ///
    /// 0 means half of the memory that receive_memory leaves, shared by `max_flows`. The other half is for
    /// async_read(). Pages that wait for the streams of a flow's reads take nothing from its loans, nor from other
    /// flows (docs/memory-budget.md).
    std::size_t loan_limit = 0;

    /// @brief Directory of the journal of changes, with which a later run undoes the changes of a killed one.
    ///
    /// It must survive the process, and should not survive a reboot.
    std::string state_directory = "/run/gpurx";

    /// @brief Called with one sentence about a fact that the user should know and that no error reports.
    ///
    /// Such facts are:
    /// - a ring of the NIC that takes much of the memory;
    /// - a setting changed by another program, which the session leaves alone at its end;
    /// - a rule that could only be made by port;
    /// - flows that starve because loans hold every page.
    ///
    /// The thread that opens the session calls it, and so do threads of the session. It must not throw. It must not
    /// wait for a thread that ends the session. If empty, the notices are dropped.
    std::function<void(std::string_view)> notice{};
};

/// @brief A session on a NIC. The object is a handle to shared state.
///
/// With several memories, each const member refers to all of them, unless its text names the first.
///
/// Before each change of the NIC the session records it in the journal. The changes are, in this order:
/// - tcp-data-split on, after rx-gro-hw on if the driver refuses header split without it, and hds-thresh 0;
/// - ntuple-filters on;
/// - combined channels raised if there are fewer than `rx_queues` + 1;
/// - the RSS indirection table moved away from the session's queues;
/// - the memory bound to the queues (bind-rx);
/// - ntuple rules per flow or port.
///
/// The session undoes them in reverse order. Sessions on one interface share its journal: a setting returns to its
/// former value when the last session on the interface ends. The session leaves a setting alone that another program
/// has changed meanwhile, and reports it to `rx_session_options::notice`.
///
/// Transport `devmem` needs Linux 7.2 or later, and a driver with queue management and header split. It needs
/// `CAP_NET_ADMIN` in the user namespace that owns the network namespace. Without that right the session asks gpurxd,
/// if it runs (`/run/gpurxd.sock`, or `GPURXD_SOCKET`). The daemon makes the changes above as far as its policy allows.
/// It keeps the journal in a directory of its own choice. It undoes the changes when the session, or its process, ends.
/// explain() tells so.
///
/// @par Cost
/// Opening a session with transport `devmem` blocks for some 100 ms.
///
/// @par Lifetime
/// Receivers, operations and rx_buffers keep the state alive, so the session may be destroyed early. The NIC is
/// restored when the last of them is gone. With transport `devmem` a thread of the session restores it, with some 100
/// ms of netlink calls. The same thread installs and removes the rules of flows. If the session is the last, its
/// destructor waits for that thread. The destructors of a receiver and of an rx_buffer do not wait. The end of the
/// process waits, with `exit()` but not with `_exit()`.
///
/// @par Thread safety
/// Distinct sessions are safe. A shared session is unsafe, except for const members.
///
/// @par Processes
/// A session belongs to the process that opened it. After `fork()` a child may drop it, which changes nothing
/// (docs/threads.md).
class rx_session {
  public:
    /// @brief Opens a session.
    ///
    /// The text of the exception holds the kernel's own message (extack) and what to change. With transport `automatic`
    /// no other obstacle to `devmem` is an error: explain() tells it.
    ///
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// With every transport:
    /// - `EINVAL`: an option has an impossible value.
    /// - `ENODEV`: the options name an interface that the network namespace of this thread does not have.
    /// - errc::memory_too_small.
    rx_session(rx_session_options options, device_memory memory);
    /// @brief Opens a session as above; on an error returns an empty optional and sets `code` and `why`.
    [[nodiscard]] static std::optional<rx_session> open(rx_session_options options, device_memory memory,
                                                        error_code& code, diagnostics& why);

    /// @brief Opens a session with several memories behind one port, such as those of several GPUs.
    ///
    /// Each memory is a part of the session. A part has `rx_queues` queues, `max_flows` flows and a share-out of its
    /// own, all with the same options. All parts use the same transport; if `devmem` fails for one, the error names it.
    ///
    /// Connections of an acceptor arrive in the first memory. acceptor::choose_memory() or the program (part()) assigns
    /// a flow to a memory. The flow's own rule moves it there. Bytes that came before are delivered all the same, and
    /// counted as `stats::resteered_bytes` (docs/several-gpus.md).
    ///
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// As for one memory. errc::transport_unavailable with leased queues, because the session cannot move a flow to
    /// another queue.
    rx_session(rx_session_options options, std::vector<device_memory> memories);
    /// @brief Opens a session as above; on an error returns an empty optional and sets `code` and `why`.
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
    /// A receiver constructed with it is a flow of this memory alone. Each member of the returned session refers to
    /// this memory alone.
    ///
    /// @throws std::out_of_range If `index` is not less than parts().
    ///
    /// @par Lifetime
    /// The returned session keeps the part alive, but not the others.
    [[nodiscard]] rx_session part(std::size_t index) const;

    /// @brief Returns the transport in use: never `automatic`.
    [[nodiscard]] gpurx::transport transport() const noexcept;
    /// @brief Returns a report for people, with one line per transport.
    ///
    /// The first line tells the transport in use. The line of a transport tells that it is in use (with which tokens),
    /// or why not and what would make it work. With transport `devmem` more lines follow:
    /// - how much of the memory the NIC's ring keeps posted;
    /// - where the pages are (pool_stats());
    /// - each flow that waits for something other than its sender: its own loans, GPU streams, or pages of others, and
    ///   their holders.
    ///
    /// @par Cost
    /// Some netlink calls with transport `devmem`.
    [[nodiscard]] std::string explain() const;
    /// @brief Returns why transport `devmem` is not in use.
    ///
    /// Of several memories, the value belongs to the first that could not use it. All memories use the same transport.
    [[nodiscard]] devmem_obstacle why_not_devmem() const noexcept;
    /// @brief Returns counters added up over all flows that this session ever had.
    ///
    /// `stats::tokens_high_water` is the session's own; of several memories, the largest.
    [[nodiscard]] gpurx::stats stats() const;
    /// @brief Returns where the pages of the memory are; of several memories, of the first.
    ///
    /// The result is empty if the kernel does not tell: the interface is gone, or has its queues leased to it. It is
    /// empty in a forked child too.
    ///
    /// @par Cost
    /// Netlink calls of some 100 us. They delay flows that begin or end, but no flow that receives.
    [[nodiscard]] std::optional<gpurx::pool_stats> pool_stats() const;
    /// @brief Returns the memory, or the first one.
    [[nodiscard]] device_memory const& memory() const noexcept;
    /// @brief Returns the RX queues of this session. The list is empty with transport `copy`.
    [[nodiscard]] std::vector<unsigned> queues() const;
    /// @brief Returns `SO_RCVBUF` of one flow in bytes, as `setsockopt` takes them; 0 leaves it to the system.
    ///
    /// See `rx_session_options::receive_memory`.
    [[nodiscard]] int receive_buffer_size() const noexcept;

    /// @brief Steers connections to this acceptor's port to the session's queues, with their share of receive_memory.
    ///
    /// Call it after `bind()` and before `listen()`. Then pass each accepted socket to the receiver's constructor. The
    /// rule lives as long as the session. With transport `copy` only the receive buffer is set. Of several memories the
    /// queues are those of the first. A receiver constructed with another part() moves its flow there.
    ///
    /// A connection that waits to be accepted receives already. It takes as much of the memory as any flow, and no
    /// operation reads it. So give `listen()` a small backlog with transport `devmem`. The flows accepted at one time,
    /// and backlog + 1 of each acceptor, are `max_flows` together at most. With more, a program that stops accepting
    /// can starve its own flows (docs/memory-budget.md).
    ///
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - `EINVAL`: the acceptor is not bound.
    /// - The driver's answer to the rule.
    void steer(asio::ip::tcp::acceptor& acceptor);
    /// @brief Sets `code` and `why` instead of throwing; otherwise as the overload above.
    void steer(asio::ip::tcp::acceptor& acceptor, error_code& code, diagnostics& why);

    /// @brief Undoes the changes of killed processes on the interface.
    ///
    /// It needs the same rights as opening a session. It changes nothing that belongs to a live process. Opening a
    /// session recovers as well.
    ///
    /// @returns A sentence for each change undone. An empty list: there was nothing to do.
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
