// SPDX-License-Identifier: Apache-2.0
#include "zcrx_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>
#include <utility>

#include "failure.hpp"
#include "syscalls.hpp"

namespace gpurx::detail {

namespace {

using namespace uapi::zcrx;

constexpr unsigned submissions = 4;          // two a receive: it, and what ends it
constexpr std::size_t region_header = 4096;  // at least; offsets come from the kernel

ifq_reg import_of(int exported) noexcept
{
    ifq_reg request{};
    request.if_idx = static_cast<std::uint32_t>(exported);
    request.flags = import;
    return request;
}

}  // namespace

zcrx_queue::thread_ring::thread_ring(zcrx_queue& queue, bool disabled)
    : ring{submissions, completions, disabled}, queue_id{queue.import_into(ring)}
{}

std::uint32_t zcrx_queue::import_into(io_ring& ring) const
{
    // As the kernel says it to a process without the right, which alone adopts a queue.
    if (!exported_)
        fail(EPERM, "import with io_uring", "queue", "have a ring handed on for each thread (gpurx-run --threads)");
    auto request = import_of(exported_.get());
    if (auto const error = ring.register_with(register_ifq, &request, 1); error != 0)
        fail(error, "import with io_uring", "queue", advice_on("import with io_uring", error));
    return request.zcrx_id;
}

// The rings of one thread: those of queues that are alive go with the thread.
class zcrx_queue::own_rings {
  public:
    own_rings() = default;
    own_rings(own_rings const&) = delete;
    own_rings& operator=(own_rings const&) = delete;
    ~own_rings()
    {
        for (auto const& one : all_)
            if (auto const queue = one.queue.lock())
                queue->close_ring(one.ring);
    }

    [[nodiscard]] thread_ring* find(zcrx_queue const* queue) const noexcept
    {
        for (auto const& one : all_)
            if (one.address == queue && !one.queue.expired())
                return one.ring;
        return nullptr;
    }
    void add(std::shared_ptr<zcrx_queue> const& queue, thread_ring* ring)
    {
        std::erase_if(all_, [](auto const& one) { return one.queue.expired(); });
        all_.push_back({queue.get(), queue, ring});
    }

    // Returns the ring that is no longer listed; null: there is none.
    thread_ring* remove(zcrx_queue const* queue) noexcept
    {
        auto* const ring = find(queue);
        std::erase_if(all_, [ring](auto const& one) { return one.ring == ring; });
        return ring;
    }

  private:
    struct entry {
        zcrx_queue const* address;
        std::weak_ptr<zcrx_queue> queue;
        thread_ring* ring;
    };
    std::vector<entry> all_;
};

std::shared_ptr<zcrx_queue> zcrx_queue::open(config const& options)
{
    return std::shared_ptr<zcrx_queue>{new zcrx_queue{options}};
}

zcrx_queue::zcrx_queue(config const& options)
    : holder_{1, 2, true}, offset_{options.memory.offset}, size_{options.memory.size}
{
    register_queue(options);
    export_queue(options.interface);
}

void zcrx_queue::register_queue(config const& options)
{
    auto const page_size = options.page_size != 0 ? options.page_size : sys::page_size();
    page_shift_ = std::countr_zero(page_size);
    entries_ = static_cast<std::uint32_t>(std::min<std::size_t>(std::bit_ceil(size_ / page_size), most_refill_entries));
    auto const host_page = sys::page_size();
    auto const size = (region_header + entries_ * sizeof(rqe) + host_page - 1) / host_page * host_page;

    region_desc region{};
    region.size = size;
    area_reg area{};
    area.len = size_;
    area.flags = area_dmabuf;
    area.dmabuf_fd = static_cast<std::uint32_t>(options.memory.dmabuf_fd);
    ifq_reg request{};
    request.if_idx = options.ifindex;
    request.if_rxq = options.queue;
    request.rq_entries = entries_;
    request.rx_buf_len = options.page_size;
    request.area_ptr = reinterpret_cast<std::uintptr_t>(&area);
    request.region_ptr = reinterpret_cast<std::uintptr_t>(&region);
    auto const object = fmt::format("{} queue {}", options.interface, options.queue);
    if (auto const error = holder_.register_with(register_ifq, &request, 1); error != 0)
        fail(error, "register with io_uring", object, advice_on("register with io_uring", error));
    id_ = request.zcrx_id;
    entries_ = request.rq_entries;
    area_token_ = area.rq_area_token;
    map_refill_ring({.size = sizeof(handover),
                     .queue_id = id_,
                     .area_token = area_token_,
                     .page_shift = static_cast<std::uint32_t>(page_shift_),
                     .entries = entries_,
                     .region_offset = region.mmap_offset,
                     .region_size = size,
                     .head = request.head,
                     .tail = request.tail,
                     .rqes = request.rqes,
                     .memory = size_});
}

void zcrx_queue::map_refill_ring(handover const& layout)
{
    layout_ = layout;
    region_ = unshared_mapping{holder_.fd(), layout.region_offset, layout.region_size, "io_uring refill ring"};
    shared_head_ = region_.as<std::uint32_t>(layout.head);
    shared_tail_ = region_.as<std::uint32_t>(layout.tail);
    refill_ = region_.as<rqe>(layout.rqes);
}

void zcrx_queue::export_queue(std::string const& object)
{
    exported_ = unshared_fd{[&] {
        ctrl request{};
        request.zcrx_id = id_;
        request.op = ctrl_export;
        if (auto const error = holder_.register_with(register_ctrl, &request, 0); error != 0)
            fail(error, "export io_uring queue", object);
        return static_cast<int>(request.zcrx_fd);
    }};
}

io_ring zcrx_queue::make_ring()
{
    return {submissions, completions, true};
}

zcrx_queue::handover zcrx_queue::hand_on(std::span<io_ring> rings)
{
    auto result = layout_;
    for (auto& ring : rings) {
        // The place of the refill ring in a ring's file depends on the number of the queue there.
        if (import_into(ring) != id_)
            fail(EPROTO, "import with io_uring", "queue");
        result.ring = ring.params();
    }
    return result;
}

std::shared_ptr<zcrx_queue> zcrx_queue::adopt(handover const& of, std::vector<unshared_fd> rings)
{
    return std::shared_ptr<zcrx_queue>{new zcrx_queue{of, std::move(rings)}};
}

zcrx_queue::zcrx_queue(handover const& of, std::vector<unshared_fd> rings)
    : holder_{std::move(rings.at(0)), of.ring},
      id_{of.queue_id},
      area_token_{of.area_token},
      page_shift_{static_cast<int>(of.page_shift)},
      offset_{0},
      size_{of.memory},
      entries_{of.entries}
{
    map_refill_ring(of);
    for (auto& each : std::span{rings}.subspan(1))
        spare_.push_back(std::make_unique<thread_ring>(io_ring{std::move(each), of.ring}, of.queue_id));
}

zcrx_queue::~zcrx_queue() = default;

zcrx_queue::own_rings& zcrx_queue::rings_of_this_thread() noexcept
{
    thread_local own_rings mine;
    return mine;
}

zcrx_queue::thread_ring& zcrx_queue::ring_of_this_thread()
{
    auto& mine = rings_of_this_thread();
    if (auto* const known = mine.find(this))
        return *known;
    auto made = new_ring();
    auto* const ring = made.get();
    {
        std::lock_guard const lock{rings_mutex_};
        rings_.push_back(std::move(made));
    }
    mine.add(shared_from_this(), ring);
    return *ring;
}

std::unique_ptr<zcrx_queue::thread_ring> zcrx_queue::new_ring()
{
    std::unique_ptr<thread_ring> spare;
    if (std::lock_guard const lock{rings_mutex_}; !spare_.empty()) {
        spare = std::move(spare_.back());
        spare_.pop_back();
    }
    if (spare == nullptr)
        return std::make_unique<thread_ring>(*this, false);
    if (auto const error = spare->ring.enable(); error != 0)
        fail(error, "enable ring", "io_uring");
    return spare;
}

void zcrx_queue::add_spare_rings(unsigned count)
{
    for (unsigned i = 0; i < count; ++i) {
        auto made = std::make_unique<thread_ring>(*this, true);
        std::lock_guard const lock{rings_mutex_};
        spare_.push_back(std::move(made));
    }
}

void zcrx_queue::close_ring_of_this_thread() noexcept
{
    if (auto* const ring = rings_of_this_thread().remove(this))
        close_ring(ring);
}

void zcrx_queue::close_ring(thread_ring* ring) noexcept
{
    // In a child another thread may have held the mutex for ever.
    if (!born_.is_here())
        return;
    std::lock_guard const lock{rings_mutex_};
    std::erase_if(rings_, [ring](auto const& one) { return one.get() == ring; });
}

zcrx_queue::given zcrx_queue::give_back(std::span<std::uint32_t const> pages) noexcept
{
    std::lock_guard const lock{refill_lock_};
    auto const before = flushes_;
    if (!left_over_.empty()) [[unlikely]] {
        auto const placed = left_over_.size() - place(left_over_).size();
        left_over_.erase(left_over_.begin(), left_over_.begin() + static_cast<std::ptrdiff_t>(placed));
    }
    auto const rest = place(pages);
    if (!rest.empty()) [[unlikely]]
        leave_over(rest);
    return {.calls = flushes_ - before, .failed = !rest.empty()};
}

std::span<std::uint32_t const> zcrx_queue::place(std::span<std::uint32_t const> pages) noexcept
{
    // The stores into the ring may alias members, which would be read again for each page.
    auto tail = tail_;
    auto full = full_;
    auto* const refill = refill_;
    auto const mask = entries_ - 1;
    auto const area = area_token_;
    auto const shift = page_shift_;
    while (!pages.empty()) {
        if (tail == full)
            full = make_room(tail);
        if (tail == full)
            break;
        auto const now = pages.first(std::min<std::size_t>(pages.size(), full - tail));
        for (auto const page : now)
            refill[tail++ & mask] = {.off = std::uint64_t{page} << shift | area, .len = 1, .pad = 0};
        pages = pages.subspan(now.size());
    }
    tail_ = tail;
    std::atomic_ref{*shared_tail_}.store(tail, std::memory_order_release);
    return pages;
}

void zcrx_queue::leave_over(std::span<std::uint32_t const> pages) noexcept
try {
    left_over_.insert(left_over_.end(), pages.begin(), pages.end());
} catch (std::bad_alloc const&) {
    // They stay out until the queue ends.
}

std::uint32_t zcrx_queue::make_room(std::uint32_t tail) noexcept
{
    full_ = std::atomic_ref{*shared_head_}.load(std::memory_order_acquire) + entries_;
    if (tail == full_)
        flush_up_to(tail);
    return full_;
}

void zcrx_queue::flush() noexcept
{
    std::lock_guard const lock{refill_lock_};
    flush_up_to(tail_);
}

void zcrx_queue::flush_up_to(std::uint32_t tail) noexcept
{
    std::atomic_ref{*shared_tail_}.store(tail, std::memory_order_release);
    ctrl request{};
    request.zcrx_id = id_;
    request.op = ctrl_flush_rq;
    // It takes all of them. It cannot fail on a queue that is registered, unless a filter of system calls came later.
    (void)holder_.register_with(register_ctrl, &request, 0);
    ++flushes_;
    full_ = std::atomic_ref{*shared_head_}.load(std::memory_order_acquire) + entries_;
}

std::uint32_t zcrx_queue::waiting() const noexcept
{
    return std::atomic_ref{*shared_tail_}.load(std::memory_order_acquire) -
           std::atomic_ref{*shared_head_}.load(std::memory_order_acquire);
}

}  // namespace gpurx::detail
