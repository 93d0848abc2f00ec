// SPDX-License-Identifier: Apache-2.0
//
// Loading into memory: an object, or the tensors of a model in one file or in several.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <gpurx/ingest/buffer.hpp>
#include <gpurx/ingest/object.hpp>
#include <gpurx/session.hpp>

#include "options.hpp"
#include "report.hpp"

// Loads the whole object, contiguous.
[[nodiscard]] boost::asio::awaitable<gpurx::ingest::buffer> fetch(gpurx::ingest::object& object, int gpu);

// Loads the tensors, each at its place in one block. Precondition: the object is open, and not read yet.
[[nodiscard]] boost::asio::awaitable<gpurx::ingest::buffer> load_tensors(gpurx::ingest::object& file, int gpu,
                                                                         report& found);

// Loads a model in several files, which `wanted` names: file after file, each through all flows. Adds the facts of the
// files to the report.
[[nodiscard]] boost::asio::awaitable<gpurx::ingest::buffer> load_checkpoint(options const& wanted,
                                                                            gpurx::rx_session& session, report& found);
