// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>

#include "common_options.hpp"

namespace {

constexpr char footer[] =
    "A tensor is\n"
    "  NAME=FILE                    a .npy or IDX file: its first dimension is the rows\n"
    "  NAME=FILE:DTYPE:2x3          raw rows of this shape, one after the other; DTYPE as F32, U8, BF16, I64\n"
    "  NAME=synthetic:DTYPE:2x3     --rows synthetic rows of this shape; an empty shape is one element\n"
    "\n"
    "  tensor_source --to trainer:9000 --tensor image=train-images-idx3-ubyte --tensor label=train-labels-idx1-ubyte\n"
    "\n"
    "Each of several sources sends the frames of an epoch whose number modulo --sources is --source. torchrun's RANK\n"
    "and WORLD_SIZE are the defaults of --source and --sources.\n"
    "\n"
    "Exit status: 0 all frames were sent and acknowledged; 1 sending failed; 2 the command line is wrong.";

void add_frames(CLI::App& app, options& parsed)
{
    app.add_option("--source", parsed.source, "Number of this source")->envname("RANK");
    app.add_option("--sources", parsed.sources, "Number of sources that share the rows")
        ->envname("WORLD_SIZE")
        ->check(CLI::PositiveNumber);
    app.add_option("--epochs", parsed.epochs, "Times to send everything")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    app.add_option("--rows-per-frame", parsed.rows_per_frame, "Rows of a frame; default: about 4 MiB of rows")
        ->check(CLI::PositiveNumber);
    app.add_flag("--crc", parsed.crc, "Send a CRC32C with each frame");
    app.add_flag("--resume", parsed.resume,
                 "Continue behind the frames that an earlier process with the same rows sent as this source");
    add_secret_option(app, parsed.secret);
    app.add_option_function<unsigned>(
           "--retry", [&parsed](unsigned seconds) { parsed.retry = std::chrono::seconds{seconds}; },
           "Seconds to retry connecting, also after a connection broke")
        ->default_str("30");
}

}  // namespace

std::optional<options> parse_command_line(int argc, char** argv, int& exit_code)
{
    options parsed;
    CLI::App app{"Sends tensors from files, or synthetic ones, to programs that receive tensor streams."};
    app.footer(footer);
    app.set_version_flag("--version", "tensor_source " GPURX_VERSION, "Print the version");
    auto* const where = app.add_option_group("where", "Addresses of the receivers");
    where->add_option_function<std::vector<std::string>>(
        "--to",
        [&parsed](std::vector<std::string> const& texts) {
            for (auto const& text : texts)
                parsed.to.push_back(endpoint_argument(text));
        },
        "HOST:PORT of the receiver, or of all ranks' receivers: source i sends to number i modulo their number");
    where->add_option_function<std::string>(
        "--listen", [&parsed](std::string const& text) { parsed.listen = endpoint_argument(text); },
        "Listen for the receiver on this ADDRESS:PORT");
    where->require_option(1);
    app.add_option("--tensor", parsed.tensors, "NAME=SOURCE, see below; once for each tensor")->required();
    app.add_option("--rows", parsed.synthetic_rows, "Rows of synthetic tensors")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    add_frames(app, parsed);
    app.add_flag("--json", parsed.json, "Print a report as JSON, on standard output");
    try {
        app.parse(argc, argv);
        if (parsed.source >= parsed.sources)
            throw CLI::ValidationError{"--source", "must be less than --sources"};
    } catch (CLI::ParseError const& error) {
        exit_code = app.exit(error) == 0 ? 0 : 2;
        return std::nullopt;
    }
    return parsed;
}
