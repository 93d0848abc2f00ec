// SPDX-License-Identifier: Apache-2.0
//
// local_gpu: the GPU of this process, where a launcher starts one process for each.
#pragma once

#include <gpurx/error.hpp>

namespace gpurx {

// As device_memory::on_gpu counts: number LOCAL_RANK of the GPUs that this process sees, which is how torchrun numbers
// the processes of a machine, from 0. 0 where there is no LOCAL_RANK, and where CUDA_VISIBLE_DEVICES names one GPU
// alone: then each process has been given its own. Reads the environment, so call it while no thread writes that.
// Errors: errc::no_cuda; EINVAL, LOCAL_RANK is no number; ENODEV, there is no such GPU here; what the driver reports.
// The second returns -1 then.
[[nodiscard]] int local_gpu();
[[nodiscard]] int local_gpu(error_code& code, diagnostics& why);

}  // namespace gpurx
