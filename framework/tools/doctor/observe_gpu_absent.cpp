// SPDX-License-Identifier: Apache-2.0
//
// In the place of observe_gpu.cpp where gpurx is built without CUDA.
#include "observe.hpp"

namespace gpurx::doctor {

gpu_facts observe_gpu(int ordinal)
{
    gpu_facts facts;
    facts.ordinal = ordinal;
    facts.error = "this gpurx was built without CUDA";
    return facts;
}

}  // namespace gpurx::doctor
