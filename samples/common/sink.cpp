// SPDX-License-Identifier: Apache-2.0
#include "sink.hpp"

#include <gpurx/gather.hpp>

sink::sink(std::filesystem::path const& path)
{
    if (!path.empty())
        file_.emplace(path);
}

void sink::write(std::span<std::byte const> bytes)
{
    hash_.update(bytes);
    if (file_)
        file_->write(bytes_, bytes);
    bytes_ += bytes.size();
}

void sink::write(std::span<gpurx::fragment const> fragments, gpurx::cuda_stream_ref stream)
{
    for (auto const& fragment : fragments) {
        auto const* bytes = reinterpret_cast<std::byte const*>(fragment.address);
        if (fragment.kind == gpurx::memory_kind::device) {
            brought_.resize(fragment.size);
            gpurx::memory_span const here{gpurx::memory_kind::host, reinterpret_cast<std::uintptr_t>(brought_.data()),
                                          fragment.size};
            gpurx::gather({&fragment, 1}, here, stream);
            bytes = brought_.data();
        }
        write(std::span{bytes, fragment.size});
    }
}

std::string sink::finish()
{
    return hash_.finish();
}

void sink::commit()
{
    if (file_)
        file_->commit();
}
