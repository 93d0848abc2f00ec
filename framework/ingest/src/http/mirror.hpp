// SPDX-License-Identifier: Apache-2.0
//
// A server that has an object, and what it has said of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "origin.hpp"
#include "request.hpp"
#include "transfer_context.hpp"

namespace gpurx::ingest::detail {

struct mirror {
    // `first`: the URL that secrets are for; null: this one.
    mirror(std::size_t number, mirror_place const& place, transfer_context& context, url const* first)
        : index{number}, from{place, context, first}
    {}

    std::size_t index;
    origin from;
    opened_object opened;
    bool asks_for_range = true;  // in its first request
    std::atomic<std::uint64_t> bytes{0};

    // ---- guarded by what it is one of ----
    bool is_open = false;
    std::string failure;  // why it is not asked any more, in words
    // It stands for one that was refused, once that had brought so many bytes.
    std::optional<std::uint64_t> renewed_at;
};

}  // namespace gpurx::ingest::detail
