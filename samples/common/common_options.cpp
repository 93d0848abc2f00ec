// SPDX-License-Identifier: Apache-2.0
#include "common_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <gpurx/local_gpu.hpp>
#include <iterator>
#include <string>
#include <string_view>

namespace {

// host, gpu:N, or gpu:local.
std::optional<int> parse_memory(std::string const& text)
{
    if (text == "host")
        return -1;
    if (text == "gpu:local")
        return gpurx::local_gpu();
    constexpr std::string_view prefix = "gpu:";
    int ordinal = -1;
    auto const* const begin = text.data() + prefix.size();
    auto const* const end = text.data() + text.size();
    if (!text.starts_with(prefix) || std::from_chars(begin, end, ordinal).ptr != end || ordinal < 0)
        return std::nullopt;
    return ordinal;
}

gpurx::transport parse_transport(std::string const& name)
{
    for (auto const value : {gpurx::transport::devmem, gpurx::transport::zcrx, gpurx::transport::copy}) {
        if (name == to_string(value))
            return value;
    }
    return gpurx::transport::automatic;
}

constexpr std::size_t shortest = 16;  // of a tensor stream

std::string read_secret(std::string const& path)
{
    std::ifstream file{path, std::ios::binary};
    std::string text{std::istreambuf_iterator<char>{file}, {}};
    if (!file)
        throw CLI::ValidationError{"--secret-file", path + ": cannot be read"};
    if (text.ends_with('\n'))
        text.pop_back();
    if (text.size() < shortest)
        throw CLI::ValidationError{"--secret-file", path + ": has less than 16 bytes"};
    return text;
}

bool is_sha256(std::string const& text)
{
    return text.size() == 64 && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c); });
}

std::string lower_case(std::string text)
{
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

// Empty: the text is something else.
std::optional<endpoint_name> parse_endpoint(std::string const& text)
{
    auto const colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == text.size())
        return std::nullopt;
    auto host = text.substr(0, colon);
    if (host.front() == '[' && host.back() == ']')
        host = host.substr(1, host.size() - 2);
    else if (host.find(':') != std::string::npos)
        return std::nullopt;
    return endpoint_name{host, text.substr(colon + 1)};
}

}  // namespace

endpoint_name endpoint_argument(std::string const& text)
{
    auto const name = parse_endpoint(text);
    if (!name)
        throw CLI::ValidationError{text, "expected HOST:PORT, with an IPv6 address in brackets"};
    return *name;
}

void add_session_options(CLI::App& app, session_choice& chosen)
{
    auto const bytes = CLI::AsSizeValue{false};
    app.add_option("--interface", chosen.session.interface, "The NIC (transports devmem and zcrx need one)");
    app.add_option("--queues", chosen.session.rx_queues, "RX queues to set aside")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option_function<std::string>(
           "--transport", [&chosen](std::string const& name) { chosen.session.transport = parse_transport(name); },
           "automatic, devmem, zcrx or copy; automatic falls back to copy and reports the reason")
        ->check(CLI::IsMember{{"automatic", "devmem", "zcrx", "copy"}}.description(""))
        ->option_text("NAME");
    app.add_flag("--allow-zcrx", chosen.session.allow_zcrx,
                 "Let automatic use zcrx, which costs less than devmem on a stock kernel");
    app.add_option_function<std::string>(
           "--memory",
           [&chosen](std::string const& text) {
               std::optional<int> gpu;
               try {
                   gpu = parse_memory(text);
               } catch (gpurx::system_error const& error) {
                   throw CLI::ValidationError{text, error.what()};
               }
               if (!gpu)
                   throw CLI::ValidationError{text, "expected host, gpu:N or gpu:local"};
               chosen.gpu = *gpu;
           },
           "host, gpu:N for the GPU with CUDA ordinal N, or gpu:local for the one of this process, by LOCAL_RANK")
        ->option_text("KIND");
    app.add_option("--memory-size", chosen.memory_size, "Bytes that the NIC may fill, as 64MiB")
        ->transform(bytes)
        ->default_str("64MiB");
    app.add_option("--rx-page-size", chosen.session.rx_page_size,
                   "Bytes of a page on the NIC, as 16KiB; default: a page of the kernel")
        ->transform(bytes);
}

gpurx::device_memory allocate(session_choice const& chosen, std::size_t bytes)
{
    return chosen.gpu < 0 ? gpurx::device_memory::on_host(bytes) : gpurx::device_memory::on_gpu(chosen.gpu, bytes);
}

std::optional<gpurx::rx_session> open_session(session_choice const& chosen)
try {
    auto options = chosen.session;
    options.notice = [](std::string_view sentence) { fmt::print(stderr, "note: {}\n", sentence); };
    gpurx::rx_session session{options, allocate(chosen, chosen.memory_size)};
    return session;
} catch (gpurx::system_error const& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return std::nullopt;
}

void add_secret_option(CLI::App& app, std::string& secret)
{
    app.add_option_function<std::string>(
           "--secret-file", [&secret](std::string const& path) { secret = read_secret(path); },
           "File with the secret of both ends of the stream, at least 16 bytes")
        ->option_text("FILE");
}

CLI::Option* add_expected_sha256(CLI::App& app, std::string& expected, std::string const& help)
{
    return app
        .add_option_function<std::string>(
            "--expect-sha256", [&expected](std::string const& text) { expected = lower_case(text); }, help)
        ->check([](std::string const& text) {
            return is_sha256(text) ? std::string{} : std::string{"expected 64 hexadecimal digits"};
        })
        ->option_text("HEX");
}
