// SPDX-License-Identifier: Apache-2.0
#include "cli.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include "progress.hpp"

namespace {

constexpr char footer[] =
    "Senders use the protocol of framework/docs/tensor-stream.md: tensor_source, or 30 lines of Python.\n"
    "  training_ingest --listen 0.0.0.0:9000 --sources 2 --batch-size 256\n"
    "  WORLD_SIZE=2 RANK=0 tensor_source --to this-host:9000 --tensor image=train-images-idx3-ubyte\n"
    "  WORLD_SIZE=2 RANK=1 tensor_source --to this-host:9000 --tensor image=train-images-idx3-ubyte\n"
    "\n"
    "torchrun's RANK and WORLD_SIZE are the defaults of --rank and --world-size. The process of rank r receives the\n"
    "sources whose number modulo the world's size is r.\n"
    "\n"
    "Exit status: 0 all sources received to their ends; 1 the stream failed; 2 the command line is wrong;\n"
    "3 a source failed, and the others were received; 4 no memory or session; 130 interrupted.";

void add_sources(CLI::App& app, options& parsed)
{
    auto const add_to = [](std::vector<endpoint_name>& list) {
        return [&list](std::vector<std::string> const& texts) {
            for (auto const& text : texts)
                list.push_back(endpoint_argument(text));
        };
    };
    auto* const where = app.add_option_group("where", "Addresses of the sources");
    auto* const listen = where->add_option_function<std::vector<std::string>>(
        "--listen", add_to(parsed.listen), "Listen for the sources on this ADDRESS:PORT; may be repeated");
    where->add_option_function<std::vector<std::string>>(
        "--connect", add_to(parsed.connect),
        "Connect to the sources, in the order of their numbers, at these HOST:PORTs");
    where->require_option(1);
    app.add_option("--sources", parsed.stream.sources, "Number of sources, those of other ranks included")
        ->capture_default_str()
        ->check(CLI::PositiveNumber)
        ->needs(listen);
    app.add_option("--rank", parsed.stream.rank, "Number of this process")->envname("RANK");
    app.add_option("--world-size", parsed.stream.world_size, "Number of processes that share the sources")
        ->envname("WORLD_SIZE")
        ->check(CLI::PositiveNumber);
    auto const seconds = [](std::chrono::milliseconds& time) {
        return [&time](double value) { time = std::chrono::milliseconds{static_cast<std::int64_t>(1000 * value)}; };
    };
    app.add_option_function<double>("--start-timeout", seconds(parsed.stream.start_timeout),
                                    "Seconds to wait for a source's first connection; 0: without limit")
        ->check(CLI::NonNegativeNumber)
        ->default_str("300");
    app.add_option_function<double>("--reconnect-timeout", seconds(parsed.stream.reconnect_timeout),
                                    "Seconds to wait for a source after its connection broke; 0: none")
        ->check(CLI::NonNegativeNumber)
        ->default_str("30");
    app.add_option_function<double>("--stall-timeout", seconds(parsed.stream.stall_timeout),
                                    "Seconds to wait for bytes on a source's connection; 0: without limit")
        ->check(CLI::NonNegativeNumber)
        ->default_str("300");
    add_secret_option(app, parsed.stream.secret);
    app.add_option("--max-frame-size", parsed.stream.limits.frame_size, "Most bytes of a frame")
        ->transform(CLI::AsSizeValue{false})
        ->default_str("256MiB");
}

void add_batches(CLI::App& app, options& parsed)
{
    app.add_option("--batch-size", parsed.stream.batch_size, "Rows of a batch")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option("--queue-depth", parsed.stream.queue_depth, "Batches that are ready, or being filled, in advance")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_flag("--drop-last", parsed.stream.drop_last, "Omit a last batch that has fewer rows");
    app.add_option_function<std::string>(
           "--order",
           [&parsed](std::string const& name) {
               parsed.stream.order =
                   name == "rounds" ? gpurx::ingest::frame_order::rounds : gpurx::ingest::frame_order::as_they_come;
           },
           "as-they-come; or rounds: a frame of each source in turn, the same batches in every run")
        ->check(CLI::IsMember{{"as-they-come", "rounds"}}.description(""))
        ->option_text("NAME");
    app.add_option_function<double>(
           "--train-time",
           [&parsed](double milliseconds) {
               parsed.train_time = std::chrono::microseconds{static_cast<std::int64_t>(1000 * milliseconds)};
           },
           "Milliseconds of work for each batch, instead of a model")
        ->check(CLI::NonNegativeNumber);
    app.add_option("--threads", parsed.threads, "Threads that receive")
        ->capture_default_str()
        ->check(CLI::Range(1, 256));
    app.add_flag("--sha256", parsed.sha256, "Compute the SHA-256 of each tensor's rows, on the host");
    app.add_flag("--json", parsed.json, "Print the report as JSON, on standard output");
}

}  // namespace

std::optional<options> parse_command_line(int argc, char** argv, int& exit_code)
{
    options parsed;
    CLI::App app{"Receives a stream of tensors from many senders, as batches in device memory."};
    app.footer(footer);
    app.set_version_flag("--version", "training_ingest " GPURX_VERSION, "Print the version");
    add_sources(app, parsed);
    add_batches(app, parsed);
    add_session_options(app, parsed.nic);
    try {
        app.parse(argc, argv);
        if (parsed.stream.rank >= parsed.stream.world_size)
            throw CLI::ValidationError{"--rank", "must be less than --world-size"};
    } catch (CLI::ParseError const& error) {
        exit_code = app.exit(error) == 0 ? 0 : 2;
        return std::nullopt;
    }
    auto const all = parsed.connect.empty() ? parsed.stream.sources : static_cast<unsigned>(parsed.connect.size());
    constexpr unsigned spare = 4;  // for senders that reconnect, and for other connections
    parsed.nic.session.max_flows = (all + parsed.stream.world_size - 1) / parsed.stream.world_size + spare;
    parsed.stream.gpu = parsed.nic.gpu;
    return parsed;
}

// ---- the report ----

namespace {

double rate(report const& report)
{
    return report.time.count() > 0 ? static_cast<double>(report.stream.payload_bytes) / report.time.count() : 0;
}

void line(std::string_view name, std::string const& value)
{
    fmt::print("{:<22}{}\n", name, value);
}

boost::json::array json_of_errors(report const& report)
{
    boost::json::array errors;
    for (auto const& each : report.errors) {
        boost::json::object error{{"text", describe(each.code, each.why)}};
        if (each.source)
            error["source"] = *each.source;
        errors.push_back(std::move(error));
    }
    return errors;
}

boost::json::object json_of_hashes(report const& report)
{
    boost::json::object hashes;
    for (auto const& [name, hash] : report.sha256)
        hashes[name] = hash;
    return hashes;
}

}  // namespace

void print_table(report const& report)
{
    auto const& stream = report.stream;
    fmt::print("{}\n", report.explanation);
    line("batches", fmt::format("{}, {} rows", stream.batches, report.rows));
    line("frames", fmt::format("{}, and {} that came twice", stream.frames, stream.duplicates));
    line("connections", fmt::format("{}", stream.connections));
    line("bytes", fmt::format("{} ({})", stream.payload_bytes, size_text(static_cast<double>(stream.payload_bytes))));
    line("time", fmt::format("{:.2f} s, {}/s", report.time.count(), size_text(rate(report))));
    line("  waiting for batches", fmt::format("{:.2f} s", report.waiting.count()));
    line("memory, most", size_text(static_cast<double>(stream.memory_high_water)));
    for (auto const& [name, hash] : report.sha256)
        line("SHA-256 of " + name, hash);
}

void print_json(report const& report)
{
    auto const& stream = report.stream;
    auto const& session = report.session;
    boost::json::object const object{
        {"transport", gpurx::to_string(report.transport)},
        {"explanation", report.explanation},
        {"batches", stream.batches},
        {"rows", report.rows},
        {"frames", stream.frames},
        {"duplicates", stream.duplicates},
        {"connections", stream.connections},
        {"bytes", stream.payload_bytes},
        {"seconds", report.time.count()},
        {"seconds_waiting", report.waiting.count()},
        {"bytes_per_second", rate(report)},
        {"memory_high_water", stream.memory_high_water},
        {"received",
         {{"device", session.device_bytes},
          {"resteered", session.resteered_bytes},
          {"linear", session.linear_bytes},
          {"host", session.host_bytes}}},
        {"sha256", json_of_hashes(report)},
        {"errors", json_of_errors(report)},
    };
    fmt::print("{}\n", boost::json::serialize(object));
}
