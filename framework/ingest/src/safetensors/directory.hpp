// SPDX-License-Identifier: Apache-2.0
//
// The files of a checkpoint in a directory.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <string>
#include <vector>

namespace gpurx::ingest::detail {

// Of a directory: its index if there is one, else its files of tensors, in the order of their names. Of anything else:
// that. Precondition: is_local(place). Errors: errc::bad_safetensors if there are none, or several indices.
[[nodiscard]] boost::asio::awaitable<std::vector<std::string>> async_files_of(boost::asio::any_io_executor executor,
                                                                              std::string place);

}  // namespace gpurx::ingest::detail
