// SPDX-License-Identifier: Apache-2.0
//
// TensorFile: an open safetensors file. Tensors and parts of them are fetched in sequence.
#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <gpurx/gather.hpp>
#include <gpurx/ingest/safetensors.hpp>
#include <new>
#include <utility>

#include "conversions.hpp"
#include "module.hpp"
#include "operation.hpp"
#include "session.hpp"
#include "slice_reads.hpp"
#include "source.hpp"
#include "tensor.hpp"

namespace gpurx::python {

namespace {

// On the host a tensor of at least this size has memory of its own, which is freed alone.
constexpr std::uint64_t large = 4 << 20;

// Bytes of a tensor, and its shape.
struct part {
    std::size_t index = 0;
    std::vector<extent> extents;
    std::vector<std::int64_t> shape;
};

class tensor_file final : public connection_keeper, public std::enable_shared_from_this<tensor_file> {
  public:
    tensor_file(std::shared_ptr<source> from, int gpu, std::shared_ptr<cuda_stream const> stream,
                std::shared_ptr<flow_budget> budget)
        : source_{std::move(from)}, gpu_{gpu}, stream_{std::move(stream)}, budget_{std::move(budget)}
    {}

    [[nodiscard]] asio::awaitable<void> async_open() { return source_->async_header(); }
    // Fetches the tensors with these numbers. It waits for `mine`, which lasts as long as the operation. `together`:
    // into one block of memory, whatever their size.
    [[nodiscard]] asio::awaitable<std::vector<tensor>> async_fetch(std::vector<std::size_t> indices, bool together,
                                                                   std::shared_ptr<turn> mine);
    // Fetches the tensors to these places in memory of the host.
    [[nodiscard]] asio::awaitable<bool> async_fetch_into(std::vector<ingest::placement> places,
                                                         std::shared_ptr<turn> mine);
    [[nodiscard]] asio::awaitable<tensor> async_fetch_part(part what, std::shared_ptr<turn> mine);

    // Makes the operation's share of connections, for this number of bytes.
    [[nodiscard]] std::shared_ptr<turn> turn_for(std::uint64_t bytes, bool can_wait)
    {
        return budget_->wait(engine(), this, source_->flows_for(bytes), can_wait,
                             source_->keeps_connections() ? weak_from_this() : std::weak_ptr<tensor_file>{});
    }
    void disconnect() noexcept override { source_->disconnect(); }

    [[nodiscard]] ingest::safetensors_header const& header() const noexcept { return source_->header(); }
    [[nodiscard]] ingest::safetensor const& at(std::size_t index) const
    {
        if (index >= header().tensors.size())
            throw nb::index_error("the index is beyond the last tensor of the file");
        return header().tensors[index];
    }
    [[nodiscard]] source& from() const noexcept { return *source_; }

  private:
    [[nodiscard]] std::shared_ptr<storage> allocate(std::uint64_t bytes, memory_span& where) const;
    [[nodiscard]] asio::awaitable<void> fetch_reads(std::span<slice_read const> reads, memory_span to);

    std::shared_ptr<source> source_;
    int gpu_;
    std::shared_ptr<cuda_stream const> stream_;  // on a GPU
    std::shared_ptr<flow_budget> budget_;
};

std::vector<std::int64_t> shape_of(ingest::safetensor const& one)
{
    return {one.shape.begin(), one.shape.end()};
}

std::shared_ptr<storage> tensor_file::allocate(std::uint64_t bytes, memory_span& where) const
try {
    auto block = gpu_ == host ? ingest::buffer::on_host(bytes) : ingest::buffer::on_gpu(gpu_, bytes);
    where = block.span();
    return std::make_shared<storage>(std::move(block), gpu_, stream_, false);
} catch (std::bad_alloc const&) {
    throw system_error{
        make_error_code(boost::system::errc::not_enough_memory),
        {.operation = "fetch",
         .object = source_->name(),
         .kernel_message = {},
         .advice = fmt::format("the request has {} bytes; iterate over the file, or fetch slices", bytes)}};
}

asio::awaitable<std::vector<tensor>> tensor_file::async_fetch(std::vector<std::size_t> indices, bool together,
                                                              std::shared_ptr<turn> mine)
{
    co_await mine->async_come();
    std::vector<ingest::safetensor> small;
    std::vector<ingest::placement> placements;
    std::vector<tensor> result;
    for (auto const index : indices) {
        auto const& one = header().tensors[index];
        tensor made{nullptr, {}, one.type, shape_of(one), false};
        if (!together && gpu_ == host && one.size >= large) {
            made.memory = allocate(one.size, made.bytes);
            placements.push_back({one.offset, made.bytes});
        } else {
            small.push_back(one);
        }
        result.push_back(std::move(made));
    }
    auto const layout = ingest::lay_out(small);
    memory_span block;
    auto const memory = allocate(layout.size, block);
    auto const shared = ingest::placements_of(small, layout, block);
    placements.insert(placements.end(), shared.begin(), shared.end());
    std::size_t next = 0;
    for (auto& each : result) {
        if (each.memory != nullptr)
            continue;
        if (small[next].size != 0)
            each.bytes = block.subspan(layout.offsets[next], small[next].size);
        each.memory = memory;
        ++next;
    }
    if (!placements.empty())
        co_await source_->async_fetch(placements);
    co_return result;
}

asio::awaitable<bool> tensor_file::async_fetch_into(std::vector<ingest::placement> places, std::shared_ptr<turn> mine)
{
    co_await mine->async_come();
    if (!places.empty())
        co_await source_->async_fetch(places);
    co_return true;
}

asio::awaitable<tensor> tensor_file::async_fetch_part(part what, std::shared_ptr<turn> mine)
{
    co_await mine->async_come();
    auto const& one = header().tensors[what.index];
    box rest{one.shape, what.extents, ingest::bits_of(one.type)};
    tensor made{nullptr, {}, one.type, std::move(what.shape), false};
    made.memory = allocate(rest.bytes(), made.bytes);
    for (std::uint64_t to = 0; !rest.is_done();) {
        auto reads = next_reads(rest, to, {});
        for (auto& each : reads)
            each.file.offset += one.offset;
        co_await fetch_reads(reads, made.bytes);
    }
    co_return made;
}

// The memory of joined runs is used again when the stream has passed: it is a storage, too.
asio::awaitable<void> tensor_file::fetch_reads(std::span<slice_read const> reads, memory_span to)
{
    std::uint64_t size = 0;
    for (auto const& each : reads)
        size += each.runs.empty() ? 0 : each.file.size;
    memory_span joined;
    auto const memory = allocate(size, joined);
    std::vector<ingest::placement> placements;
    std::uint64_t at = 0;
    for (auto const& each : reads) {
        auto const alone = each.runs.empty();
        placements.push_back(
            {each.file.offset, alone ? to.subspan(each.to, each.file.size) : joined.subspan(at, each.file.size)});
        at += alone ? 0 : each.file.size;
    }
    co_await source_->async_fetch(placements);
    for (std::size_t i = 0; i < reads.size(); ++i) {
        auto const& read = reads[i];
        if (read.runs.empty())
            continue;
        std::vector<fragment> picked;
        std::uint64_t picked_size = 0;
        for (auto const& run : read.runs) {
            picked.push_back({placements[i].destination.address() + run.offset - read.runs.front().offset, run.size,
                              placements[i].destination.kind()});
            picked_size += run.size;
        }
        gather(picked, to.subspan(read.to, picked_size), stream_ ? cuda_stream_ref{*stream_} : cuda_stream_ref{});
    }
}

// ---- for Python ----

using opened = std::shared_ptr<tensor_file>;

asio::awaitable<opened> open_file(opened file)
{
    co_await file->async_open();
    co_return file;
}

std::shared_ptr<cuda_stream const> stream_on(int gpu)
{
    return gpu == host ? nullptr : std::make_shared<cuda_stream const>(cuda_stream::on(gpu));
}

pending start_opening(std::shared_ptr<source> from, int gpu, std::shared_ptr<cuda_stream const> stream,
                      std::shared_ptr<flow_budget> budget)
{
    auto file =
        owned_by_engine(std::make_unique<tensor_file>(std::move(from), gpu, std::move(stream), std::move(budget)));
    auto started = operation_of<opened>::start([file = std::move(file)] { return open_file(file); });
    return {std::move(started), [](opened const& made) { return nb::cast(made); }};
}

// A file without a budget gets its own.
pending open_url(session const* from, std::string url, nb::handle device, ingest::fetch_options options, bool goes_on,
                 flow_budget* shared)
{
    auto budget = shared != nullptr ? shared->shared_from_this() : std::make_shared<flow_budget>(options.flows);
    auto const gpu = parse_device(device);
    auto stream = stream_on(gpu);
    if (stream != nullptr)
        options.stream = *stream;
    auto what =
        std::make_shared<source>(session_in(from), std::move(url), std::move(options), goes_on, tls_note_of(from));
    return start_opening(std::move(what), gpu, std::move(stream), std::move(budget));
}

nb::list tensors_of(tensor_file const& self)
{
    nb::list all;
    for (auto const& one : self.header().tensors) {
        nb::list shape;
        for (auto const size : one.shape)
            shape.append(size);
        all.append(nb::make_tuple(text_of(one.name), ingest::name_of(one.type), nb::tuple(shape), one.size));
    }
    return all;
}

nb::dict metadata_of(tensor_file const& self)
{
    nb::dict all;
    for (auto const& [key, text] : self.header().metadata)
        all[text_of(key)] = text_of(text);
    return all;
}

pending start_fetching(opened const& self, std::vector<std::size_t> indices, bool together, bool can_wait)
{
    std::uint64_t bytes = 0;
    for (auto const index : indices)
        bytes += self->at(index).size;
    auto mine = self->turn_for(bytes, can_wait);
    auto hurry = hurrying(mine);
    auto started = operation_of<std::vector<tensor>>::start(
        [self, together, mine = std::move(mine), indices = std::move(indices)]() mutable {
            return self->async_fetch(std::move(indices), together, std::move(mine));
        });
    return {std::move(started), [](std::vector<tensor> made) { return nb::cast(std::move(made)); }, std::move(hurry)};
}

// `places`: numbers of tensors, and addresses on the host of as many bytes. They stay until the operation is over.
pending start_fetching_into(opened const& self, std::vector<std::pair<std::size_t, std::uintptr_t>> const& places,
                            bool can_wait)
{
    std::uint64_t bytes = 0;
    std::vector<ingest::placement> wanted;
    for (auto const& [index, address] : places) {
        auto const& one = self->at(index);
        bytes += one.size;
        if (one.size != 0)
            wanted.push_back({one.offset, {memory_kind::host, address, one.size}});
    }
    auto mine = self->turn_for(bytes, can_wait);
    auto hurry = hurrying(mine);
    auto started = operation_of<bool>::start([self, mine = std::move(mine), wanted = std::move(wanted)]() mutable {
        return self->async_fetch_into(std::move(wanted), std::move(mine));
    });
    return {std::move(started), [](bool) { return nb::none(); }, std::move(hurry)};
}

// First index, count and step of each dimension.
using triples = std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>;

// Bytes from the first to the last, in whole rows: the most that a part reads.
std::uint64_t reach_of(ingest::safetensor const& of, std::vector<extent> const& taken)
{
    if (taken.empty() || taken.front().count == 0)
        return of.size;
    auto const rows = (taken.front().count - 1) * taken.front().step + 1;
    return (of.size + of.shape.front() - 1) / of.shape.front() * rows;
}

pending start_fetching_part(opened const& self, std::size_t index, triples const& extents,
                            std::vector<std::int64_t> shape, bool can_wait)
{
    auto const& one = self->at(index);
    part what{index, {}, std::move(shape)};
    for (auto const& [begin, count, step] : extents)
        what.extents.push_back({begin, count, step});
    if (what.extents.size() != one.shape.size())
        throw nb::value_error("give one extent for each dimension");
    static_cast<void>(box{one.shape, what.extents, ingest::bits_of(one.type)});
    auto mine = self->turn_for(reach_of(one, what.extents), can_wait);
    auto hurry = hurrying(mine);
    auto started = operation_of<tensor>::start([self, mine = std::move(mine), what = std::move(what)]() mutable {
        return self->async_fetch_part(std::move(what), std::move(mine));
    });
    return {std::move(started), [](tensor made) { return nb::cast(std::move(made)); }, std::move(hurry)};
}

}  // namespace

void bind_tensor_file(nb::module_& module)
{
    nb::class_<tensor_file>(module, "TensorFile")
        .def_prop_ro("tensors", &tensors_of)
        .def_prop_ro("metadata", &metadata_of)
        .def_prop_ro("url", [](tensor_file const& self) { return self.from().url(); })
        .def_prop_ro("commit", [](tensor_file const& self) { return self.from().commit(); })
        .def_prop_ro("etag", [](tensor_file const& self) { return self.from().etag(); })
        .def_prop_ro("size", [](tensor_file const& self) { return self.from().size(); })
        .def_prop_ro("bytes_placed", [](tensor_file const& self) { return self.from().bytes_placed(); })
        .def("fetch", &start_fetching, nb::arg("indices"), nb::arg("together") = false, nb::arg("can_wait") = false)
        .def("fetch_into", &start_fetching_into, nb::arg("places"), nb::arg("can_wait") = false)
        .def("fetch_part", &start_fetching_part, nb::arg("index"), nb::arg("extents"), nb::arg("shape"),
             nb::arg("can_wait") = false);
    nb::class_<flow_budget>(module, "FlowBudget")
        .def(nb::new_([](unsigned flows) { return std::make_shared<flow_budget>(flows); }), nb::arg("flows"));
    module.def("open_url", &open_url, nb::arg("session").none(), nb::arg("url"), nb::arg("device").none(),
               nb::arg("options"), nb::arg("goes_on"), nb::arg("budget").none() = nb::none());
}

}  // namespace gpurx::python
