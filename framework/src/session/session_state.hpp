// SPDX-License-Identifier: Apache-2.0
//
// rx_session handles, receivers and loans share a session_state. The session builds and undoes it (session_state.cpp);
// flow/ uses the part below "for flows" (session_steering.cpp, session_flows.cpp).
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

// The operation of a flow waits for one of these.
enum class flow_wait : std::uint8_t { nothing, data, loans, streams, pages };

// A rule that exists. It is a piece of work, too: to remove it. In the end it is given to session_state::unsteer().
class kept_rule final : public nic_worker::job {
  public:
    explicit kept_rule(std::unique_ptr<steering_rule> rule) noexcept : rule_{std::move(rule)} {}
    void run() noexcept override { rule_.reset(); }

  private:
    std::unique_ptr<steering_rule> rule_;
};

// A rule that was asked for: shared by who asked and the session's thread, so either may go first. A rule that nobody
// takes is removed again.
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
    unique_fd event;  // an eventfd, readable at the end. Empty: the flow exists, and is moved by the rule; nobody waits
    // Written before
    std::atomic<bool> done{false};
    // is set:
    error_code code;
    diagnostics why;
    process_ptr<kept_rule> rule;  // null with an error
};

// One flow of a session: a place among max_flows, its counters, its steering rule, and what the watchdog sees of it.
// Held by detail::flow; destroying it frees the place, adds the counters to the session's and removes the rule (in a
// child that was forked, the place only).
class flow_place {
  public:
    explicit flow_place(std::shared_ptr<session_state> owner) noexcept;
    flow_place(flow_place const&) = delete;
    flow_place& operator=(flow_place const&) = delete;
    ~flow_place();

    [[nodiscard]] session_state& session() const noexcept { return *session_; }
    [[nodiscard]] std::shared_ptr<session_state> const& shared_session() const noexcept { return session_; }

    flow_counters counters;
    // Bytes of its shares of the memory that are in use (budget.hpp): by loans, and by reads that wait for their
    // streams. Written by whoever receives and whoever gives back.
    std::atomic<std::size_t> on_loan{0};
    std::atomic<std::size_t> in_reads{0};

    // For the watchdog, which looks at flows that wait for data, and for explain().
    void set_waiting(flow_wait what) noexcept;
    // `holder` knows the pages of the flow's loans, for pool(); null, also before it is gone.
    void set_holder(page_holder const* holder) noexcept;
    // The flow's own descriptor, for the watchdog; -1, also before the descriptor is closed.
    void set_socket(int fd) noexcept;
    // The watchdog found the flow locked up and has ended its connection, which wakes the waiter.
    [[nodiscard]] bool locked_up() const noexcept { return locked_up_.load(std::memory_order_acquire); }
    // The rule that brings the flow; it is removed with the flow.
    void keep(process_ptr<kept_rule> rule) noexcept { rule_ = std::move(rule); }
    // The session in whose memory the flow's first bytes are, which have to be found there; and the rule that moves the
    // flow from there, which may not be made yet (null: it cannot even be asked for).
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

class session_state final : public std::enable_shared_from_this<session_state>, private watchdog_subject {
  public:
    // Finds a transport and sets it up. Throws system_error.
    static std::shared_ptr<session_state> open(rx_session_options options,
                                               std::vector<std::shared_ptr<memory_state>> const& memories);
    // A session on a NIC that is set up already, transport devmem; or without one (null), transport copy. Throws
    // system_error: errc::memory_too_small. `explanation` is what explain() returns. On a NIC the session's thread
    // destroys it in the end, and restores the NIC: who lets go of it last waits for nothing. In a child that was
    // forked it is destroyed, and no more.
    static std::shared_ptr<session_state> create(rx_session_options options, std::shared_ptr<memory_state> memory,
                                                 std::unique_ptr<session_nic> nic, std::string explanation);
    // The first of them, with all of them as its parts. Each is a session of one memory, as create() makes it.
    static std::shared_ptr<session_state> join(std::vector<std::shared_ptr<session_state>> parts);
    session_state(session_state const&) = delete;
    session_state& operator=(session_state const&) = delete;
    ~session_state();
    // The session's thread; null with transport copy, and in a child that was forked.
    [[nodiscard]] std::shared_ptr<nic_worker> worker() const noexcept { return born_.is_here() ? worker_ : nullptr; }
    // Those of all parts, in a list that outlives the session; null as above.
    using worker_list = std::vector<std::shared_ptr<nic_worker>>;
    [[nodiscard]] std::shared_ptr<worker_list const> workers() const noexcept
    {
        return born_.is_here() ? workers_ : nullptr;
    }

    // ---- parts: a session of one memory is its own only part ----

    [[nodiscard]] std::size_t part_count() const noexcept { return 1 + others_.size(); }
    // Precondition: index < part_count().
    [[nodiscard]] std::shared_ptr<session_state> part(std::size_t index);
    // The one that connections arrive in before they are moved to this one.
    [[nodiscard]] std::shared_ptr<session_state> first();
    [[nodiscard]] part_condition condition() const;

    [[nodiscard]] rx_session_options const& options() const noexcept { return options_; }
    [[nodiscard]] device_memory const& memory_handle() const noexcept { return handle_; }
    // Set where its words are made.
    [[nodiscard]] devmem_obstacle why_not_devmem() const noexcept { return obstacle_; }
    // Describes the session, with a line for each flow that waits for something else than data.
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

    [[nodiscard]] gpurx::transport transport() const noexcept
    {
        return nic_ ? gpurx::transport::devmem : gpurx::transport::copy;
    }
    [[nodiscard]] memory_state& memory() const noexcept { return *memory_; }
    // A flow; or errc::too_many_flows, and operation_not_supported in a child that was forked.
    [[nodiscard]] std::unique_ptr<flow_place> admit(error_code& code);
    // How many more flows would be admitted now.
    [[nodiscard]] unsigned free_places() const;
    // Begins to steer one flow, by 5-tuple or else by local port, before it connects: its socket is bound to `local`.
    // Null with `code` set if it cannot be begun. Not with transport copy.
    [[nodiscard]] std::shared_ptr<steering> steer_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                       asio::ip::tcp::endpoint const& remote, error_code& code);
    // A flow of this session arrives in another one's memory: begins to steer it here, and keeps that one alive.
    // Transport copy: nothing. A flow that cannot be moved goes on as it is, and `notice` is told, once.
    void move_here(flow_place& flow, int socket, std::shared_ptr<session_state> const& from) noexcept;
    // Has a rule removed, and does not wait for it. Null: nothing. In a child that was forked: nothing.
    void unsteer(process_ptr<kept_rule> rule) noexcept;
    // SO_RCVBUF for one flow; 0: leave it.
    [[nodiscard]] int receive_buffer_size() const noexcept { return receive_buffer_size_; }
    // Gives a socket that size, beyond net.core.rmem_max where permitted. Before connect or listen.
    void size_receive_buffer(int socket, error_code& code);
    [[nodiscard]] std::size_t loan_limit() const noexcept { return loan_limit_; }
    [[nodiscard]] std::size_t read_share() const noexcept { return read_share_; }
    // Transport devmem: bytes of one page of the binding.
    [[nodiscard]] std::size_t nic_page_size() const noexcept { return nic_->page_size(); }
    // Transport copy: the pages. Precondition: transport() == copy.
    [[nodiscard]] page_pool& pages() noexcept { return *pages_; }
    // Transport devmem: the kernel's id of the binding (dmabuf_cmsg.dmabuf_id).
    [[nodiscard]] std::uint32_t dmabuf_id() const noexcept { return nic_->dmabuf_id(); }
    // The same: the kernel has array tokens, and the binding not too many pages for them.
    [[nodiscard]] bool has_array_tokens() const noexcept
    {
        return nic_->has_array_tokens() && fits_array_tokens(memory_->span().size(), nic_->page_size());
    }
    // The live session of this process whose binding has this id; null: none. Thread-safe.
    [[nodiscard]] static std::shared_ptr<session_state> find_binding(std::uint32_t dmabuf_id);

    // Device pages on loan over all flows: kept here so that the watchdog and high-water mark need no sum.
    // Called on the session that the pages belong to.
    void tokens_taken(std::uint64_t count) noexcept;
    void tokens_returned(std::uint64_t count) noexcept;

  private:
    friend class flow_place;
    friend struct session_registry;
    session_state(rx_session_options options, std::shared_ptr<memory_state> memory, std::unique_ptr<session_nic> nic,
                  std::string explanation, budget const& plan);

    class steering_job;
    // The end of a session on a NIC. The memory goes after the binding.
    struct restoration final : nic_worker::job {
        restoration(std::shared_ptr<memory_state> of, std::unique_ptr<session_nic> given)
            : memory{std::move(of)}, nic{std::move(given)}
        {}
        static void end(session_state* session) noexcept;
        void run() noexcept override;

        session_state* ending = nullptr;
        std::shared_ptr<memory_state> memory;
        std::unique_ptr<session_nic> nic;
        std::vector<std::unique_ptr<steering_rule>> listeners;  // added by the session's thread
    };

    // True in a child that was forked, and `code` says so.
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
    // Notes a look at the pool.
    void note_in_flight(std::uint64_t pages) const noexcept;
    void note_dryness(lock_up_sample const& sample) noexcept;
    // With the mutex: whose loans and reads hold how many pages.
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
    devmem_obstacle obstacle_ = devmem_obstacle::none;

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

    mutable std::mutex mutex_;        // guards what follows
    std::vector<flow_place*> flows_;  // alive
    stats ended_;                     // counters of flows that are gone

    process_ptr<watchdog> watchdog_;  // last: stops before the rest goes. Null: never
};

// The one door between the public handles and the state that they share, for the library itself and its tests.
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
