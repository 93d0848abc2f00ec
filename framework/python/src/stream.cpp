// SPDX-License-Identifier: Apache-2.0
//
// Streams of tensors: batches for Python.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/address.hpp>
#include <gpurx/ingest/tensor_stream.hpp>
#include <optional>
#include <utility>

#include "conversions.hpp"
#include "module.hpp"
#include "operation.hpp"
#include "session.hpp"
#include "tensor.hpp"

namespace gpurx::python {

namespace {

using asio::ip::tcp;
using address = std::pair<std::string, std::uint16_t>;

// A tensor_stream and its resources, which must outlive it.
struct stream_parts {
    std::shared_ptr<rx_session> session;
    std::shared_ptr<cuda_stream const> stream;  // for batches on a GPU
    int gpu;
    ingest::tensor_stream receives;

    stream_parts(std::shared_ptr<rx_session> from, std::shared_ptr<cuda_stream const> on, int where,
                 ingest::tensor_stream_options options)
        : session{std::move(from)}, stream{std::move(on)}, gpu{where}, receives{engine(), *session, std::move(options)}
    {}
};

// Result of async_next(), except failures.
struct next_of {
    ingest::batch got;  // empty: the end of the epoch or of the stream
    bool is_end = false;
};

std::vector<std::pair<std::string, tensor>> batch_tensors(ingest::batch from, stream_parts const& of)
{
    std::vector<std::pair<std::string, tensor>> all;
    for (auto const& one : from.tensors())
        all.emplace_back(one.name, tensor{nullptr, one.bytes, one.type, {one.shape.begin(), one.shape.end()}, false});
    auto const memory = std::make_shared<storage>(std::move(from), of.gpu, of.stream, false);
    for (auto& [name, made] : all)
        made.memory = memory;
    return all;
}

// For Python: a list of names and tensors, or None; the position behind it; true at the end of the stream.
nb::object next_object(next_of from, stream_parts const& of)
{
    auto const position = nb::cast(from.got.position());
    if (from.got.empty())
        return nb::make_tuple(nb::none(), position, from.is_end);
    nb::list all;
    for (auto& [name, made] : batch_tensors(std::move(from.got), of))
        all.append(nb::make_tuple(name, std::move(made)));
    return nb::make_tuple(all, position, false);
}

asio::awaitable<next_of> next_batch(std::shared_ptr<stream_parts> from)
{
    auto [code, next] = co_await from->receives.async_next(asio::as_tuple(asio::use_awaitable));
    auto const is_end = code == asio::error::eof;
    if (code && !is_end && code != ingest::errc::epoch_ended)
        throw system_error{
            code, {.operation = "receive", .object = "a batch of tensors", .kernel_message = {}, .advice = {}}};
    next_of result{std::move(next), is_end};
    co_return result;
}

nb::dict state_of(ingest::stream_position const& position)
{
    nb::list sources;
    for (auto const& each : position.sources) {
        nb::dict one;
        one["source"] = each.source;
        one["sender"] = each.sender;
        one["frame"] = each.frame;
        one["row"] = each.row;
        one["epoch_frame"] = each.epoch_frame;
        one["epoch_ended"] = each.epoch_ended;
        one["ended"] = each.ended;
        sources.append(one);
    }
    nb::dict all;
    all["epoch"] = position.epoch;
    all["window"] = position.window;
    all["batches"] = position.batches;
    all["sources"] = sources;
    return all;
}

template <class T>
T value_in(nb::dict const& state, char const* name)
{
    T value{};
    if (!state.contains(name) || !nb::try_cast<T>(state[name], value))
        throw nb::value_error(
            fmt::format("the value is not a state of a TensorStream: {} is missing or has the wrong type", name)
                .c_str());
    return value;
}

ingest::stream_position position_of(nb::dict const& state)
{
    ingest::stream_position position{.epoch = value_in<std::uint64_t>(state, "epoch"),
                                     .window = value_in<std::uint64_t>(state, "window"),
                                     .batches = value_in<std::uint64_t>(state, "batches")};
    for (nb::handle const each : value_in<nb::list>(state, "sources")) {
        nb::dict one;
        if (!nb::try_cast<nb::dict>(each, one))
            throw nb::value_error("the value is not a state of a TensorStream: sources has the wrong type");
        position.sources.push_back({.source = value_in<std::uint32_t>(one, "source"),
                                    .sender = value_in<std::uint32_t>(one, "sender"),
                                    .frame = value_in<std::uint64_t>(one, "frame"),
                                    .row = value_in<std::uint64_t>(one, "row"),
                                    .epoch_frame = value_in<std::uint64_t>(one, "epoch_frame"),
                                    .epoch_ended = value_in<bool>(one, "epoch_ended"),
                                    .ended = value_in<bool>(one, "ended")});
    }
    return position;
}

std::vector<tcp::endpoint> endpoints(std::vector<address> const& from)
{
    std::vector<tcp::endpoint> all;
    all.reserve(from.size());
    for (auto const& [text, port] : from)
        all.emplace_back(asio::ip::make_address(text), port);
    return all;
}

class tensor_receiver {
  public:
    tensor_receiver(session const& from, std::vector<address> const& listen, std::vector<address> const& connect,
                    nb::handle memory, ingest::tensor_stream_options options)
    {
        auto const gpu = parse_device(memory);
        auto rx = from.get();
        options.listen = endpoints(listen);
        options.connect = endpoints(connect);
        without_gil const unlocked;
        std::shared_ptr<cuda_stream const> stream;
        if (gpu != host) {
            stream = std::make_shared<cuda_stream const>(cuda_stream::on(gpu));
            options.gpu = gpu;
            options.stream = *stream;
        }
        parts_ =
            owned_by_engine(std::make_unique<stream_parts>(std::move(rx), std::move(stream), gpu, std::move(options)));
    }

    [[nodiscard]] pending next() const
    {
        auto const& from = parts();
        auto what = operation_of<next_of>::start([from] { return next_batch(from); });
        return {std::move(what), [from](next_of next) { return next_object(std::move(next), *from); }};
    }
    void acknowledge(ingest::stream_position const& until) const { parts()->receives.acknowledge(until); }
    // Must be the last call. Running operations and batches keep the resources that they need.
    void close() noexcept
    {
        if (parts_ != nullptr && in_own_process())
            parts_->receives.close();
        parts_.reset();
    }
    [[nodiscard]] std::vector<address> addresses() const
    {
        std::vector<address> all;
        for (auto const& one : parts()->receives.local_endpoints())
            all.emplace_back(one.address().to_string(), one.port());
        return all;
    }
    // Returns pairs of the source's number, or None, and the error.
    [[nodiscard]] nb::list errors() const
    {
        nb::list all;
        for (auto const& one : parts()->receives.errors())
            all.append(nb::make_tuple(one.source, error_object(one.code, one.why)));
        return all;
    }
    [[nodiscard]] nb::dict stats() const
    {
        auto const now = parts()->receives.stats();
        nb::dict all;
        all["connections"] = now.connections;
        all["frames"] = now.frames;
        all["duplicates"] = now.duplicates;
        all["damaged"] = now.damaged;
        all["rows"] = now.rows;
        all["payload_bytes"] = now.payload_bytes;
        all["batches"] = now.batches;
        all["memory"] = now.memory;
        all["memory_high_water"] = now.memory_high_water;
        return all;
    }

  private:
    [[nodiscard]] std::shared_ptr<stream_parts> const& parts() const
    {
        check_process();
        if (parts_ == nullptr)
            throw system_error{
                make_error_code(boost::system::errc::bad_file_descriptor),
                {.operation = "use", .object = "stream", .kernel_message = {}, .advice = "it is closed"}};
        return parts_;
    }

    std::shared_ptr<stream_parts> parts_;
};

ingest::acknowledge_when parse_acknowledge(std::string_view name)
{
    if (name == "received")
        return ingest::acknowledge_when::received;
    if (name == "taken")
        return ingest::acknowledge_when::taken;
    if (name == "saved")
        return ingest::acknowledge_when::saved;
    throw nb::value_error("acknowledge must be 'received', 'taken' or 'saved'");
}

ingest::frame_order parse_order(std::string_view name)
{
    if (name == "as_they_come")
        return ingest::frame_order::as_they_come;
    if (name == "rounds")
        return ingest::frame_order::rounds;
    throw nb::value_error("order must be 'as_they_come' or 'rounds'");
}

}  // namespace

void bind_stream(nb::module_& module)
{
    nb::class_<ingest::stream_position>(module, "StreamPosition")
        .def(nb::init<>())
        .def("state", &state_of)
        .def_static("of_state", &position_of, nb::arg("state"))
        .def_ro("epoch", &ingest::stream_position::epoch);
    nb::class_<ingest::tensor_stream_options>(module, "StreamOptions")
        .def(nb::init<>())
        .def_rw("sources", &ingest::tensor_stream_options::sources)
        .def_rw("rank", &ingest::tensor_stream_options::rank)
        .def_rw("world_size", &ingest::tensor_stream_options::world_size)
        .def_rw("batch_size", &ingest::tensor_stream_options::batch_size)
        .def_rw("drop_last", &ingest::tensor_stream_options::drop_last)
        .def_rw("queue_depth", &ingest::tensor_stream_options::queue_depth)
        .def_rw("shuffle", &ingest::tensor_stream_options::shuffle)
        .def_rw("seed", &ingest::tensor_stream_options::seed)
        .def_rw("position", &ingest::tensor_stream_options::position)
        .def(
            "set_order",
            [](ingest::tensor_stream_options& self, std::string_view name) { self.order = parse_order(name); },
            nb::arg("name"))
        .def(
            "set_acknowledge",
            [](ingest::tensor_stream_options& self, std::string_view name) {
                self.acknowledge = parse_acknowledge(name);
            },
            nb::arg("name"))
        .def(
            "set_secret",
            [](ingest::tensor_stream_options& self, nb::bytes const& secret) {
                self.secret.assign(secret.c_str(), secret.size());
            },
            nb::arg("secret"))
        .def(
            "set_timeouts",
            [](ingest::tensor_stream_options& self, double start, double reconnect, double stall) {
                self.start_timeout = milliseconds_of(start, "start_timeout");
                self.reconnect_timeout = milliseconds_of(reconnect, "reconnect_timeout");
                self.stall_timeout = milliseconds_of(stall, "stall_timeout");
            },
            nb::arg("start"), nb::arg("reconnect"), nb::arg("stall"));
    nb::class_<tensor_receiver>(module, "TensorReceiver")
        .def(nb::init<session const&, std::vector<address> const&, std::vector<address> const&, nb::handle,
                      ingest::tensor_stream_options>(),
             nb::arg("session"), nb::arg("listen"), nb::arg("connect"), nb::arg("memory").none(), nb::arg("options"))
        .def("next", &tensor_receiver::next)
        .def("acknowledge", &tensor_receiver::acknowledge, nb::arg("until"))
        .def("close", &tensor_receiver::close)
        .def("addresses", &tensor_receiver::addresses)
        .def("errors", &tensor_receiver::errors)
        .def("stats", &tensor_receiver::stats);
}

}  // namespace gpurx::python
