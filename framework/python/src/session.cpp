// SPDX-License-Identifier: Apache-2.0
#include "session.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <gpurx/local_gpu.hpp>
#include <optional>
#include <set>
#include <utility>

#include "conversions.hpp"
#include "engine.hpp"
#include "module.hpp"
#include "operation.hpp"

namespace gpurx::python {

namespace {

transport parse_transport(std::string_view name)
{
    for (auto const kind : {transport::automatic, transport::devmem, transport::zcrx, transport::copy})
        if (name == to_string(kind))
            return kind;
    throw nb::value_error("transport must be 'automatic', 'devmem', 'zcrx' or 'copy'");
}

// Precondition: Python's lock is held.
std::set<session*>& open_sessions()
{
    static auto* const all = new std::set<session*>;
    return *all;
}

device_memory allocate(int gpu, std::size_t size)
{
    return gpu == host ? device_memory::on_host(size) : device_memory::on_gpu(gpu, size);
}

nb::dict stats_of(session const& self)
{
    auto const now = self.get()->stats();
    nb::dict all;
    all["device_bytes"] = now.device_bytes;
    all["resteered_bytes"] = now.resteered_bytes;
    all["linear_bytes"] = now.linear_bytes;
    all["host_bytes"] = now.host_bytes;
    all["fragments"] = now.fragments;
    all["tokens_out"] = now.tokens_out;
    all["tokens_high_water"] = now.tokens_high_water;
    all["xarray_tokens"] = now.xarray_tokens;
    all["receive_calls"] = now.receive_calls;
    all["release_calls"] = now.release_calls;
    all["waits"] = now.waits;
    all["loan_waits"] = now.loan_waits;
    all["release_shortfalls"] = now.release_shortfalls;
    all["release_failures"] = now.release_failures;
    all["starved"] = now.starved;
    all["host_memory"] = now.host_memory;
    return all;
}

template <class Count>
nb::object or_none(std::optional<Count> const& count)
{
    return count ? nb::cast(*count) : nb::none();
}

nb::object pool_stats_of(session const& self)
{
    auto const open = session_in(&self);  // another thread may close it meanwhile
    std::optional<pool_stats> now;
    {
        without_gil const others_run;
        now = open->pool_stats();
    }
    if (!now)
        return nb::none();
    nb::dict all;
    all["pages"] = now->pages;
    all["page_size"] = now->page_size;
    all["free"] = now->free;
    all["in_ring"] = now->in_ring;
    all["in_queues"] = now->in_queues;
    all["on_loan"] = now->on_loan;
    all["parked"] = now->parked;
    all["in_reads"] = now->in_reads;
    all["ring_demand"] = or_none(now->ring_demand);
    all["in_sockets"] = now->in_sockets;
    all["high_water"] = now->high_water;
    all["dry_seconds"] = now->dry_time ? nb::cast(std::chrono::duration<double>{*now->dry_time}.count()) : nb::none();
    all["allocation_failures"] = or_none(now->allocation_failures);
    all["overruns"] = or_none(now->overruns);
    all["drops"] = or_none(now->drops);
    nb::list flows;
    for (auto const& flow : now->flows) {
        nb::dict one;
        one["connection"] = flow.connection;
        one["on_loan"] = flow.on_loan;
        one["parked"] = flow.parked;
        one["in_reads"] = flow.in_reads;
        one["in_socket"] = flow.in_socket;
        flows.append(one);
    }
    all["flows"] = flows;
    return all;
}

// NOLINTNEXTLINE(readability-function-size): the keywords that Python has
void make_session(session* self, nb::handle memory, std::size_t size, std::string interface,
                  std::string_view transport_name, bool allow_zcrx, unsigned rx_queues, unsigned max_flows,
                  std::uint32_t rx_page_size, std::string state_directory)
{
    rx_session_options options{
        .interface = std::move(interface),
        .rx_queues = rx_queues,
        .transport = parse_transport(transport_name),
        .allow_zcrx = allow_zcrx,
        .rx_page_size = rx_page_size,
        .max_flows = max_flows,
        .state_directory = std::move(state_directory),
    };
    new (self) session{parse_device(memory), size, std::move(options)};
}

}  // namespace

session::notes& session::process_notes()
{
    static auto* const all = new notes;  // never destroyed: threads may end after main
    return *all;
}

void session::note(std::string text)
{
    auto& into = process_notes();
    std::scoped_lock const lock{into.mutex};
    if (std::ranges::find(into.all, text) == into.all.end())
        into.all.push_back(std::move(text));
}

session::session(int gpu, std::size_t size, rx_session_options options)
{
    check_process();
    options.notice = [into = notes_](std::string_view text) {
        std::scoped_lock const lock{into->mutex};
        into->all.emplace_back(text);
    };
    {
        without_gil const unlocked;
        session_ = owned_by_engine(std::make_unique<rx_session>(std::move(options), allocate(gpu, size)));
    }
    open_sessions().insert(this);
}

session::~session()
{
    open_sessions().erase(this);
}

void close_sessions() noexcept
{
    for (auto* const one : open_sessions())
        one->close();
}

std::shared_ptr<rx_session> const& session::get() const
{
    check_process();
    if (closed())
        throw system_error{make_error_code(boost::system::errc::bad_file_descriptor),
                           {.operation = "use", .object = "session", .kernel_message = {}, .advice = "it is closed"}};
    return session_;
}

std::shared_ptr<rx_session> session_in(session const* one)
{
    check_process();
    return one == nullptr ? nullptr : one->get();
}

std::shared_ptr<std::atomic<bool>> tls_note_of(session const* one)
{
    return one == nullptr ? nullptr : one->met_tls();
}

std::vector<std::string> session::notices() const
{
    std::scoped_lock const lock{notes_->mutex};
    return notes_->all;
}

std::string session::explain() const
{
    auto text = get()->explain();
    if (*met_tls_)
        text += "\nhttps: the CPU decrypts the data, so neither transport devmem nor zcrx can be used";
    std::scoped_lock const lock{process_notes().mutex};
    for (auto const& each : process_notes().all)
        text += "\n" + each;
    return text;
}

namespace {

constexpr char about_explain[] = R"(Return the transport in use and the reason against a better one, a line for each.

After a load by https it adds that neither devmem nor zcrx can receive https.)";

constexpr char about_why_not_devmem[] =
    R"(Reason against devmem, as the name of a gpurx::transport_obstacle (session.hpp), such as "no_rights".

"none" if devmem is in use. explain() has the text.)";

constexpr char about_why_not_zcrx[] =
    R"(Reason against zcrx, as the name of a gpurx::transport_obstacle (session.hpp), such as "not_allowed".

"none" if zcrx is in use. explain() has the text.)";

constexpr char about_pool_stats[] =
    R"(Return the states of the memory's pages. The fields are those of gpurx::pool_stats (stats.hpp).

These exclude each other and add up to `pages`: free, in_ring (posted in the NIC's rings, by their size), in_queues
(in sockets, or kept for the next packet), on_loan, parked (waiting for GPU streams) and in_reads. A count that the
driver does not keep is None. The result is None if the kernel reports nothing. The call costs some netlink calls.)";

constexpr char about_local_gpu[] = R"(Return the number of this process' GPU, for "gpu:N" in memory= and device=.

It is LOCAL_RANK, as torchrun sets it, among the visible GPUs. It is 0 without LOCAL_RANK, or if CUDA_VISIBLE_DEVICES
names one GPU alone. Raises Error if there is no such GPU, or LOCAL_RANK is no number.)";

}  // namespace

void bind_session(nb::module_& module)
{
    module.def("note", &session::note, nb::arg("text"));
    nb::class_<session>(module, "Session", nb::is_weak_referenceable())
        .def("__init__", &make_session, nb::arg("memory").none(), nb::arg("size"), nb::arg("interface"),
             nb::arg("transport"), nb::arg("allow_zcrx"), nb::arg("rx_queues"), nb::arg("max_flows"),
             nb::arg("rx_page_size"), nb::arg("state_directory"))
        .def("explain", &session::explain, about_explain)
        .def_prop_ro(
            "transport", [](session const& self) { return to_string(self.get()->transport()); },
            R"(Transport in use: "devmem", "zcrx" or "copy".)")
        .def_prop_ro(
            "why_not_devmem", [](session const& self) { return to_string(self.get()->why_not_devmem()); },
            about_why_not_devmem)
        .def_prop_ro(
            "why_not_zcrx", [](session const& self) { return to_string(self.get()->why_not_zcrx()); },
            about_why_not_zcrx)
        .def_prop_ro(
            "memory", [](session const& self) { return self.get()->memory().explain(); },
            "Description of the memory and of its exporter.")
        .def_prop_ro(
            "queues", [](session const& self) { return self.get()->queues(); },
            "Numbers of the NIC's queues that the session uses.")
        .def_prop_ro("notices", &session::notices, "Notices of the session so far: see rx_session_options::notice.")
        .def_prop_ro("closed", &session::closed, "True after close().")
        .def("stats", &stats_of,
             "Return counters of all flows so far. The fields are those of gpurx::stats (stats.hpp).")
        .def("pool_stats", &pool_stats_of, about_pool_stats)
        .def("close", &session::close, "Restore the NIC once the last receiver has ended. Further calls do nothing.");
    module.def("parse_device", &parse_device, nb::arg("device").none());
    module.def(
        "local_gpu", [] { return gpurx::local_gpu(); }, about_local_gpu);
}

}  // namespace gpurx::python
