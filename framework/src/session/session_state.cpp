// SPDX-License-Identifier: Apache-2.0
#include "session_state.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <boost/asio/ip/v6_only.hpp>

#include <algorithm>
#include <cerrno>
#include <new>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/advice.hpp"
#include "base/byte_size.hpp"
#include "base/tcp_socket.hpp"
#include "memory/page_pool.hpp"

namespace gpurx::detail {

namespace {

budget plan_for(rx_session_options const& options, std::size_t memory, session_nic const* nic)
{
    budget_request const request{.memory = memory,
                                 .page_size = nic != nullptr ? nic->page_size() : 0,
                                 .max_flows = options.max_flows,
                                 .receive_memory = options.receive_memory,
                                 .loan_limit = options.loan_limit,
                                 .rings = nic != nullptr ? rings_of(*nic) : ring_demand{},
                                 .interface = options.interface};
    error_code code;
    diagnostics why;
    auto const plan = nic != nullptr
                          ? plan_budget(request, code, why)
                          : plan_copy_budget(request, page_pool::smallest_memory(options.max_flows), code, why);
    if (code)
        throw system_error{code, std::move(why)};
    return plan;
}

using name_of_end = int(int, sockaddr*, socklen_t*);

asio::ip::tcp::endpoint end_of(int socket, name_of_end* name, error_code& code)
{
    asio::ip::tcp::endpoint end;
    auto size = static_cast<socklen_t>(end.capacity());
    if (name(socket, end.data(), &size) == 0)
        end.resize(size);
    else
        code.assign(errno, boost::system::system_category());
    return end;
}

[[nodiscard]] bool refuses_child(birthplace const& born, error_code& code) noexcept
{
    if (born.is_here())
        code.clear();
    else
        code = make_error_code(boost::system::errc::operation_not_supported);
    return code.failed();
}

}  // namespace

// All sessions of this process, and which of them a dmabuf id belongs to: the kernel gives an id to one binding at a
// time. fork() waits for its mutex and for each session's, so that a child finds none of them held by a thread that it
// does not have.
struct session_registry {
    std::mutex mutex;
    std::vector<session_state*> all;
    std::unordered_map<std::uint32_t, std::weak_ptr<session_state>> bindings;

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

// The end of a session on a NIC. The memory goes after the binding.
struct session_state::restoration final : nic_worker::job {
    restoration(std::shared_ptr<memory_state> of, std::unique_ptr<session_nic> given)
        : memory{std::move(of)}, nic{std::move(given)}
    {}
    // Whoever holds the session last may be a thread that receives, or the one that sees streams pass. Its watchdog has
    // to be waited for, which may just be asking the NIC or telling the program something: the session's thread does.
    static void end(session_state* session) noexcept
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
    void run() noexcept override
    {
        delete ending;
        listeners.clear();
        nic.reset();
    }

    session_state* ending = nullptr;
    std::shared_ptr<memory_state> memory;
    std::unique_ptr<session_nic> nic;
    std::vector<std::unique_ptr<steering_rule>> listeners;  // added by the session's thread
};

// Makes a rule, unless nobody wants it any more.
class session_state::steering_job final : public nic_worker::job {
  public:
    explicit steering_job(std::shared_ptr<steering> what) noexcept : what_{std::move(what)} {}

    void run() noexcept override
    {
        if (what_.use_count() == 1)
            return;
        auto const moves = !what_->event;
        try {
            auto& nic = *what_->session->nic_;
            auto rule = moves
                            ? nic.move_flow(what_->socket.get(), what_->local, what_->remote, what_->code, what_->why)
                            : nic.steer_flow(what_->socket.get(), what_->local, what_->remote, what_->code, what_->why);
            if (rule)
                what_->rule.reset(new kept_rule{std::move(rule)});
        } catch (std::bad_alloc const&) {
            what_->code = make_error_code(boost::system::errc::not_enough_memory);
        }
        what_->socket.reset();
        if (moves) {
            if (what_->code)
                what_->session->tell_not_moved(what_->code, what_->why);
            return;
        }
        what_->done.store(true, std::memory_order_release);
        std::uint64_t const one = 1;
        [[maybe_unused]] auto const written = ::write(what_->event.get(), &one, sizeof one);
    }

  private:
    std::shared_ptr<steering> what_;
};

std::shared_ptr<session_state> session_state::create(rx_session_options options, std::shared_ptr<memory_state> memory,
                                                     std::unique_ptr<session_nic> nic, std::string explanation)
{
    auto const plan = plan_for(options, memory->span().size(), nic.get());
    std::shared_ptr<session_state> made{
        new session_state{std::move(options), std::move(memory), std::move(nic), std::move(explanation), plan},
        restoration::end};
    if (made->nic_ != nullptr) {
        made->worker_ = nic_worker::start();
        made->workers_ = std::make_shared<worker_list const>(1, made->worker_);
        auto& registry = session_registry::instance();
        std::scoped_lock const lock{registry.mutex};
        registry.bindings[made->dmabuf_id()] = made;
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
                             std::unique_ptr<session_nic> nic, std::string explanation, budget const& plan)
    : options_{std::move(options)},
      memory_{std::move(memory)},
      handle_{session_access::handle(memory_)},
      receive_buffer_size_{plan.receive_buffer_size},
      loan_limit_{plan.loan_limit},
      read_share_{plan.read_share},
      explanation_{std::move(explanation)},
      nic_{nic.get()},
      restoration_{nic ? new restoration{memory_, std::move(nic)} : nullptr},
      rings_{nic_ != nullptr ? rings_of(*nic_) : ring_demand{}}
{
    if (nic_ == nullptr) {
        pages_ = std::make_unique<page_pool>(memory_->span().size(), options_.max_flows);
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

stats session_state::total() const
{
    stats sum;
    {
        std::scoped_lock const lock{mutex_};
        sum = ended_;
        for (auto const* flow : flows_)
            sum = sum + flow->counters.snapshot();
    }
    if (nic_) {
        sum.tokens_out = tokens_out_.load(std::memory_order_relaxed);
        sum.tokens_high_water = tokens_high_water_.load(std::memory_order_relaxed);
    }
    return sum;
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

void session_state::note_in_flight(std::uint64_t pages) const noexcept
{
    auto most = in_flight_high_water_.load(std::memory_order_relaxed);
    while (most < pages && !in_flight_high_water_.compare_exchange_weak(most, pages, std::memory_order_relaxed)) {
    }
}

void session_state::note_dryness(lock_up_sample const& sample) noexcept
{
    if (sample.pool && sample.pool->allocation_failures)
        dry_.look(sample.at, is_dry(*sample.pool, page_count(), nic_->page_size()), *sample.pool->allocation_failures);
    else
        dry_.pause();
    dry_time_.store(dry_.total(), std::memory_order_relaxed);
}

void session_state::steer(asio::ip::tcp::acceptor& acceptor, error_code& code, diagnostics& why)
{
    if (refuses_child(born_, code)) {
        why = {.operation = "steer", .object = "acceptor", .kernel_message = {}, .advice = advice_on(code)};
        return;
    }
    auto const local = acceptor.local_endpoint(code);
    if (!code && local.port() == 0)
        code = make_error_code(boost::system::errc::invalid_argument);
    if (code) {
        why = {.operation = "steer", .object = "acceptor", .kernel_message = {}, .advice = "bind it to a port first"};
        return;
    }
    size_receive_buffer(acceptor.native_handle(), code);
    if (code) {
        why = {.operation = "set SO_RCVBUF of", .object = "acceptor", .kernel_message = {}, .advice = {}};
        return;
    }
    if (!nic_)
        return;
    bool also_v4 = false;
    if (local.address().is_v6() && local.address().is_unspecified()) {
        asio::ip::v6_only only_v6;
        acceptor.get_option(only_v6, code);
        also_v4 = !code && !only_v6.value();
    }
    code.clear();
    worker_->run([&] {
        if (auto rule = nic_->steer_port(acceptor.native_handle(), local, also_v4, code, why))
            restoration_->listeners.push_back(std::move(rule));
    });
}

std::shared_ptr<steering> session_state::steer_flow(int socket, asio::ip::tcp::endpoint const& local,
                                                    asio::ip::tcp::endpoint const& remote, error_code& code)
{
    code.clear();
    unique_fd event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!event) {
        code.assign(errno, boost::system::system_category());
        return nullptr;
    }
    return ask_for_rule(socket, local, remote, std::move(event), code);
}

void session_state::move_here(flow_place& flow, int socket, std::shared_ptr<session_state> const& from) noexcept
{
    if (!nic_)
        return;
    error_code code;
    std::shared_ptr<steering> mover;
    try {
        auto const local = end_of(socket, ::getsockname, code);
        auto const remote = end_of(socket, ::getpeername, code);
        if (!code)
            mover = ask_for_rule(socket, local, remote, {}, code);
    } catch (std::bad_alloc const&) {
        code = make_error_code(boost::system::errc::not_enough_memory);
    }
    flow.keep(from, std::move(mover));
    if (code)
        tell_not_moved(code, {.operation = "move", .object = "flow", .kernel_message = {}, .advice = {}});
}

std::shared_ptr<steering> session_state::ask_for_rule(int socket, asio::ip::tcp::endpoint const& local,
                                                      asio::ip::tcp::endpoint const& remote, unique_fd event,
                                                      error_code& code)
{
    // One of the job's own: the receiver may close its socket meanwhile, and the number mean another.
    auto second = duplicate(socket, code);
    if (code)
        return nullptr;
    auto asked = std::make_shared<steering>(shared_from_this(), std::move(second), local, remote, std::move(event));
    worker_->post(std::make_unique<steering_job>(asked));
    return asked;
}

void session_state::unsteer(process_ptr<kept_rule> rule) noexcept
{
    if (rule && born_.is_here())
        worker_->post(std::unique_ptr<nic_worker::job>{rule.release()});
}

steering::~steering()
{
    session->unsteer(std::move(rule));
}

void session_state::size_receive_buffer(int socket, error_code& code)
{
    code.clear();
    if (receive_buffer_size_ == 0)
        return;
    auto const set = [&](int option) {
        return ::setsockopt(socket, SOL_SOCKET, option, &receive_buffer_size_, sizeof receive_buffer_size_) == 0;
    };
    if (set(SO_RCVBUFFORCE))
        return;
    int doubled = 0;
    socklen_t size = sizeof doubled;
    if (!set(SO_RCVBUF) || ::getsockopt(socket, SOL_SOCKET, SO_RCVBUF, &doubled, &size) != 0) {
        code.assign(errno, boost::system::system_category());
        return;
    }
    if (doubled / 2 < receive_buffer_size_ && !told_of_buffer_limit_.exchange(true))
        tell(fmt::format("receive buffers are {} instead of {}: raise the sysctl net.core.rmem_max to {}",
                         size_text(static_cast<std::uint64_t>(doubled / 2)),
                         size_text(static_cast<std::uint64_t>(receive_buffer_size_)), receive_buffer_size_));
}

void session_state::tell(std::string_view sentence) const
{
    if (options_.notice)
        options_.notice(sentence);
}

void session_state::tell_not_moved(error_code code, diagnostics const& why) noexcept
{
    if (told_of_unmoved_.exchange(true))
        return;
    try {
        tell(fmt::format(
            "{}: a flow goes on in the memory that it arrived in, as may others, and its bytes are counted as "
            "resteered: {}",
            options_.interface, describe(code, why)));
    } catch (std::bad_alloc const&) {
        told_of_unmoved_ = false;
    }
}

void session_state::tokens_taken(std::uint64_t count) noexcept
{
    auto const now = tokens_out_.fetch_add(count, std::memory_order_relaxed) + count;
    auto most = tokens_high_water_.load(std::memory_order_relaxed);
    while (most < now && !tokens_high_water_.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
    }
}

void session_state::tokens_returned(std::uint64_t count) noexcept
{
    tokens_out_.fetch_sub(count, std::memory_order_relaxed);
}

std::unique_ptr<flow_place> session_state::admit(error_code& code)
{
    if (refuses_child(born_, code))
        return nullptr;
    code = memory_->failure(true);
    if (code)
        return nullptr;
    auto flow = std::make_unique<flow_place>(shared_from_this());
    std::scoped_lock const lock{mutex_};
    if (flows_.size() >= options_.max_flows) {
        code = errc::too_many_flows;
        return nullptr;
    }
    flows_.push_back(flow.get());
    return flow;
}

unsigned session_state::free_places() const
{
    std::scoped_lock const lock{mutex_};
    return options_.max_flows - static_cast<unsigned>(std::min<std::size_t>(flows_.size(), options_.max_flows));
}

void session_state::leave(flow_place& flow) noexcept
{
    std::scoped_lock const lock{mutex_};
    if (std::erase(flows_, &flow) > 0)
        ended_ = ended_ + flow.counters.snapshot();
}

void session_state::flow_waits() noexcept
{
    if (watchdog_)
        watchdog_->flow_waits();
}

std::optional<lock_up_sample> session_state::look() noexcept
{
    lock_up_sample sample;
    sample.at = std::chrono::steady_clock::now();
    sample.pages_on_loan = tokens_out_.load(std::memory_order_relaxed);
    bool any_waits = false;
    {
        std::scoped_lock const lock{mutex_};
        sample.bytes_delivered = ended_.bytes();
        for (auto const* flow : flows_) {
            sample.bytes_delivered += flow->counters.snapshot().bytes();
            if (flow->waiting_.load() != flow_wait::data)
                continue;
            any_waits = true;
            sample.bytes_held += bytes_held(flow->socket_);
        }
    }
    if (!any_waits) {
        dry_.pause();
        return std::nullopt;
    }
    if (sample.needs_pool())
        sample.pool = nic_->sample();
    if (sample.pool)
        note_in_flight(std::min(sample.pool->in_flight, page_count()));
    note_dryness(sample);
    return sample;
}

void session_state::end_a_flow() noexcept
{
    std::scoped_lock const lock{mutex_};
    flow_place* victim = nullptr;
    std::uint64_t most = 0;
    for (auto* flow : flows_) {
        if (flow->waiting_.load() != flow_wait::data)
            continue;
        if (auto const held = bytes_held(flow->socket_); held > most) {
            most = held;
            victim = flow;
        }
    }
    if (victim == nullptr)
        return;
    victim->mark_locked_up();
    abort_connection(victim->socket_);
}

std::string session_state::holders() const
{
    auto const page = nic_->page_size();
    std::vector<std::string> words;
    std::size_t all = 0;
    for (auto const* flow : flows_) {
        auto const loans = flow->on_loan.load() / page;
        auto const reads = flow->in_reads.load() / page;
        all += loans + reads;
        if (loans > 0)
            words.push_back(fmt::format("{} on loan from {}", loans, connection_name(flow->socket_)));
        if (reads > 0)
            words.push_back(
                fmt::format("{} read from {} and waiting for GPU streams", reads, connection_name(flow->socket_)));
    }
    return fmt::format("the program holds {} of {} pages ({})", all, memory_->span().size() / page,
                       fmt::join(words, ", "));
}

void session_state::tell_starved() noexcept
{
    try {
        std::string text;
        {
            std::scoped_lock const lock{mutex_};
            for (auto* flow : flows_) {
                if (flow->waiting_.load() != flow_wait::data)
                    continue;
                flow->counters.starved.add(1);
                text += fmt::format("{}{}", text.empty() ? "" : ", ", connection_name(flow->socket_));
            }
            text = fmt::format(
                "{}: no page is free for what arrives; waiting: {}; {}: release loans sooner, lower "
                "loan_limit, or give more memory",
                options_.interface, text, holders());
        }
        tell(text);
    } catch (std::bad_alloc const&) {
        // Said when there is memory to say it, at the next time.
    }
}

std::string session_state::explain() const
{
    auto text = explanation_;
    if (!nic_)
        return text;
    auto const account = pool();
    if (account)
        text.append(1, '\n').append(describe(*account));
    std::scoped_lock const lock{mutex_};
    auto const dry = account && is_dry({.in_flight = account->pages - account->free, .allocation_failures = {}},
                                       account->pages, account->page_size);
    bool any_starves = false;
    for (auto const* flow : flows_) {
        auto const waits = flow->waiting_.load();
        if (waits == flow_wait::data)
            any_starves = any_starves || dry;
        else if (waits == flow_wait::loans)
            text += fmt::format("\nwaits for its loans: {}: {} of {} on loan", connection_name(flow->socket_),
                                size_text(flow->on_loan.load()), size_text(loan_limit_));
        else if (waits == flow_wait::streams)
            text +=
                fmt::format("\nwaits for GPU streams: {}: they hold {} of {} that reads may take",
                            connection_name(flow->socket_), size_text(flow->in_reads.load()), size_text(read_share_));
    }
    if (any_starves)
        text += fmt::format("\nstarved: no page is free for what arrives; {}", holders());
    return text;
}

flow_place::flow_place(std::shared_ptr<session_state> owner) noexcept : session_{std::move(owner)} {}

flow_place::~flow_place()
{
    session_->leave(*this);
    session_->unsteer(std::move(rule_));
}

void flow_place::set_waiting(flow_wait what) noexcept
{
    waiting_.store(what);
    if (what == flow_wait::data)
        session_->flow_waits();
}

void flow_place::set_holder(page_holder const* holder) noexcept
{
    std::scoped_lock const lock{session_->mutex_};
    holder_ = holder;
}

void flow_place::set_socket(int fd) noexcept
{
    std::scoped_lock const lock{session_->mutex_};
    socket_ = fd;
}

}  // namespace gpurx::detail
