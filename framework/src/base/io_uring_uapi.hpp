// SPDX-License-Identifier: Apache-2.0
//
// The kernel's interface of io_uring zero-copy receive (zcrx): numbers and layouts of Linux 7.2 and 7.3 that no
// distribution's headers have yet. Source: include/uapi/linux/io_uring.h and
// include/uapi/linux/io_uring/{zcrx,query}.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpurx::detail::uapi::zcrx {

inline constexpr std::uint8_t op_recv_zc = 58;  // submission: receive into pages of a queue
inline constexpr std::uint16_t recv_multishot = 1u << 1;

inline constexpr unsigned register_ifq = 32;
inline constexpr unsigned register_query = 35;
inline constexpr unsigned register_ctrl = 36;

// ---- register_ifq ----

inline constexpr std::uint32_t import = 1;       // flag of ifq_reg: if_idx is an exported descriptor
inline constexpr std::uint32_t area_dmabuf = 1;  // flag of area_reg
inline constexpr unsigned area_shift = 48;       // an offset has the area's token above this bit
inline constexpr std::uint32_t most_refill_entries = 32768;

struct region_desc {
    std::uint64_t user_addr;
    std::uint64_t size;
    std::uint32_t flags;
    std::uint32_t id;
    std::uint64_t mmap_offset;
    std::uint64_t reserved[4];
};
static_assert(sizeof(region_desc) == 64);

struct area_reg {
    std::uint64_t addr;
    std::uint64_t len;
    std::uint64_t rq_area_token;
    std::uint32_t flags;
    std::uint32_t dmabuf_fd;
    std::uint64_t reserved[2];
};
static_assert(sizeof(area_reg) == 48);

struct ifq_reg {
    std::uint32_t if_idx;
    std::uint32_t if_rxq;
    std::uint32_t rq_entries;
    std::uint32_t flags;
    std::uint64_t area_ptr;
    std::uint64_t region_ptr;
    std::uint32_t head;  // offsets in the region, as the two after it
    std::uint32_t tail;
    std::uint32_t rqes;
    std::uint32_t reserved_offset;
    std::uint64_t reserved_offsets[2];
    std::uint32_t zcrx_id;
    std::uint32_t rx_buf_len;
    std::uint64_t event_desc;
    std::uint64_t reserved[2];
};
static_assert(sizeof(ifq_reg) == 96);

// An entry of the refill ring: one for each completion that is given back.
struct rqe {
    std::uint64_t off;
    std::uint32_t len;
    std::uint32_t pad;
};
static_assert(sizeof(rqe) == 16);

// A completion of a ring with IORING_SETUP_CQE32.
struct cqe {
    std::uint64_t user_data;
    std::int32_t res;
    std::uint32_t flags;
    std::uint64_t off;
    std::uint64_t pad;
};
static_assert(sizeof(cqe) == 32);

// ---- register_ctrl ----

inline constexpr std::uint32_t ctrl_flush_rq = 0;
inline constexpr std::uint32_t ctrl_export = 1;

struct ctrl {
    std::uint32_t zcrx_id;
    std::uint32_t op;
    std::uint64_t reserved[2];
    std::uint32_t zcrx_fd;  // of ctrl_export
    std::uint32_t reserved_op[11];
};
static_assert(sizeof(ctrl) == 72);

// ---- register_query, on descriptor -1 ----

inline constexpr std::uint32_t query_zcrx = 1;

struct query_header {
    std::uint64_t next_entry;
    std::uint64_t query_data;
    std::uint32_t query_op;
    std::uint32_t size;
    std::int32_t result;
    std::uint32_t reserved[3];
};
static_assert(sizeof(query_header) == 40);

struct query {
    std::uint64_t register_flags;
    std::uint64_t area_flags;
    std::uint32_t nr_ctrl_opcodes;
    std::uint32_t features;
    std::uint32_t rq_hdr_size;
    std::uint32_t rq_hdr_alignment;
    std::uint64_t reserved;
};

}  // namespace gpurx::detail::uapi::zcrx
