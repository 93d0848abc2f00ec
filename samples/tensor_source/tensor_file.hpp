// SPDX-License-Identifier: Apache-2.0
//
// The rows of one tensor: a .npy file, an IDX file (MNIST's format), raw bytes, or made up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <gpurx/ingest/tensor_spec.hpp>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct tensor_rows {
    gpurx::ingest::tensor_spec spec;
    std::uint64_t rows = 0;
    std::shared_ptr<void const> owner;  // of the bytes
    std::span<std::byte const> bytes;   // row after row, as they go to the wire
};

// What an argument NAME=FILE, NAME=FILE:DTYPE:SHAPE or NAME=synthetic:DTYPE:SHAPE names. Throws std::runtime_error,
// whose text says what is wrong with which argument.
tensor_rows open_tensor(std::string const& argument, std::uint64_t synthetic_rows);
