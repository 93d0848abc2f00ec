// SPDX-License-Identifier: Apache-2.0
//
// Streams of tensors: batches for Python.
#include "stream.hpp"

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

#include "error.hpp"
#include "operation.hpp"
#include "session.hpp"
#include "tensor.hpp"

namespace gpurx::python {

namespace {

using asio::ip::tcp;
using address = std::pair<std::string, std::uint16_t>;

// What a tensor_stream needs, in the order in which it can go.
struct stream_parts {
    std::shared_ptr<rx_session> session;
    std::shared_ptr<cuda_stream const> stream;  // of batches on a GPU
    int gpu;
    ingest::tensor_stream receives;

    stream_parts(std::shared_ptr<rx_session> from, std::shared_ptr<cuda_stream const> on, int where,
                 ingest::tensor_stream_options options)
        : session{std::move(from)}, stream{std::move(on)}, gpu{where}, receives{engine(), *session, std::move(options)}
    {}
};

using maybe_batch = std::optional<ingest::batch>;

std::vector<std::pair<std::string, tensor>> tensors_of(ingest::batch from, stream_parts const& of)
{
    std::vector<std::pair<std::string, tensor>> all;
    for (auto const& one : from.tensors())
        all.emplace_back(one.name, tensor{nullptr, one.bytes, one.type, {one.shape.begin(), one.shape.end()}, false});
    auto const memory = std::make_shared<storage>(std::move(from), of.gpu, of.stream, false);
    for (auto& [name, made] : all)
        made.memory = memory;
    return all;
}

// Python's: a list of names and tensors, or None at the end.
nb::object batch_object(maybe_batch from, stream_parts const& of)
{
    nb::list all;
    if (!from)
        return nb::none();
    for (auto& [name, made] : tensors_of(std::move(*from), of))
        all.append(nb::make_tuple(name, std::move(made)));
    return all;
}

asio::awaitable<maybe_batch> next_batch(std::shared_ptr<stream_parts> from)
{
    auto [code, next] = co_await from->receives.async_next(asio::as_tuple(asio::use_awaitable));
    if (code == asio::error::eof)
        co_return std::nullopt;
    if (code)
        throw system_error{
            code, {.operation = "receive", .object = "a batch of tensors", .kernel_message = {}, .advice = {}}};
    co_return maybe_batch{std::move(next)};
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
                    std::string_view memory, ingest::tensor_stream_options options)
    {
        auto const gpu = parse_place(memory);
        auto rx = from.get();
        options.listen = endpoints(listen);
        options.connect = endpoints(connect);
        nb::gil_scoped_release const unlocked;
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
        auto what = operation_of<maybe_batch>::start([from] { return next_batch(from); });
        return {std::move(what), [from](maybe_batch batch) { return batch_object(std::move(batch), *from); }};
    }
    // The last call. Operations that go on keep what they need, and so do batches.
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
    // Of each: the source's number, or None; the error.
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

std::chrono::milliseconds milliseconds_of(double seconds)
{
    return std::chrono::milliseconds{static_cast<std::int64_t>(seconds * 1000)};
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
    nb::class_<ingest::tensor_stream_options>(module, "StreamOptions")
        .def(nb::init<>())
        .def_rw("sources", &ingest::tensor_stream_options::sources)
        .def_rw("rank", &ingest::tensor_stream_options::rank)
        .def_rw("world_size", &ingest::tensor_stream_options::world_size)
        .def_rw("batch_size", &ingest::tensor_stream_options::batch_size)
        .def_rw("drop_last", &ingest::tensor_stream_options::drop_last)
        .def_rw("queue_depth", &ingest::tensor_stream_options::queue_depth)
        .def(
            "set_order",
            [](ingest::tensor_stream_options& self, std::string_view name) { self.order = parse_order(name); },
            nb::arg("name"))
        .def(
            "set_timeouts",
            [](ingest::tensor_stream_options& self, double start, double reconnect) {
                self.start_timeout = milliseconds_of(start);
                self.reconnect_timeout = milliseconds_of(reconnect);
            },
            nb::arg("start"), nb::arg("reconnect"));
    nb::class_<tensor_receiver>(module, "TensorReceiver")
        .def(nb::init<session const&, std::vector<address> const&, std::vector<address> const&, std::string_view,
                      ingest::tensor_stream_options>(),
             nb::arg("session"), nb::arg("listen"), nb::arg("connect"), nb::arg("memory"), nb::arg("options"))
        .def("next", &tensor_receiver::next)
        .def("close", &tensor_receiver::close)
        .def("addresses", &tensor_receiver::addresses)
        .def("errors", &tensor_receiver::errors)
        .def("stats", &tensor_receiver::stats);
}

}  // namespace gpurx::python
