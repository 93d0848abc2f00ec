// SPDX-License-Identifier: Apache-2.0
//
// A host_span of an OBJECT. Built by tests that look at what the compiler says: most of them must not compile.
#include <boost/asio/buffer.hpp>
#include <gpurx/views.hpp>
#include <span>
#include <string_view>
#include <vector>

using object_type = OBJECT;

gpurx::host_span host_span_of(object_type& object);

gpurx::host_span host_span_of(object_type& object)
{
    return gpurx::host_span{object};
}
