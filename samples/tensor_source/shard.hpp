// SPDX-License-Identifier: Apache-2.0
//
// Which rows a source sends in which frame. The same frame has the same sequence whenever it is asked for, so that a
// connection that was cut can be gone on with.
#pragma once

#include <boost/asio/buffer.hpp>
#include <cstdint>
#include <vector>

#include "options.hpp"
#include "tensor_file.hpp"

class shard {
  public:
    // Throws std::runtime_error if the tensors have different numbers of rows, or none.
    shard(std::vector<tensor_rows> tensors, options const& wanted);

    // Never 0: a source without a row sends an end.
    [[nodiscard]] std::uint64_t frames() const noexcept;

    struct frame {
        gpurx::ingest::frame_head head;
        std::vector<boost::asio::const_buffer> payload;  // in the tensors' memory
    };
    [[nodiscard]] frame at(std::uint64_t sequence) const;

  private:
    std::vector<tensor_rows> tensors_;
    std::uint64_t rows_ = 0;
    std::uint64_t rows_per_frame_ = 0;
    std::uint64_t frames_per_epoch_ = 0;  // of this source
    std::uint64_t epochs_;
    std::uint32_t source_;
    std::uint32_t sources_;
    bool crc_;
};
