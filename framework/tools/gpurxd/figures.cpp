// SPDX-License-Identifier: Apache-2.0
#include "figures.hpp"

#include <cerrno>

namespace gpurx::gpurxd {

refusal_reason reason_of(asked what, error_code code) noexcept
{
    if (code.category() != boost::system::system_category() && code.category() != boost::system::generic_category())
        return refusal_reason::nic;
    switch (code.value()) {
        case EACCES:
            return refusal_reason::policy;
        case EUSERS:
        case EAGAIN:
            return refusal_reason::crowded;
        case EDQUOT:
            return refusal_reason::flows;
        case EBADF:
        case ENOTSOCK:
            return refusal_reason::descriptor;
        case EXDEV:
            return refusal_reason::elsewhere;
        case EALREADY:
        case ENOTCONN:
            return refusal_reason::order;
        case EPROTO:
        case EPROTONOSUPPORT:
            return refusal_reason::protocol;
        case ENOENT:
            return what == asked::unsteer ? refusal_reason::order : refusal_reason::nic;
        default:
            return refusal_reason::nic;
    }
}

}  // namespace gpurx::gpurxd
