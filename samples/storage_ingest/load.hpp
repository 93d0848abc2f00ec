// SPDX-License-Identifier: Apache-2.0
//
// What gpurx-fetch brings into memory: an object, or the tensors of a model in one file or in several.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <gpurx/ingest/buffer.hpp>
#include <gpurx/ingest/object.hpp>
#include <gpurx/session.hpp>

#include "options.hpp"
#include "report.hpp"

// The whole object, contiguous.
[[nodiscard]] boost::asio::awaitable<gpurx::ingest::buffer> fetch(gpurx::ingest::object& object, int gpu);

// The tensors, each at its place in one block. The object is open, and not read yet.
[[nodiscard]] boost::asio::awaitable<gpurx::ingest::buffer> load_tensors(gpurx::ingest::object& file, int gpu,
                                                                         report& found);

// The same for a model in several files, which `wanted` names: one file after the other, each through all flows. The
// report then has what is to be said of the files.
[[nodiscard]] boost::asio::awaitable<gpurx::ingest::buffer> load_checkpoint(options const& wanted,
                                                                            gpurx::rx_session& session, report& found);
