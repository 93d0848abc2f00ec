// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU of this process, if a launcher starts one process for each GPU: local_gpu().
#pragma once

#include <gpurx/error.hpp>

namespace gpurx {

/// @brief Returns the ordinal of this process' GPU, as device_memory::on_gpu() takes it.
///
/// The ordinal is `LOCAL_RANK`, counted among the GPUs that this process sees. torchrun numbers the processes of a
/// machine so, from 0. The ordinal is 0 without `LOCAL_RANK`. It is 0 too if `CUDA_VISIBLE_DEVICES` names one GPU
/// alone, because each process then has its own.
///
/// @throws system_error See Errors.
///
/// @par Errors
/// - errc::no_cuda.
/// - `EINVAL`: `LOCAL_RANK` is no number.
/// - `ENODEV`: the machine has no such GPU.
/// - The driver's errors.
///
/// @par Thread safety
/// The function reads the environment. No thread may write the environment meanwhile.
[[nodiscard]] int local_gpu();
/// @brief Returns -1 on an error and sets `code` and `why`; otherwise as above.
[[nodiscard]] int local_gpu(error_code& code, diagnostics& why);

}  // namespace gpurx
