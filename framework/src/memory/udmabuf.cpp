// SPDX-License-Identifier: Apache-2.0
#include "udmabuf.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <fstream>

#include "byte_size.hpp"

namespace gpurx::detail {

namespace {

constexpr char device_path[] = "/dev/udmabuf";

std::optional<std::size_t> module_size_limit()
{
    std::ifstream file{"/sys/module/udmabuf/parameters/size_limit_mb"};
    if (std::size_t limit = 0; file >> limit)
        return limit;
    return std::nullopt;
}

void report(std::string operation, std::string object, std::size_t bytes, error_code& code, diagnostics& why)
{
    code.assign(errno, boost::system::system_category());
    why = {.operation = std::move(operation),
           .object = std::move(object),
           .kernel_message = {},
           .advice = export_advice(code, bytes, module_size_limit())};
}

}  // namespace

unique_fd export_memfd(int memfd, std::size_t bytes, error_code& code, diagnostics& why)
{
    unique_fd const device{::open(device_path, O_RDWR | O_CLOEXEC)};
    if (!device) {
        report("open", device_path, bytes, code, why);
        return {};
    }
    udmabuf_create request{};
    request.memfd = static_cast<__u32>(memfd);
    request.flags = UDMABUF_FLAGS_CLOEXEC;
    request.size = bytes;
    unique_fd dmabuf{::ioctl(device.get(), UDMABUF_CREATE, &request)};
    if (!dmabuf)
        report("export", fmt::format("{} through {}", size_text(bytes), device_path), bytes, code, why);
    return dmabuf;
}

}  // namespace gpurx::detail
