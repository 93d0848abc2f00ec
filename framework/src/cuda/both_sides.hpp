// SPDX-License-Identifier: Apache-2.0
#pragma once

// Marks a function that nvcc compiles for the GPU as well.
#if defined(__CUDACC__)
#define GPURX_BOTH_SIDES __host__ __device__
#else
#define GPURX_BOTH_SIDES
#endif
