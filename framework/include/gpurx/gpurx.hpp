// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief All headers of gpurx, the library that receives TCP straight into GPU memory.
///
/// It also includes the Asio headers that coroutine programs need first.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/this_coro.hpp>

#include <gpurx/acceptor.hpp>       // acceptor: listens, and makes receivers of connections
#include <gpurx/crc32c.hpp>         // crc32c, crc32c_combine: CRC32C of bytes on the host
#include <gpurx/cuda_stream.hpp>    // cuda_stream; order_after, async_wait: streams without a CUDA header
#include <gpurx/error.hpp>          // errc, diagnostics, system_error
#include <gpurx/gather.hpp>         // gather: fragments into one contiguous range
#include <gpurx/local_gpu.hpp>      // local_gpu: the GPU of this process, by LOCAL_RANK
#include <gpurx/memory.hpp>         // device_memory: bytes a NIC may write into
#include <gpurx/metrics.hpp>        // metrics_text, write_metrics: counters of sessions, for Prometheus
#include <gpurx/read.hpp>           // async_read: the next bytes, to the host and to device memory
#include <gpurx/receiver.hpp>       // receiver: one TCP flow; async_connect, async_receive, async_read_some
#include <gpurx/rx_buffer.hpp>      // rx_buffer: received bytes on loan
#include <gpurx/session.hpp>        // rx_session: queues, binding, steering, and their undoing
#include <gpurx/stats.hpp>          // stats: counters by value
#include <gpurx/use_awaitable.hpp>  // use_awaitable: exceptions of a co_await have diagnostics
#include <gpurx/views.hpp>          // views: cuda_stream_ref, memory_span, host_span, destination
