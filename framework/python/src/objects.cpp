// SPDX-License-Identifier: Apache-2.0
//
// Objects as bytes: a whole object, ranges of it, or a listing of S3. For formats that Python reads, or raw data.
#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <gpurx/crc32c.hpp>
#include <gpurx/error.hpp>
#include <gpurx/ingest/checkpoint.hpp>
#include <gpurx/ingest/http.hpp>
#include <gpurx/ingest/object.hpp>
#include <memory>
#include <new>
#include <utility>

#include "conversions.hpp"
#include "engine.hpp"
#include "module.hpp"
#include "operation.hpp"
#include "session.hpp"
#include "source.hpp"
#include "tensor.hpp"

namespace gpurx::python {

namespace {

// Bytes [first, first + second).
using byte_range = std::pair<std::uint64_t, std::uint64_t>;

struct request {
    std::string url;
    int gpu = host;
    ingest::fetch_options options;
};

// Each has its own memory, freed with its last user.
tensor bytes_in(std::uint64_t size, ingest::object const& of, int gpu, std::shared_ptr<cuda_stream const> const& stream)
try {
    auto block = gpu == host ? ingest::buffer::on_host(size) : ingest::buffer::on_gpu(gpu, size);
    auto const span = block.span();
    return {std::make_shared<storage>(std::move(block), gpu, stream, false),
            span,
            ingest::dtype::u8,
            {static_cast<std::int64_t>(size)}};
} catch (std::bad_alloc const&) {
    throw system_error{make_error_code(boost::system::errc::not_enough_memory),
                       {.operation = "fetch",
                        .object = ingest::redacted_url(of.url()),
                        .kernel_message = {},
                        .advice = fmt::format("the request has {} bytes", size)}};
}

std::shared_ptr<cuda_stream const> stream_for(request& what)
{
    if (what.gpu == host)
        return {};
    auto stream = std::make_shared<cuda_stream const>(cuda_stream::on(what.gpu));
    what.options.stream = *stream;
    return stream;
}

asio::awaitable<tensor> load_all(std::shared_ptr<rx_session> session, request what)
{
    auto const stream = stream_for(what);
    auto object = object_at(session.get(), what.url, what.options);
    co_await object.async_open();
    auto loaded = bytes_in(object.size(), object, what.gpu, stream);
    ingest::placement const all{0, loaded.bytes};
    if (object.size() != 0)
        co_await object.async_fetch({&all, 1});
    co_return loaded;
}

// An object whose ranges are fetched in sequence. The first fetch opens it. Once all of it has arrived, its checksum is
// compared. After a failure it can only be destroyed.
class open_object {
  public:
    open_object(std::shared_ptr<rx_session> session, request what, std::shared_ptr<flow_budget> budget)
        : session_{std::move(session)},
          gpu_{what.gpu},
          stream_{stream_for(what)},
          flows_{what.options.flows},
          chunk_size_{what.options.chunk_size},
          object_{object_at(session_.get(), what.url, std::move(what.options))},
          budget_{std::move(budget)}
    {}

    // Makes the operation's share of connections: one to open the object, and one for each chunk.
    [[nodiscard]] std::shared_ptr<turn> turn_for(std::vector<byte_range> const& ranges)
    {
        std::uint64_t chunks = 0;
        for (auto const& [offset, size] : ranges)
            chunks += std::min<std::uint64_t>(size / chunk_size_ + 1, flows_);
        return budget_->wait(engine(), this, static_cast<unsigned>(std::min<std::uint64_t>(chunks + 1, flows_)), true);
    }
    // It waits for `mine`, which lasts as long as the operation.
    [[nodiscard]] asio::awaitable<std::vector<tensor>> async_fetch(std::vector<byte_range> ranges,
                                                                   std::shared_ptr<turn> mine);

  private:
    void check(byte_range const& range) const;

    std::shared_ptr<rx_session> session_;
    int gpu_;
    std::shared_ptr<cuda_stream const> stream_;
    unsigned flows_;
    std::uint64_t chunk_size_;
    ingest::object object_;
    std::shared_ptr<flow_budget> budget_;
    bool is_open_ = false;
};

void open_object::check(byte_range const& range) const
{
    auto const& [offset, size] = range;
    if (offset > object_.size() || size > object_.size() - offset)
        throw system_error{make_error_code(errc::bad_destination),
                           {.operation = "fetch",
                            .object = ingest::redacted_url(object_.url()),
                            .kernel_message = {},
                            .advice = fmt::format(
                                "it has {} bytes, and the range {} + {} lies beyond them; check the name of the object",
                                object_.size(), offset, size)}};
}

asio::awaitable<std::vector<tensor>> open_object::async_fetch(std::vector<byte_range> ranges,
                                                              std::shared_ptr<turn> mine)
{
    co_await mine->async_come();
    if (!is_open_)
        co_await object_.async_open();
    is_open_ = true;
    std::vector<tensor> fetched;
    std::vector<ingest::placement> places;
    for (auto const& each : ranges) {
        // Checked before it allocates memory for missing bytes.
        check(each);
        auto const& [offset, size] = each;
        fetched.push_back(bytes_in(size, object_, gpu_, stream_));
        if (size != 0)
            places.push_back({offset, fetched.back().bytes});
    }
    co_await object_.async_fetch(places);
    co_return fetched;
}

// ---- for Python ----

using shared_object = std::shared_ptr<open_object>;

nb::object object_of(std::vector<tensor> from)
{
    nb::list tensors;
    for (auto& one : from)
        tensors.append(nb::cast(std::move(one)));
    return tensors;
}

// An object without a budget gets its own.
shared_object make_object(session const* from, std::string url, nb::handle device, ingest::fetch_options const& options,
                          flow_budget* shared)
{
    auto budget = shared != nullptr ? shared->shared_from_this() : std::make_shared<flow_budget>(options.flows);
    request what{.url = std::move(url), .gpu = parse_device(device), .options = options};
    return owned_by_engine(std::make_unique<open_object>(session_in(from), std::move(what), std::move(budget)));
}

pending start_fetching_ranges(shared_object const& self, std::vector<byte_range> ranges)
{
    auto mine = self->turn_for(ranges);
    auto hurry = hurrying(mine);
    auto started =
        operation_of<std::vector<tensor>>::start([self, mine = std::move(mine), ranges = std::move(ranges)]() mutable {
            return self->async_fetch(std::move(ranges), std::move(mine));
        });
    return {std::move(started), &object_of, std::move(hurry)};
}

pending start_loading_all(session const* from, std::string url, nb::handle device, ingest::fetch_options const& options)
{
    request what{.url = std::move(url), .gpu = parse_device(device), .options = options};
    auto started = operation_of<tensor>::start([session = session_in(from), what = std::move(what)]() mutable {
        return load_all(std::move(session), std::move(what));
    });
    return {std::move(started), [](tensor loaded) { return nb::cast(std::move(loaded)); }};
}

pending read_url(session const* from, std::string url, std::size_t at_most, ingest::fetch_options options)
{
    auto what =
        std::make_shared<source>(session_in(from), std::move(url), std::move(options), false, tls_note_of(from));
    auto started = operation_of<std::string>::start([what, at_most] { return what->async_text(at_most); });
    return {std::move(started), [what](std::string const& text) {
                return nb::make_tuple(nb::bytes(text.data(), text.size()), text_of(what->commit()));
            }};
}

using objects = std::vector<ingest::s3_object>;

pending list_objects(std::string prefix, ingest::fetch_options const& options)
{
    auto started = operation_of<objects>::start(
        [prefix = std::move(prefix), options] { return ingest::async_list_s3(prefix, options); });
    return {std::move(started), [](objects const& found) {
                nb::list urls;
                for (auto const& each : found)
                    urls.append(text_of(each.url));
                return urls;
            }};
}

pending list_files(std::string directory, bool recursive, ingest::fetch_options const& options)
{
    auto started = operation_of<ingest::file_list>::start([directory = std::move(directory), recursive, options] {
        return ingest::async_list_files(directory, recursive, options);
    });
    return {std::move(started), [](ingest::file_list const& found) {
                nb::list files;
                for (auto const& [name, size, etag] : found.files)
                    files.append(nb::make_tuple(text_of(name), size ? nb::cast(*size) : nb::none(), text_of(etag)));
                return nb::make_tuple(text_of(found.directory), files);
            }};
}

// Of memory of the host.
std::uint32_t crc32c_at(std::uintptr_t address, std::size_t size, std::uint32_t before)
{
    without_gil const others_run;
    return crc32c({reinterpret_cast<std::byte const*>(address), size}, before);
}

void check_one_commit(std::vector<std::pair<std::string, std::string>> const& files)
{
    std::vector<ingest::stated_commit> stated;
    stated.reserve(files.size());
    for (auto const& [url, commit] : files)
        stated.push_back({url, commit});
    ingest::check_one_commit(stated);
}

}  // namespace

void bind_objects(nb::module_& module)
{
    nb::class_<open_object>(module, "OpenObject")
        .def(nb::new_(&make_object), nb::arg("session").none(), nb::arg("url"), nb::arg("device").none(),
             nb::arg("options"), nb::arg("budget").none() = nb::none())
        .def("fetch", &start_fetching_ranges, nb::arg("ranges"));
    module.def("crc32c", &crc32c_at, nb::arg("address"), nb::arg("nbytes"), nb::arg("before") = 0);
    module.def("load_object", &start_loading_all, nb::arg("session").none(), nb::arg("url"), nb::arg("device").none(),
               nb::arg("options"));
    module.def("list_s3", &list_objects, nb::arg("prefix"), nb::arg("options"));
    module.def("list_files", &list_files, nb::arg("directory"), nb::arg("recursive"), nb::arg("options"));
    module.def("is_checkpoint", &ingest::is_checkpoint, nb::arg("place"));
    module.def("url_at_commit", &ingest::url_at_commit, nb::arg("url"), nb::arg("commit"));
    module.def("check_one_commit", &check_one_commit, nb::arg("files"));
    module.def("redacted_url", &ingest::redacted_url, nb::arg("url"));
    module.def("read_url", &read_url, nb::arg("session").none(), nb::arg("url"), nb::arg("at_most"),
               nb::arg("options"));
}

}  // namespace gpurx::python
