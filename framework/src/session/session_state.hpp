// SPDX-License-Identifier: Apache-2.0
//
// The state that rx_session handles, receivers and loans share. session_state.cpp constructs and destroys it. flow/
// uses the part below "for flows" (session_steering.cpp, session_flows.cpp).
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/error.hpp>
#include <gpurx/session.hpp>

#include "base/counters.hpp"
#include "base/fork.hpp"
#include "base/syscalls.hpp"
#include "budget.hpp"
#include "lease/session_nic.hpp"
#include "memory/memory_state.hpp"
#include "nic_worker.hpp"
#include "pool_state.hpp"
#include "transport_choice.hpp"
#include "watchdog.hpp"

namespace gpurx::detail {

class page_pool;  // memory/page_pool.hpp: pages of the memory for transport copy
class session_state;

// Resources that an operation of a flow waits for.
enum class flow_wait : std::uint8_t { nothing, data, loans, streams, pages };

// An existing rule, and the job that removes it. Pass it to session_state::unsteer() at the end.
class kept_rule final : public nic_worker::job {
  public:
    explicit kept_rule(std::unique_ptr<steering_rule> rule) noexcept : rule_{std::move(rule)} {}
    void run() noexcept override { rule_.reset(); }

  private:
    std::unique_ptr<steering_rule> rule_;
};

// A requested rule, shared by the requester and the session's thread, so either may end first. If the requester does
// not take the rule, it is removed.
struct steering {
    steering(std::shared_ptr<session_state> owner, unique_fd flow, asio::ip::tcp::endpoint here,
             asio::ip::tcp::endpoint there, unique_fd told)
        : session{std::move(owner)},
          socket{std::move(flow)},
          local{std::move(here)},
          remote{std::move(there)},
          event{std::move(told)}
    {}
    steering(steering const&) = delete;
    steering& operator=(steering const&) = delete;
    ~steering();

    std::shared_ptr<session_state> session;
    unique_fd socket;  // the flow's, until the end
    asio::ip::tcp::endpoint local;
    asio::ip::tcp::endpoint remote;
    unique_fd event;  // an eventfd, readable at the end. Empty: the rule moves an existing flow; no wait
    // Written before
    std::atomic<bool> done{false};
    // is set:
    error_code code;
    diagnostics why;
    process_ptr<kept_rule> rule;  // null with an error
};

// One flow of a session: a place among max_flows, its counters, its steering rule, and its state for the watchdog.
// detail::flow owns it. Its destruction frees the place, adds the counters to the session's and removes the rule. In a
// forked child it only frees the place.
class flow_place {
  public:
    explicit flow_place(std::shared_ptr<session_state> owner) noexcept;
    flow_place(flow_place const&) = delete;
    flow_place& operator=(flow_place const&) = delete;
    ~flow_place();

    [[nodiscard]] session_state& session() const noexcept { return *session_; }
    [[nodiscard]] std::shared_ptr<session_state> const& shared_session() const noexcept { return session_; }

    flow_counters counters;
    // Bytes in use of its shares of the memory (budget.hpp): by loans, and by reads that wait for their streams. The
    // receiving thread writes them, and threads that return pages.
    std::atomic<std::size_t> on_loan{0};
    std::atomic<std::size_t> in_reads{0};

    // For explain() and for the watchdog, which samples flows that wait for data.
    void set_waiting(flow_wait what) noexcept;
    // `holder` has the pages of the flow's loans, for pool(). Set null before its destruction.
    void set_holder(page_holder const* holder) noexcept;
    // The flow's own descriptor, for the watchdog. Set -1 before the descriptor is closed.
    void set_socket(int fd) noexcept;
    // Returns whether the watchdog has found the flow locked up. It has then ended the connection, which wakes the
    // operation.
    [[nodiscard]] bool locked_up() const noexcept { return locked_up_.load(std::memory_order_acquire); }
    // Keeps the rule that steers the flow, and removes it with the flow.
    void keep(process_ptr<kept_rule> rule) noexcept { rule_ = std::move(rule); }
    // Keeps the session whose memory has the flow's first bytes, so that they can be found. Keeps the rule that moves
    // the flow from there; it may not exist yet. Null: the rule cannot be requested.
    void keep(std::shared_ptr<session_state> arrived_in, std::shared_ptr<steering> mover) noexcept
    {
        arrived_in_ = std::move(arrived_in);
        mover_ = std::move(mover);
    }
    // For the watchdog, and tests.
    void mark_locked_up() noexcept { locked_up_.store(true, std::memory_order_release); }

  private:
    friend class session_state;
    std::shared_ptr<session_state> session_;
    process_ptr<kept_rule> rule_;                // null: no rule of its own
    std::shared_ptr<session_state> arrived_in_;  // null: in this one
    std::shared_ptr<steering> mover_;
    std::atomic<flow_wait> waiting_{flow_wait::nothing};
    std::atomic<bool> locked_up_{false};
    int socket_ = -1;                      // guarded by the session's mutex
    page_holder const* holder_ = nullptr;  // the same
};

// Bytes of a memory that a session of this process has, from before its NIC is set up until after that is undone.
struct claimed_memory {
    memory_span bytes;
    gpurx::transport kind;
    birthplace born;
};
struct claim_end {
    void operator()(claimed_memory* claim) const noexcept;
};
using memory_claim = std::unique_ptr<claimed_memory, claim_end>;

class session_state final : public std::enable_shared_from_this<session_state>, private watchdog_subject {
  public:
    // Finds a transport and sets it up. Throws system_error.
    static std::shared_ptr<session_state> open(rx_session_options options,
                                               std::vector<std::shared_ptr<memory_state>> const& memories);
    // Makes a session on a NIC that is already set up, with transport devmem; or without a NIC (null), with transport
    // copy. Throws system_error: errc::memory_too_small. explain() returns `explanation`. On a NIC the session's thread
    // destroys the session at the end and restores the NIC, so the last user does not wait. In a forked child the
    // session is only destroyed. `claim`: of the memory; null: it makes one.
    static std::shared_ptr<session_state> create(rx_session_options options, std::shared_ptr<memory_state> memory,
                                                 std::unique_ptr<session_nic> nic, std::string explanation,
                                                 memory_claim claim = {});
    // Returns the first of `parts`, with all of them as its parts. Each is a session of one memory from create().
    static std::shared_ptr<session_state> join(std::vector<std::shared_ptr<session_state>> parts);
    // Notes how a session came to its transport, and returns it.
    std::shared_ptr<session_state> note(transport_choice const& choice);
    session_state(session_state const&) = delete;
    session_state& operator=(session_state const&) = delete;
    ~session_state();
    // The session's thread; null with transport copy and in a forked child.
    [[nodiscard]] std::shared_ptr<nic_worker> worker() const noexcept { return born_.is_here() ? worker_ : nullptr; }
    // The threads of all parts, in a list that outlives the session; null as above.
    using worker_list = std::vector<std::shared_ptr<nic_worker>>;
    [[nodiscard]] std::shared_ptr<worker_list const> workers() const noexcept
    {
        return born_.is_here() ? workers_ : nullptr;
    }

    // ---- parts: a session of one memory is its own only part ----

    [[nodiscard]] std::size_t part_count() const noexcept { return 1 + others_.size(); }
    // Precondition: index < part_count().
    [[nodiscard]] std::shared_ptr<session_state> part(std::size_t index);
    // Returns the part in which connections arrive before they move to this one.
    [[nodiscard]] std::shared_ptr<session_state> first();
    [[nodiscard]] part_condition condition() const;

    [[nodiscard]] rx_session_options const& options() const noexcept { return options_; }
    [[nodiscard]] device_memory const& memory_handle() const noexcept { return handle_; }
    // Set by note().
    [[nodiscard]] transport_obstacle why_not_devmem() const noexcept { return not_devmem_; }
    [[nodiscard]] transport_obstacle why_not_zcrx() const noexcept { return not_zcrx_; }
    // Describes the session, with a line for each flow that does not wait for data.
    [[nodiscard]] std::string explain() const;
    [[nodiscard]] stats total() const;
    [[nodiscard]] std::optional<pool_stats> pool() const;
    [[nodiscard]] std::vector<unsigned> queues() const;
    // The same of all parts together.
    [[nodiscard]] std::string explain_all() const;
    [[nodiscard]] stats total_of_all() const;
    [[nodiscard]] std::vector<unsigned> queues_of_all() const;
    void steer(asio::ip::tcp::acceptor& acceptor, error_code& code, diagnostics& why);

    // ---- for flows ----

    [[nodiscard]] gpurx::transport transport() const noexcept;
    [[nodiscard]] memory_state& memory() const noexcept { return *memory_; }
    // Admits a flow. Errors: errc::too_many_flows; operation_not_supported in a forked child.
    [[nodiscard]] std::unique_ptr<flow_place> admit(error_code& code);
    // Returns the number of further flows that admit() would accept now.
    [[nodiscard]] unsigned free_places() const;
    // Begins to steer one flow before it connects, by 5-tuple or else by local port. Its socket is bound to `local`. On
    // an error returns null and sets `code`. Not with transport copy.
    [[nodiscard]] std::shared_ptr<steering> steer_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                       asio::ip::tcp::endpoint const& remote, error_code& code);
    // Begins to steer a flow of this session here that arrives in another session's memory, and keeps that session
    // alive. With transport copy it does nothing. If the flow cannot be moved, it continues as it is, and the session
    // tells `notice` once.
    void move_here(flow_place& flow, int socket, std::shared_ptr<session_state> const& from) noexcept;
    // Has the session's thread remove a rule, and does not wait. Does nothing for null, and in a forked child.
    void unsteer(process_ptr<kept_rule> rule) noexcept;
    // SO_RCVBUF of one flow; 0: do not set it.
    [[nodiscard]] int receive_buffer_size() const noexcept { return receive_buffer_size_; }
    // Sets that size on a socket, above net.core.rmem_max if permitted. Call it before connect or listen.
    void size_receive_buffer(int socket, error_code& code);
    [[nodiscard]] std::size_t loan_limit() const noexcept { return loan_limit_; }
    [[nodiscard]] std::size_t read_share() const noexcept { return read_share_; }
    // Transport devmem: bytes of one page of the binding.
    [[nodiscard]] std::size_t nic_page_size() const noexcept { return nic_->page_size(); }
    // Transport copy: the pages. Precondition: transport() == copy.
    [[nodiscard]] page_pool& pages() noexcept { return *pages_; }
    // Transport devmem: the kernel's id of the binding (dmabuf_cmsg.dmabuf_id).
    [[nodiscard]] std::uint32_t dmabuf_id() const noexcept { return nic_->dmabuf_id(); }
    // Transport zcrx: the queues. They live at least as long as the session.
    [[nodiscard]] zcrx_queues zcrx() const noexcept { return nic_->zcrx(); }
    // Transport devmem: whether the kernel has array tokens, and the binding is not too large for them.
    [[nodiscard]] bool has_array_tokens() const noexcept
    {
        return nic_->has_array_tokens() && fits_array_tokens(memory_->span().size(), nic_->page_size());
    }
    // Returns the live session of this process whose binding has this id; null if none. Thread-safe.
    [[nodiscard]] static std::shared_ptr<session_state> find_binding(std::uint32_t dmabuf_id);
    // Claims memory for a session of transport `kind`, never automatic. Throws EBUSY if a session of this process has
    // some of it, and that session or this one uses io_uring: the kernel lets two queues write to the same pages, and
    // loses data. Waits for sessions that are at their end. Thread-safe.
    [[nodiscard]] static memory_claim claim(memory_span memory, gpurx::transport kind);
    // The same without waiting; null: it is taken.
    [[nodiscard]] static memory_claim try_claim(memory_span memory, gpurx::transport kind);
    // The live sessions of this process whose transport is zcrx. Thread-safe.
    [[nodiscard]] static std::vector<std::shared_ptr<session_state>> all_of_zcrx();

    // Count device pages on loan of all flows, so that the watchdog and the high-water mark need no sum. Call them on
    // the session that owns the pages.
    void tokens_taken(std::uint64_t count) noexcept;
    void tokens_returned(std::uint64_t count) noexcept;

  private:
    friend class flow_place;
    friend struct session_registry;
    session_state(rx_session_options options, std::shared_ptr<memory_state> memory, std::unique_ptr<session_nic> nic,
                  std::string explanation, budget const& plan, memory_claim claim);

    class steering_job;
    // Ends a session on a NIC. Destroys the memory after the binding.
    struct restoration final : nic_worker::job {
        restoration(std::shared_ptr<memory_state> of, memory_claim claimed, std::unique_ptr<session_nic> given)
            : memory{std::move(of)}, claim{std::move(claimed)}, nic{std::move(given)}
        {}
        static void end(session_state* session) noexcept;
        void run() noexcept override;

        session_state* ending = nullptr;
        std::shared_ptr<memory_state> memory;
        memory_claim claim;
        std::unique_ptr<session_nic> nic;
        std::vector<std::unique_ptr<steering_rule>> listeners;  // added by the session's thread
    };

    // Returns true and sets `code` in a forked child.
    [[nodiscard]] bool refuses_child(error_code& code) const noexcept
    {
        code = born_.is_here() ? error_code{} : make_error_code(boost::system::errc::operation_not_supported);
        return code.failed();
    }

    void leave(flow_place& flow) noexcept;
    void flow_waits() noexcept;
    [[nodiscard]] std::optional<lock_up_sample> look() noexcept override;
    void end_a_flow() noexcept override;
    void tell_starved() noexcept override;
    [[nodiscard]] std::uint64_t page_count() const noexcept { return memory_->span().size() / nic_->page_size(); }
    // Adds the pages that the program holds.
    void count_held(pool_stats& account) const;
    void count_in_kernel(pool_stats& account, pool_sample const& sample) const noexcept;
    // Notes a sample of the pool.
    void note_in_flight(std::uint64_t pages) const noexcept;
    void note_dryness(lock_up_sample const& sample) noexcept;
    // Describes the flows whose loans and reads hold pages, with numbers. The caller holds the mutex.
    [[nodiscard]] std::string holders() const;
    void tell(std::string_view sentence) const;
    void tell_not_moved(error_code code, diagnostics const& why) noexcept;
    [[nodiscard]] std::shared_ptr<steering> ask_for_rule(int socket, asio::ip::tcp::endpoint const& local,
                                                         asio::ip::tcp::endpoint const& remote, unique_fd event,
                                                         error_code& code);

    birthplace born_;
    rx_session_options options_;
    std::shared_ptr<memory_state> memory_;
    device_memory handle_;
    int receive_buffer_size_;
    std::size_t loan_limit_;
    std::size_t read_share_;
    std::string explanation_;
    transport_obstacle not_devmem_ = transport_obstacle::none;
    transport_obstacle not_zcrx_ = transport_obstacle::none;

    memory_claim claim_;                // of transport copy; restoration_ has the others'
    std::unique_ptr<page_pool> pages_;  // null with transport devmem
    session_nic* nic_;                  // null with transport copy; restoration_ has it
    process_ptr<restoration> restoration_;
    std::shared_ptr<nic_worker> worker_;  // null with transport copy
    std::shared_ptr<worker_list const> workers_;
    std::vector<std::shared_ptr<session_state>> others_;  // of the first of several parts: the others
    std::weak_ptr<session_state> first_;                  // of the others: the first

    std::atomic<std::uint64_t> tokens_out_{0};
    std::atomic<std::uint64_t> tokens_high_water_{0};
    std::atomic<bool> told_of_buffer_limit_{false};
    std::atomic<bool> told_of_unmoved_{false};
    ring_demand rings_;
    mutable std::atomic<std::uint64_t> in_flight_high_water_{0};
    dry_clock dry_;  // the watchdog's
    std::atomic<std::chrono::nanoseconds> dry_time_{std::chrono::nanoseconds{0}};

    mutable std::mutex mutex_;        // guards the members below
    std::vector<flow_place*> flows_;  // alive
    stats ended_;                     // counters of destroyed flows

    process_ptr<watchdog> watchdog_;  // last: stops before the rest goes. Null: never
};

// Access to the shared state of public handles, for the library and its tests.
struct session_access {
    [[nodiscard]] static rx_session handle(std::shared_ptr<session_state> state) noexcept
    {
        return rx_session{std::move(state)};
    }
    [[nodiscard]] static bool is_part(rx_session const& of) noexcept { return of.is_part_; }
    [[nodiscard]] static std::shared_ptr<session_state> const& state(rx_session const& of) noexcept
    {
        return of.state_;
    }
    [[nodiscard]] static device_memory handle(std::shared_ptr<memory_state> state) noexcept
    {
        return device_memory{std::move(state)};
    }
    [[nodiscard]] static std::shared_ptr<memory_state> state(device_memory of) noexcept { return std::move(of.state_); }
};

}  // namespace gpurx::detail
