// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "byte_size.hpp"
#include "udmabuf.hpp"

namespace gpurx::detail {

std::string export_advice(error_code code, std::size_t bytes, std::optional<std::size_t> size_limit)
{
    namespace error = boost::system::errc;
    if (code == error::no_such_file_or_directory || code == error::no_such_device ||
        code == error::no_such_device_or_address)
        return "load the udmabuf module (modprobe udmabuf; the kernel needs CONFIG_UDMABUF)";
    if (code == error::permission_denied || code == error::operation_not_permitted)
        return "give this user access to /dev/udmabuf (on most systems: add the user to the group that owns it)";
    if (code == error::invalid_argument && size_limit && bytes > *size_limit * mebibyte)
        return fmt::format("raise the module parameter udmabuf.size_limit_mb, which is {}, to at least {}", *size_limit,
                           round_up(bytes, mebibyte) / mebibyte);
    if (code == error::not_enough_memory)
        return "ask for less memory, or free some";
    return {};
}

}  // namespace gpurx::detail
