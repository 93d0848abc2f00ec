// SPDX-License-Identifier: Apache-2.0
//
// How a session begins and ends, its parts, and what it counts. Steering is in session_steering.cpp, flows are in
// session_flows.cpp.
#include "session_state.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/failure.hpp"
#include "memory/page_pool.hpp"

namespace gpurx::detail {

namespace {

budget plan_for(rx_session_options const& options, std::size_t memory, session_nic const* nic)
{
    auto const parts = nic != nullptr ? std::max(nic->zcrx().size(), std::size_t{1}) : 1;
    budget_request const request{.memory = memory,
                                 .page_size = nic != nullptr ? nic->page_size() : 0,
                                 .max_flows = options.max_flows,
                                 .receive_memory = options.receive_memory,
                                 .loan_limit = options.loan_limit,
                                 .rings = nic != nullptr ? rings_of(*nic) : ring_demand{},
                                 .interface = options.interface,
                                 .parts = parts};
    error_code code;
    diagnostics why;
    auto const plan = nic != nullptr
                          ? plan_budget(request, code, why)
                          : plan_copy_budget(request, page_pool::smallest_memory(options.max_flows), code, why);
    if (code)
        throw system_error{code, std::move(why)};
    return plan;
}

gpurx::transport transport_of(session_nic const* nic) noexcept
{
    if (nic == nullptr)
        return gpurx::transport::copy;
    return nic->zcrx().empty() ? gpurx::transport::devmem : gpurx::transport::zcrx;
}

}  // namespace

// All sessions of this process, and which of them a dmabuf id belongs to: the kernel gives an id to one binding at a
// time. fork() waits for its mutex and for each session's, so that a child finds none of them held by a thread that it
// does not have.
struct session_registry {
    std::mutex mutex;
    std::vector<session_state*> all;
    std::unordered_map<std::uint32_t, std::weak_ptr<session_state>> bindings;
    std::vector<std::weak_ptr<session_state>> of_zcrx;
    std::vector<claimed_memory const*> claims;

    static session_registry& instance()
    {
        // Never destroyed: sessions may die in static destructors.
        static auto* const registry = new session_registry;
        [[maybe_unused]] static int const once = ::pthread_atfork(lock_all, unlock_all, unlock_all);
        return *registry;
    }

    void enter(session_state& session)
    {
        std::scoped_lock const lock{mutex};
        all.push_back(&session);
    }
    void leave(session_state const& session) noexcept
    {
        std::scoped_lock const lock{mutex};
        std::erase(all, &session);
        // Only an entry of its own: a later session may have got the id already, in a test.
        std::erase_if(bindings, [](auto const& entry) { return entry.second.expired(); });
        std::erase_if(of_zcrx, [](auto const& entry) { return entry.expired(); });
    }

    // Nobody begins or ends a flow, in any session, while one lives.
    class hold_all {
      public:
        hold_all() { lock_all(); }
        hold_all(hold_all const&) = delete;
        hold_all& operator=(hold_all const&) = delete;
        ~hold_all() { unlock_all(); }
    };

  private:
    static void lock_all()
    {
        instance().mutex.lock();
        for (auto* session : instance().all)
            session->mutex_.lock();
    }
    static void unlock_all()
    {
        for (auto* session : instance().all)
            session->mutex_.unlock();
        instance().mutex.unlock();
    }
};

// The last holder of the session may be a thread that receives, or the one that sees streams pass. The session's thread
// waits for the watchdog instead, which may just be asking the NIC or telling the program something.
void session_state::restoration::end(session_state* session) noexcept
{
    auto const worker = session->worker();
    if (worker == nullptr) {
        delete session;
        return;
    }
    session->others_.clear();  // which have threads of their own for that
    auto* const last = session->restoration_.release();
    last->ending = session;
    worker->finish(std::unique_ptr<nic_worker::job>{last});
}

void session_state::restoration::run() noexcept
{
    delete ending;
    listeners.clear();
    nic.reset();
    claim.reset();
}

std::shared_ptr<session_state> session_state::create(rx_session_options options, std::shared_ptr<memory_state> memory,
                                                     std::unique_ptr<session_nic> nic, std::string explanation,
                                                     memory_claim claim)
{
    auto const plan = plan_for(options, memory->span().size(), nic.get());
    if (!claim)
        claim = session_state::claim(memory->span(), transport_of(nic.get()));
    std::shared_ptr<session_state> made{new session_state{std::move(options), std::move(memory), std::move(nic),
                                                          std::move(explanation), plan, std::move(claim)},
                                        restoration::end};
    if (made->nic_ != nullptr) {
        made->worker_ = nic_worker::start();
        made->workers_ = std::make_shared<worker_list const>(1, made->worker_);
        auto& registry = session_registry::instance();
        std::scoped_lock const lock{registry.mutex};
        if (made->nic_->zcrx().empty())
            registry.bindings[made->dmabuf_id()] = made;
        else
            registry.of_zcrx.push_back(made);
    }
    return made;
}

std::shared_ptr<session_state> session_state::join(std::vector<std::shared_ptr<session_state>> parts)
{
    auto head = parts.front();
    worker_list workers;
    for (auto const& part : parts) {
        if (part != head)
            part->first_ = head;
        if (part->worker_ != nullptr)
            workers.push_back(part->worker_);
    }
    head->workers_ = std::make_shared<worker_list const>(std::move(workers));
    parts.erase(parts.begin());
    head->others_ = std::move(parts);
    return head;
}

std::shared_ptr<session_state> session_state::part(std::size_t index)
{
    return index == 0 ? shared_from_this() : others_[index - 1];
}

std::shared_ptr<session_state> session_state::first()
{
    auto first = first_.lock();
    return first != nullptr ? std::move(first) : shared_from_this();
}

part_condition session_state::condition() const
{
    return {.free_places = free_places(), .failed = memory_->failure(true).failed()};
}

session_state::session_state(rx_session_options options, std::shared_ptr<memory_state> memory,
                             std::unique_ptr<session_nic> nic, std::string explanation, budget const& plan,
                             memory_claim claim)
    : options_{std::move(options)},
      memory_{std::move(memory)},
      handle_{session_access::handle(memory_)},
      receive_buffer_size_{plan.receive_buffer_size},
      loan_limit_{plan.loan_limit},
      read_share_{plan.read_share},
      explanation_{std::move(explanation)},
      claim_{std::move(claim)},
      nic_{nic.get()},
      restoration_{nic ? new restoration{memory_, std::move(claim_), std::move(nic)} : nullptr},
      rings_{nic_ != nullptr ? rings_of(*nic_) : ring_demand{}}
{
    if (nic_ == nullptr) {
        pages_ = std::make_unique<page_pool>(
            memory_->span().size(), options_.max_flows,
            memory_->span().kind() == memory_kind::device ? page_pool::order::in_a_row : page_pool::order::warmest);
    } else if (auto const limit = options_.lock_up_limit; limit.count() > 0) {
        auto const page_size = nic_->page_size();
        lock_up_detector const detector{limit, memory_->span().size() / page_size, page_size};
        watchdog_subject& self = *this;
        watchdog_.reset(new watchdog{self, limit, detector});
    }
    session_registry::instance().enter(*this);
}

session_state::~session_state()
{
    session_registry::instance().leave(*this);
    watchdog_.reset();
}

std::shared_ptr<session_state> session_state::find_binding(std::uint32_t dmabuf_id)
{
    std::shared_ptr<session_state> found;
    auto& registry = session_registry::instance();
    {
        std::scoped_lock const lock{registry.mutex};
        if (auto const entry = registry.bindings.find(dmabuf_id); entry != registry.bindings.end())
            found = entry->second.lock();
    }
    return found && found->born_.is_here() ? found : nullptr;
}

memory_claim session_state::try_claim(memory_span memory, gpurx::transport kind)
{
    auto const excludes = [&](claimed_memory const* other) {
        auto const theirs = other->bytes;
        return (kind == gpurx::transport::zcrx || other->kind == gpurx::transport::zcrx) && other->born.is_here() &&
               memory.address() < theirs.address() + theirs.size() &&
               theirs.address() < memory.address() + memory.size();
    };
    auto made = std::make_unique<claimed_memory>(claimed_memory{.bytes = memory, .kind = kind, .born = {}});
    auto& registry = session_registry::instance();
    std::scoped_lock const lock{registry.mutex};
    if (std::ranges::any_of(registry.claims, excludes))
        return {};
    registry.claims.push_back(made.get());
    return memory_claim{made.release()};
}

void claim_end::operator()(claimed_memory* claim) const noexcept
{
    {
        auto& registry = session_registry::instance();
        std::scoped_lock const lock{registry.mutex};
        std::erase(registry.claims, claim);
    }
    delete claim;
}

memory_claim session_state::claim(memory_span memory, gpurx::transport kind)
{
    auto made = try_claim(memory, kind);
    if (!made) {
        nic_worker::wait_for_all();  // one that has been destroyed may be at its end
        made = try_claim(memory, kind);
    }
    if (!made)
        fail(EBUSY, "open session on", "memory",
             "another session has this memory, or a loan of it is out, and one of the two uses io_uring: both would "
             "write to the same pages; give each session a memory of its own");
    return made;
}

std::vector<std::shared_ptr<session_state>> session_state::all_of_zcrx()
{
    std::vector<std::shared_ptr<session_state>> all;
    auto& registry = session_registry::instance();
    {
        std::scoped_lock const lock{registry.mutex};
        for (auto const& each : registry.of_zcrx)
            if (auto session = each.lock())
                all.push_back(std::move(session));
    }
    std::erase_if(all, [](auto const& session) { return !session->born_.is_here(); });
    return all;
}

gpurx::transport session_state::transport() const noexcept
{
    return transport_of(nic_);
}

std::vector<unsigned> session_state::queues() const
{
    return nic_ ? nic_->queues() : std::vector<unsigned>{};
}

std::vector<unsigned> session_state::queues_of_all() const
{
    auto all = queues();
    for (auto const& other : others_) {
        auto const more = other->queues();
        all.insert(all.end(), more.begin(), more.end());
    }
    return all;
}

stats session_state::total_of_all() const
{
    auto sum = total();
    for (auto const& other : others_)
        sum = sum + other->total();
    return sum;
}

std::string session_state::explain_all() const
{
    if (others_.empty())
        return explain();
    auto text = fmt::format("memory 0 of {}, which connections arrive in:\n{}", part_count(), explain());
    for (std::size_t i = 0; i < others_.size(); ++i)
        text += fmt::format("\nmemory {} of {}:\n{}", i + 1, part_count(), others_[i]->explain());
    return text;
}

void session_state::count_held(pool_stats& account) const
{
    page_census census{memory_->span(), account.page_size};
    session_registry::hold_all const held;
    auto places = flows_;
    for (auto const* session : session_registry::instance().all)
        if (session != this)
            places.insert(places.end(), session->flows_.begin(), session->flows_.end());
    account.flows.resize(places.size());
    // One use after the other, as a page that is on loan and parked, too, is on loan.
    for (auto const& [use, of_all, of_flow] :
         {std::tuple{page_use::on_loan, &pool_stats::on_loan, &flow_pages::on_loan},
          {page_use::parked, &pool_stats::parked, &flow_pages::parked},
          {page_use::in_reads, &pool_stats::in_reads, &flow_pages::in_reads}}) {
        for (std::size_t i = 0; i < places.size(); ++i) {
            auto& pages = account.flows[i].*of_flow;
            if (auto const* const holder = places[i]->holder_)
                pages = holder->note_pages(use, census);
            account.*of_all += pages;
        }
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
        auto& flow = account.flows[i];
        flow.connection = connection_name(places[i]->socket_);
        flow.in_socket = i < flows_.size() ? bytes_held(places[i]->socket_) : 0;
        account.in_sockets += flow.in_socket;
    }
    auto const others = account.flows.begin() + static_cast<std::ptrdiff_t>(flows_.size());
    account.flows.erase(
        std::remove_if(others, account.flows.end(),
                       [](flow_pages const& flow) { return flow.on_loan + flow.parked + flow.in_reads == 0; }),
        account.flows.end());
}

void session_state::count_in_kernel(pool_stats& account, pool_sample const& sample) const noexcept
{
    if (rings_.frames > 0)
        account.ring_demand = rings_.bytes() / account.page_size;
    account.allocation_failures = sample.allocation_failures;
    account.overruns = sample.overruns;
    account.drops = sample.drops;
    if (watchdog_ && sample.allocation_failures)
        account.dry_time = dry_time_.load(std::memory_order_relaxed);
}

std::optional<pool_stats> session_state::pool() const
{
    if (!born_.is_here())
        return std::nullopt;
    pool_stats account;
    std::uint64_t in_flight = 0;
    if (nic_ != nullptr) {
        auto const sample = nic_->sample();
        if (!sample)
            return std::nullopt;
        account.pages = page_count();
        account.page_size = nic_->page_size();
        in_flight = sample->in_flight;
        count_in_kernel(account, *sample);
    } else {
        account.pages = pages_->page_count();
        account.page_size = pages_->page_size();
        in_flight = account.pages - pages_->free_count();
    }
    count_held(account);
    divide(account, in_flight);
    note_in_flight(account.pages - account.free);
    account.high_water = in_flight_high_water_.load(std::memory_order_relaxed);
    return account;
}

void session_state::tell(std::string_view sentence) const
{
    if (options_.notice)
        options_.notice(sentence);
}

}  // namespace gpurx::detail
