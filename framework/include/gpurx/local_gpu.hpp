// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU of this process under a launcher such as torchrun: local_gpu().
#pragma once

#include <gpurx/error.hpp>

namespace gpurx {

/// @brief Returns the CUDA ordinal of this process' GPU.
///
/// Use it if a launcher starts one process for each GPU. Pass the ordinal to device_memory::on_gpu().
///
/// - With `LOCAL_RANK` set: its value, counted among the GPUs that this process sees. torchrun numbers the processes of
///   a machine like this, from 0.
/// - Without `LOCAL_RANK`: 0.
/// - If `CUDA_VISIBLE_DEVICES` names only one GPU: 0, because each process then has its own GPU.
///
/// @throws system_error See Errors.
///
/// @par Errors
/// - errc::no_cuda.
/// - `EINVAL`: `LOCAL_RANK` is not a number.
/// - `ENODEV`: the machine has no such GPU.
/// - The driver's errors.
///
/// @par Thread safety
/// The function reads the environment. No thread may change the environment at the same time.
[[nodiscard]] int local_gpu();
/// @brief Returns -1 instead of throwing; otherwise as the overload above.
///
/// On an error it sets `code` and `why`.
[[nodiscard]] int local_gpu(error_code& code, diagnostics& why);

}  // namespace gpurx
