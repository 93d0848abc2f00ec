// SPDX-License-Identifier: Apache-2.0
//
// A tensor_sender whose operations run in the calling thread only. So it works in a forked process and without the
// engine. A child that is forked later must not use it: the child shares the epoll and the connection with the parent,
// and closing them would break the parent's.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdint>
#include <gpurx/ingest/tensor_sender.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "conversions.hpp"
#include "module.hpp"
#include "operation.hpp"

namespace gpurx::python {

namespace {

// Name, element type, shape of a row, and address and number of the bytes.
using sent_array = std::tuple<std::string, std::uint16_t, std::vector<std::uint64_t>, std::uintptr_t, std::size_t>;

std::vector<ingest::tensor_view> views_of(std::vector<sent_array> const& arrays)
{
    std::vector<ingest::tensor_view> all;
    all.reserve(arrays.size());
    for (auto const& [name, type, row, address, size] : arrays)
        all.push_back(
            {{name, static_cast<ingest::dtype>(type), row}, {reinterpret_cast<std::byte const*>(address), size}});
    return all;
}

struct sender_parts {
    explicit sender_parts(ingest::tensor_sender_options options) : sends{io, std::move(options)} {}

    asio::io_context io;
    ingest::tensor_sender sends;
};

class sender {
  public:
    explicit sender(ingest::tensor_sender_options options) : parts_{std::make_unique<sender_parts>(std::move(options))}
    {}
    sender(sender const&) = delete;
    sender& operator=(sender const&) = delete;
    ~sender()
    {
        if (!is_here())
            static_cast<void>(parts_.release());
    }

    void connect()
    {
        run([&](auto& by, auto handler) { by.async_connect(std::move(handler)); });
    }
    void greet()
    {
        run([&](auto& by, auto handler) { by.async_greet(std::move(handler)); });
    }
    // Sends a copy, because the program may change its arrays.
    void send(std::vector<sent_array> const& arrays)
    {
        auto const views = views_of(arrays);
        run([&](auto& by, auto handler) { by.async_send(views, std::move(handler)); });
    }
    void end_epoch()
    {
        run([&](auto& by, auto handler) { by.async_end_epoch(std::move(handler)); });
    }
    void flush()
    {
        run([&](auto& by, auto handler) { by.async_flush(std::move(handler)); });
    }
    void close()
    {
        run([&](auto& by, auto handler) { by.async_close(std::move(handler)); });
    }
    // Any thread may call it. Ends the operation that another thread waits for.
    void abort()
    {
        if (!is_here())
            return;
        asio::post(parts_->io, [this] { parts_->sends.abort(); });
        locked([](auto& parts) {
            parts.io.restart();
            parts.io.poll();
        });
    }
    [[nodiscard]] std::uint64_t frames()
    {
        return locked([](auto& parts) { return parts.sends.next_frame(); });
    }
    [[nodiscard]] std::uint64_t received()
    {
        return locked([](auto& parts) { return parts.sends.received(); });
    }
    [[nodiscard]] std::uint64_t acknowledged()
    {
        return locked([](auto& parts) { return parts.sends.acknowledged(); });
    }

  private:
    struct outcome {
        bool is_over = false;
        error_code code;
    };

    [[nodiscard]] bool is_here() const noexcept { return process_ == ::getpid(); }

    template <class What>
    std::invoke_result_t<What, sender_parts&> locked(What what)
    {
        if (!is_here())
            throw system_error{make_error_code(boost::system::errc::operation_not_permitted),
                               {.operation = "use",
                                .object = "a TensorSender",
                                .kernel_message = {},
                                .advice = "it belongs to the parent of this forked process: create another one"}};
        without_gil const unlocked;
        std::scoped_lock const lock{mutex_};
        return what(*parts_);
    }

    // Waits until the operation is over. Throws the exception of a signal handler in Python; the operation then
    // continues.
    template <class Start>
    void run(Start start)
    {
        auto const result = std::make_shared<outcome>();
        locked([&](auto& parts) { start(parts.sends, [result](error_code code) { *result = {true, code}; }); });
        while (!locked([&](auto& parts) { return run_for_a_glance(parts.io, *result); })) {
            if (PyErr_CheckSignals() != 0)
                throw nb::python_error();
        }
        if (result->code)
            throw system_error{result->code, locked([](auto& parts) { return parts.sends.why(); })};
    }

    static bool run_for_a_glance(asio::io_context& io, outcome const& result)
    {
        io.restart();
        for (auto const end = std::chrono::steady_clock::now() + glance; !result.is_over;) {
            if (io.run_one_until(end) == 0)
                return result.is_over;
        }
        return true;
    }

    pid_t const process_ = ::getpid();
    std::mutex mutex_;  // guards the members below
    std::unique_ptr<sender_parts> parts_;
};

// NOLINTNEXTLINE(readability-function-size): the keywords that Python has
void make_sender(sender* place, std::string address, std::uint32_t source, bool resume, nb::bytes const& secret,
                 double connect_timeout, double reconnect, std::optional<double> timeout, std::uint64_t window)
{
    constexpr double least_timeout = 0.001;
    ingest::tensor_sender_options options{.address = std::move(address),
                                          .source = source,
                                          .resume = resume,
                                          .secret = std::string{secret.c_str(), secret.size()},
                                          .connect_timeout = milliseconds_of(connect_timeout, "connect_timeout"),
                                          .reconnect_timeout = milliseconds_of(reconnect, "reconnect"),
                                          .window = window};
    if (timeout)
        options.timeout = milliseconds_of(*timeout, "timeout", least_timeout);
    new (place) sender{std::move(options)};
}

}  // namespace

void bind_sender(nb::module_& module)
{
    nb::class_<sender>(module, "Sender")
        .def("__init__", &make_sender, nb::arg("address"), nb::arg("source"), nb::arg("resume"), nb::arg("secret"),
             nb::arg("connect_timeout"), nb::arg("reconnect"), nb::arg("timeout").none(), nb::arg("window"))
        .def("connect", &sender::connect)
        .def("greet", &sender::greet)
        .def("send", &sender::send, nb::arg("arrays"))
        .def("end_epoch", &sender::end_epoch)
        .def("flush", &sender::flush)
        .def("close", &sender::close)
        .def("abort", &sender::abort)
        .def("frames", &sender::frames)
        .def("received", &sender::received)
        .def("acknowledged", &sender::acknowledged);
}

}  // namespace gpurx::python
