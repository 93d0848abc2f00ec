// SPDX-License-Identifier: Apache-2.0
//
// Control messages of a recvmsg, whatever their bytes: reading stays within them, ends, and repeats itself; and the
// tokens they name go back once each, in calls that the kernel takes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "flow/devmem_cmsg.hpp"
#include "flow/loan.hpp"

namespace {

using namespace gpurx::detail;

void check(bool holds)
{
    if (!holds)
        std::abort();
}

struct reading {
    std::vector<devmem_piece> pieces;
    bool malformed = false;

    friend bool operator==(reading const&, reading const&) = default;
};

// From memory of exactly this size at an address `shift` past an aligned one, so that a byte too many is seen.
reading read(std::span<std::byte const> control, std::size_t shift)
{
    auto const memory = std::make_unique<std::byte[]>(shift + control.size());
    if (!control.empty())
        std::memcpy(memory.get() + shift, control.data(), control.size());
    reading result;
    devmem_cmsg_reader reader{{memory.get() + shift, control.size()}};
    devmem_piece piece;
    while (reader.next(piece)) {
        result.pieces.push_back(piece);
        check(result.pieces.size() * devmem_control_size(1) <= control.size());
    }
    check(!reader.next(piece));
    result.malformed = reader.malformed();
    return result;
}

void give_back(std::vector<devmem_piece> const& pieces)
{
    loan record;
    for (auto const& piece : pieces)
        if (piece.kind == devmem_piece::where::device)
            record.append_token(piece.token);

    release_batch ledger;
    token_batch batch;
    std::size_t given = 0;
    std::size_t taken = 0;
    auto const take = [&] {
        ledger.take(batch);
        check(batch.entries > 0 && batch.entries <= uapi::max_dontneed_entries);
        check(batch.pages <= uapi::max_dontneed_pages);
        for (auto const& token : batch.used())
            taken += token.token_count;
    };
    for (auto range : record.tokens) {
        given += range.count;
        for (range = ledger.add(range); range.count > 0; range = ledger.add(range))
            take();
    }
    if (!ledger.empty())
        take();
    check(given == taken);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size)
{
    std::span const control{reinterpret_cast<std::byte const*>(data), size};
    auto const first = read(control, 0);
    check(read(control, size % 8) == first);
    give_back(first.pieces);
    return 0;
}
