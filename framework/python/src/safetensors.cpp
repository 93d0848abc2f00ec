// SPDX-License-Identifier: Apache-2.0
//
// Weights from a server: the tensors of a safetensors file, in one block of memory.
#include "safetensors.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <gpurx/ingest/safetensors.hpp>
#include <utility>

#include "operation.hpp"
#include "session.hpp"
#include "tensor.hpp"

namespace gpurx::python {

namespace {

struct request {
    std::string url;
    int gpu = host;
    std::optional<std::vector<std::string>> names;  // which of them; all
    ingest::http_options options;
};

struct loaded {
    std::vector<std::pair<std::string, tensor>> tensors;
    std::map<std::string, std::string> metadata;
    std::string url;
    std::string etag;
    std::uint64_t size = 0;  // of the file
};

std::vector<ingest::safetensor> chosen(std::vector<ingest::safetensor> from, request const& what)
{
    if (!what.names)
        return from;
    for (auto const& name : *what.names)
        if (std::ranges::find(from, name, &ingest::safetensor::name) == from.end())
            throw system_error{make_error_code(boost::system::errc::invalid_argument),
                               {.operation = "find",
                                .object = "tensor '" + name + "'",
                                .kernel_message = {},
                                .advice = "it is not among those of " + what.url}};
    std::erase_if(from, [&](ingest::safetensor const& one) {
        return std::ranges::find(*what.names, one.name) == what.names->end();
    });
    return from;
}

asio::awaitable<loaded> load(std::shared_ptr<rx_session> session, request what)
{
    std::shared_ptr<cuda_stream const> stream;
    if (what.gpu != host) {
        stream = std::make_shared<cuda_stream const>(cuda_stream::on(what.gpu));
        what.options.stream = *stream;
    }
    ingest::http_object file{engine(), *session, what.url, what.options};
    co_await file.async_open();
    auto header = co_await ingest::async_read_safetensors_header(file);
    auto const tensors = chosen(std::move(header.tensors), what);
    auto const layout = ingest::lay_out(tensors);
    auto block =
        what.gpu == host ? ingest::buffer::on_host(layout.size) : ingest::buffer::on_gpu(what.gpu, layout.size);
    auto const bytes = block.span();
    auto const memory = std::make_shared<storage>(std::move(block), what.gpu, std::move(stream), false);
    co_await file.async_fetch(ingest::placements_of(tensors, layout, bytes));
    loaded result{{}, std::move(header.metadata), file.url(), file.etag(), file.size()};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        auto const& one = tensors[i];
        auto const place = one.size == 0 ? device_span{} : bytes.subspan(layout.offsets[i], one.size);
        result.tensors.emplace_back(one.name,
                                    tensor{memory, place, one.type, {one.shape.begin(), one.shape.end()}, false});
    }
    co_return result;
}

nb::object object_of(loaded from)
{
    nb::dict tensors;
    for (auto& [name, made] : from.tensors)
        tensors[name.c_str()] = nb::cast(std::move(made));
    nb::dict metadata;
    for (auto const& [key, text] : from.metadata)
        metadata[key.c_str()] = nb::str(text.c_str(), text.size());
    return nb::make_tuple(std::move(tensors), std::move(metadata), from.url, from.etag, from.size);
}

ingest::http_options::checksum parse_checksum(std::string_view name)
{
    using checksum = ingest::http_options::checksum;
    if (name == "none")
        return checksum::none;
    if (name == "automatic")
        return checksum::automatic;
    if (name == "always")
        return checksum::always;
    throw nb::value_error("checksum must be 'none', 'automatic' or 'always'");
}

// NOLINTNEXTLINE(readability-function-size): the keywords that Python has
pending start_loading(session const& from, std::string url, std::string_view device,
                      std::optional<std::vector<std::string>> names, unsigned flows, std::size_t chunk_size,
                      double timeout, std::string_view checksum)
{
    request what{.url = std::move(url), .gpu = parse_place(device), .names = std::move(names), .options = {}};
    what.options.flows = flows;
    what.options.chunk_size = chunk_size;
    what.options.timeout = std::chrono::milliseconds{static_cast<std::int64_t>(timeout * 1000)};
    what.options.crc32c = parse_checksum(checksum);
    auto started = operation_of<loaded>::start(
        [session = from.get(), what = std::move(what)]() mutable { return load(std::move(session), std::move(what)); });
    return {std::move(started), &object_of};
}

}  // namespace

void bind_safetensors(nb::module_& module)
{
    module.def("load_safetensors", &start_loading, nb::arg("session"), nb::arg("url"), nb::arg("device"),
               nb::arg("names").none(), nb::arg("flows"), nb::arg("chunk_size"), nb::arg("timeout"),
               nb::arg("checksum"));
}

}  // namespace gpurx::python
