// SPDX-License-Identifier: Apache-2.0
#include "tensor.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/detached.hpp>
#include <cstring>
#include <gpurx/gather.hpp>
#include <numeric>
#include <utility>

#include "engine.hpp"
#include "module.hpp"

namespace gpurx::python {

namespace {

// Keeps the memory until the process ends: no one may use it again.
template <class Contents>
void forget(Contents what)
{
    static_cast<void>(new Contents{std::move(what)});
}

// Keeps the memory until the stream has passed. Once the engine has stopped this cannot be observed; the process ends
// then.
asio::awaitable<void> keep(ingest::buffer bytes, std::shared_ptr<cuda_stream const> stream)
{
    auto const executor = co_await asio::this_coro::executor;
    static_cast<void>(co_await async_wait(executor, *stream, asio::as_tuple(asio::use_awaitable)));
    static_cast<void>(bytes.size());
}

void drop_after(ingest::buffer bytes, std::shared_ptr<cuda_stream const> stream) noexcept
try {
    auto const executor = engine();
    asio::co_spawn(executor, keep(std::move(bytes), std::move(stream)), asio::detached);
} catch (std::exception const&) {
    forget(std::move(bytes));
}

}  // namespace

storage::~storage()
{
    auto const own = in_own_process();
    if (!own)
        forget(std::move(contents_));
    if (!own || gpu_ == host)
        return;
    auto const may_go = [this] {
        return std::ranges::all_of(consumers_, [this](cuda_stream_ref consumer) {
            error_code code;
            order_after(*stream_, consumer, code);
            return !code;
        });
    };
    auto* const lent = std::get_if<ingest::batch>(&contents_);
    if (lent != nullptr && consumers_.size() == 1)
        lent->release_after(consumers_.front());
    else if (!may_go())
        // The consumer's stream is gone or being captured into a graph: the end of its reads is unknown.
        forget(std::move(contents_));
    else if (lent == nullptr)
        drop_after(std::get<ingest::buffer>(std::move(contents_)), stream_);
    // A batch waits for the stream itself.
}

void storage::use_on(cuda_stream_ref consumer)
{
    order_after(consumer, *stream_);
    note_use_on(consumer);
}

void storage::note_use_on(cuda_stream_ref consumer)
{
    std::scoped_lock const lock{mutex_};
    if (std::ranges::find(consumers_, consumer) == consumers_.end())
        consumers_.push_back(consumer);
}

std::shared_ptr<cuda_stream const> storage::stream_to(int gpu)
{
    std::shared_ptr<cuda_stream const> stream;
    {
        std::scoped_lock const lock{mutex_};
        auto found = std::ranges::find(streams_to_, gpu, &decltype(streams_to_)::value_type::first);
        if (found == streams_to_.end())
            found = streams_to_.emplace(found, gpu, std::make_shared<cuda_stream const>(cuda_stream::on(gpu)));
        stream = found->second;
    }
    use_on(*stream);
    return stream;
}

namespace {

constexpr std::array names{
    std::pair{ingest::dtype::i8, "int8"},
    std::pair{ingest::dtype::i16, "int16"},
    std::pair{ingest::dtype::i32, "int32"},
    std::pair{ingest::dtype::i64, "int64"},
    std::pair{ingest::dtype::u8, "uint8"},
    std::pair{ingest::dtype::u16, "uint16"},
    std::pair{ingest::dtype::u32, "uint32"},
    std::pair{ingest::dtype::u64, "uint64"},
    std::pair{ingest::dtype::f16, "float16"},
    std::pair{ingest::dtype::f32, "float32"},
    std::pair{ingest::dtype::f64, "float64"},
    std::pair{ingest::dtype::bf16, "bfloat16"},
    std::pair{ingest::dtype::c64, "complex64"},
    std::pair{ingest::dtype::c128, "complex128"},
    std::pair{ingest::dtype::boolean, "bool"},
    std::pair{ingest::dtype::f8_e4m3, "float8_e4m3fn"},
    std::pair{ingest::dtype::f8_e5m2, "float8_e5m2"},
    std::pair{ingest::dtype::f8_e4m3fnuz, "float8_e4m3fnuz"},
    std::pair{ingest::dtype::f8_e5m2fnuz, "float8_e5m2fnuz"},
    std::pair{ingest::dtype::f8_e8m0, "float8_e8m0fnu"},
    std::pair{ingest::dtype::f6_e2m3, "float6_e2m3fn"},
    std::pair{ingest::dtype::f6_e3m2, "float6_e3m2fn"},
    std::pair{ingest::dtype::f4_e2m1, "float4_e2m1fn"},
};

ingest::dtype dtype_of(std::string_view name)
{
    auto const* const found = std::ranges::find(names, name, &decltype(names)::value_type::second);
    if (found == names.end())
        throw nb::value_error(fmt::format("there is no dtype '{}'", name).c_str());
    return found->first;
}

// Views the same bytes as other elements. The last dimension changes with the size of an element.
tensor as_type(tensor const& from, ingest::dtype type)
{
    auto seen = from;
    seen.type = type;
    auto const here = static_cast<std::int64_t>(ingest::bits_of(from.type));
    auto const there = static_cast<std::int64_t>(ingest::bits_of(type));
    if (here == there)
        return seen;
    if (seen.shape.empty())
        throw nb::value_error("without a dimension it can only be seen as an element of the same size");
    auto const row = seen.shape.back() * here;
    if (row % there != 0)
        throw nb::value_error(fmt::format("its last dimension has {} bytes, no whole number of {}",
                                          static_cast<double>(row) / 8, python_name_of(type))
                                  .c_str());
    seen.shape.back() = row / there;
    return seen;
}

// The number of elements, unless it overflows.
std::optional<std::int64_t> count_elements(std::span<std::int64_t const> shape)
{
    std::int64_t count = 1;
    auto const none = std::ranges::find(shape, 0) != shape.end();
    for (auto const size : shape) {
        if (size < 0 || (size != 0 && __builtin_mul_overflow(count, size, &count)))
            return std::nullopt;
    }
    return none ? 0 : count;
}

tensor bytes_of(tensor const& from)
{
    auto seen = from;
    seen.type = ingest::dtype::u8;
    seen.shape = {static_cast<std::int64_t>(from.bytes.size())};
    return seen;
}

// A function of gpurx._convert, which is simpler in Python and needs its libraries.
nb::object in_python(char const* function)
{
    return nb::module_::import_("gpurx._convert").attr(function);
}

nb::tuple shape_of(tensor const& self)
{
    nb::list sizes;
    for (auto const size : self.shape)
        sizes.append(size);
    return nb::tuple(sizes);
}

std::string describe_tensor(tensor const& self)
{
    return fmt::format("gpurx.Tensor(shape=({}{}), dtype={}, device={})", fmt::join(self.shape, ", "),
                       self.shape.size() == 1 ? "," : "", python_name_of(self.type), device_name(self.memory->gpu()));
}

std::int64_t length(tensor const& self)
{
    if (self.shape.empty())
        throw nb::type_error("len() of a tensor without dimensions");
    return self.shape.front();
}

}  // namespace

std::size_t tensor::elements() const noexcept
{
    return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, [](std::size_t product, std::int64_t size) {
        return product * static_cast<std::size_t>(size);
    });
}

std::string_view python_name_of(ingest::dtype type) noexcept
{
    auto const* const found = std::ranges::find(names, type, &decltype(names)::value_type::first);
    return found == names.end() ? "unknown" : found->second;
}

std::string device_name(int gpu)
{
    return gpu == host ? "cpu" : fmt::format("cuda:{}", gpu);
}

tensor copy_to(tensor const& from, int gpu)
{
    auto const there = gpu == from.memory->gpu();
    auto buffer =
        gpu == host ? ingest::buffer::on_host(from.bytes.size()) : ingest::buffer::on_gpu(gpu, from.bytes.size());
    std::shared_ptr<cuda_stream const> stream;
    if (there)
        stream = from.memory->stream();
    else if (gpu != host)
        stream = from.memory->gpu() == host ? std::make_shared<cuda_stream const>(cuda_stream::on(gpu))
                                            : from.memory->stream_to(gpu);
    auto const bytes = buffer.span();
    if (!from.bytes.empty()) {
        std::array const all{fragment{from.bytes.address(), from.bytes.size(), from.bytes.kind()}};
        // A copy to the host waits for the bytes, behind the earlier work of their stream.
        auto const* const order = gpu == host ? from.memory->stream().get() : stream.get();
        gather(all, bytes, order != nullptr ? cuda_stream_ref{*order} : cuda_stream_ref{});
    }
    auto memory = std::make_shared<storage>(std::move(buffer), gpu, std::move(stream), false);
    return {std::move(memory), bytes, from.type, from.shape, true};
}

tensor tensor_of_bytes(nb::bytes const& data, std::string_view type, std::vector<std::int64_t> shape, nb::handle device,
                       bool read_only)
{
    auto const element = dtype_of(type);
    auto buffer = ingest::buffer::on_host(data.size());
    auto const bytes = buffer.span();
    if (!bytes.empty())
        std::memcpy(reinterpret_cast<void*>(bytes.address()), data.c_str(), bytes.size());
    tensor made{nullptr, bytes, element, std::move(shape), false};
    auto const count = count_elements(made.shape);
    std::int64_t bits = 0;
    if (!count || __builtin_mul_overflow(*count, ingest::bits_of(made.type), &bits) ||
        static_cast<std::uint64_t>(bits) != std::uint64_t{bytes.size()} * 8)
        throw nb::value_error(fmt::format("{} bytes are no {} of that shape", bytes.size(), type).c_str());
    auto const gpu = parse_device(device);
    made.memory = std::make_shared<storage>(std::move(buffer), host, nullptr, read_only && gpu == host);
    return gpu == host ? made : copy_to(made, gpu);
}

namespace {

constexpr char about_tensor[] = R"(A contiguous row-major tensor in memory of a GPU or of the host.

A Tensor has no arithmetic. numpy, torch and cupy take it with from_dlpack(), without a copy. The memory lives as long as the
Tensor or a consumer uses it. Any thread may use a Tensor.)";

constexpr char about_view[] = R"(Return the same memory as elements of another type, by name or dtype.

The size of the last dimension changes with the size of an element. Use it for consumers that lack this type.
Raises ValueError if the bytes of the last dimension are no multiple of an element.)";

constexpr char about_numpy[] = R"(Return a numpy array of the tensor's type, or converted to `dtype`.

The array shares host memory, and is a copy of GPU memory. ml_dtypes provides types that numpy lacks. Elements of four
bits become bytes. Raises TypeError if numpy and ml_dtypes lack the type.)";

constexpr char about_dlpack[] = R"(Return a DLPack capsule of the tensor, as the array API standard specifies.

On a GPU, later work on `stream` sees the bytes. The memory is used again only after the work that the consumer
enqueued on the stream until it released the tensor. None is CUDA's legacy default stream, and -1 skips the order.
Raises BufferError if the tensor cannot be on `dl_device` without a copy, or is read-only and the consumer is older
than DLPack 1.0.)";

}  // namespace

void bind_tensor(nb::module_& module)
{
    nb::class_<tensor>(module, "Tensor", nb::is_weak_referenceable(), about_tensor)
        .def_prop_ro("shape", &shape_of, "Sizes of the dimensions, a tuple.")
        .def_prop_ro(
            "ndim", [](tensor const& self) { return self.shape.size(); }, "Number of dimensions.")
        .def_prop_ro(
            "dtype", [](tensor const& self) { return python_name_of(self.type); },
            "Name of the element type in numpy or torch: 'float32', 'bfloat16'.")
        .def_prop_ro(
            "nbytes", [](tensor const& self) { return self.bytes.size(); }, "Number of bytes.")
        .def_prop_ro("size", &tensor::elements, "Number of elements.")
        .def_prop_ro(
            "device", [](tensor const& self) { return device_name(self.memory->gpu()); }, "'cpu' or 'cuda:0'.")
        .def_prop_ro(
            "readonly", [](tensor const& self) { return self.memory->read_only(); },
            "True if consumers must not write.")
        .def_prop_ro(
            "data_ptr", [](tensor const& self) { return self.bytes.address(); },
            "Address of the bytes. On a GPU, only work on a stream that was passed to __dlpack__() may read them.")
        .def(
            "view",
            [](tensor const& self, nb::object const& type) {
                return as_type(self, dtype_of(nb::cast<std::string>(in_python("type_name")(type))));
            },
            nb::arg("dtype"), about_view)
        .def(
            "numpy", [](nb::handle self, nb::object const& type) { return in_python("to_numpy")(self, type); },
            nb::arg("dtype").none() = nb::none(), about_numpy)
        .def(
            "__array__",
            [](nb::handle self, nb::object const& type, std::optional<bool> copy) {
                return in_python("to_numpy")(self, type, copy);
            },
            nb::arg("dtype").none() = nb::none(), nb::arg("copy").none() = nb::none(),
            "Implement numpy.asarray() as numpy() does. Raises ValueError if copy=False needs a copy.")
        .def("__len__", &length, "Return the size of the first dimension.")
        .def("__repr__", &describe_tensor)
        .def("__dlpack_device__", &dlpack_device, "Return the DLPack device of the memory.")
        .def("__dlpack__", &to_dlpack, nb::kw_only(), nb::arg("stream").none() = nb::none(),
             nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
             nb::arg("copy").none() = nb::none(), about_dlpack);
    module.def("bytes_of", &bytes_of, nb::arg("tensor"));
    module.def("tensor_of_bytes", &tensor_of_bytes, nb::arg("data"), nb::arg("dtype"), nb::arg("shape"),
               nb::arg("device").none() = "host", nb::arg("read_only") = false);
}

}  // namespace gpurx::python
